"""Reasons why the data trained on differ from the data as stored, with their limits.

A share above a reason's limit needs the user's consent in `data.accept` before a new run starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["records", "turns", "messages", "columns", "keys", "files", "evaluation records"]
EVERYTHING = "all"
"""The entry of `data.accept` that accepts every reason."""


@dataclass(frozen=True)
class Reason:
    """A way in which the data trained on differ from the data as stored."""

    name: str
    """Its name in `data.accept`."""
    unit: Unit
    """The unit that is counted, and whose total the share refers to."""
    text: str
    """The finding, such as `truncated to data.max_length`."""
    remedy: str
    """The step that avoids the finding."""
    limit: float | None = None
    """Largest share that needs no consent, from 0 to 1; None: the finding is only shown."""
    drops: bool = False
    """Whether records that were read are left out, which explains data without any record."""


CUT = Reason(
    "cut",
    "records",
    "truncated to data.max_length",
    "raise data.max_length, or split long records",
    limit=0.3,
)
NO_TARGET = Reason(
    "no-target",
    "records",
    "dropped: no target token is left",
    "raise data.max_length if their targets are truncated, or remove these records",
    limit=0.05,
    drops=True,
)
SAME_COMPLETIONS = Reason(
    "same-completions",
    "records",
    "dropped: chosen = rejected",
    "remove these records",
    limit=0.05,
    drops=True,
)
NO_SCORE = Reason(
    "no-score",
    "records",
    "dropped: the pair has no score, or none that is finite",
    "add a column `score`, or set contrastive.kind: infonce if all pairs match",
    limit=0.05,
    drops=True,
)
UNUSED_NEGATIVES = Reason(
    "unused-negatives",
    "records",
    "have negatives, which the losses of scored pairs do not use",
    "remove the negatives, or set contrastive.kind: infonce",
    limit=0.0,
)
DUPLICATES = Reason(
    "duplicates",
    "records",
    "repeat another training record",
    "set data.dedup: exact (or near) to drop them",
)
DROPPED_DUPLICATES = Reason(
    "dropped-duplicates",
    "records",
    "dropped: the record repeats another one, or is evaluation data (data.dedup)",
    "set data.dedup: off to keep them",
    drops=True,
)
EVAL_OVERLAP = Reason(
    "eval-overlap",
    "evaluation records",
    "are also training data, so that the evaluation measures memorization",
    "set data.dedup: exact to drop them from training, or name other data.eval",
    limit=0.1,
)
HELD_OUT_OVERLAP = Reason(
    "held-out-overlap",
    "evaluation records",
    "were held out, but the training data repeat them",
    "set data.dedup: exact to drop them from training",
)
EMPTY_PAIR = Reason(
    "empty-pair",
    "records",
    "dropped: the anchor or the positive is empty",
    "fill in the empty text, check which columns hold the texts (data.columns), or remove these "
    "records",
    limit=0.05,
    drops=True,
)
MISSING_WORDS = Reason(
    "missing-words",
    "records",
    "have a text such as NA, nan or null, which pandas reads as missing, but which is learned",
    "leave the cell empty or write a null if the value is missing; accept the finding if not",
    limit=0.05,
)
CONTRADICTING_SCORES = Reason(
    "contradicting-scores",
    "records",
    "have a higher score for the rejected completion than for the chosen one",
    "check which column holds the chosen completion (data.columns), or remove these records",
    limit=0.05,
)
SECOND_CONVERSATION = Reason(
    "second-conversation",
    "records",
    "have another conversation or answer in columns that are not read",
    "choose the columns with data.columns: {FIELD: COLUMN}, or set {COLUMN: null} for the others",
    limit=0.0,
)
PROMPT_REPEATED = Reason(
    "prompt-repeated",
    "records",
    "have a completion that begins with the prompt, so that the text has it twice",
    "remove the prompt from the completions, or train on them alone: data.columns: {text: COLUMN}",
    limit=0.05,
)
DIFFERENT_PROMPTS = Reason(
    "different-prompts",
    "records",
    "have chosen and rejected conversations in which the user says different things",
    "give both the same turns of the user, so that they differ only in the answers",
    limit=0.05,
)
NAN_LABEL = Reason(
    "nan-label",
    "records",
    "have the label NaN, which is read as no label",
    "write a label, or remove the column",
    limit=0.05,
)
NO_CANDIDATE = Reason(
    "no-candidate",
    "records",
    "have no negative in any step, because all texts are excluded from their negatives",
    "check the labels and repeated texts, or add a column `negative`",
    limit=0.05,
)
SAME_TARGETS = Reason(
    "same-targets",
    "records",
    "have the same target, whatever their input",
    "check which column holds the answer",
    limit=0.0,
)
WEIGHTED = Reason(
    "weighted",
    "records",
    "have a weight, which is a factor on the loss of the record, of a turn or of tokens",
    "set data.columns: {weight: null} if the column is not a factor on the loss",
)
WEIGHT_ZERO = Reason(
    "weight-zero",
    "records",
    "have the weight 0, so their own loss does not count",
    "remove these records, or set data.columns: {weight: null} if the column is not a factor on "
    "the loss",
)
MIXED_MARGINS = Reason(
    "mixed-margins",
    "records",
    "differ from the first ones in whether they have a margin, and a missing one counts as 0",
    "add the column `margin` to all records, such as 0, or set data.columns: {margin: null}",
    limit=0.0,
)
BEYOND_POSITIONS = Reason(
    "beyond-positions",
    "records",
    "longer than the sequences that the model was made for",
    "set data.max_length to the positions of the model",
    limit=0.0,
)
ROLE_NOT_FOUND = Reason(
    "role-not-found",
    "records",
    "have no message of the role that data.train_on names",
    "set data.train_on to all, last, or one of the roles found",
    limit=0.05,
)
SPLIT_MARKS = Reason(
    "split-marks",
    "records",
    "have special tokens of the chat template that the tokenizer splits into several tokens",
    "set data.special_tokens to them, unless the model was trained with them as plain text",
)
EMPTY_ANSWERS = Reason(
    "empty-answers",
    "records",
    "have an empty answer, of which only the end-of-turn token or white space is learned",
    "remove these records, or write weight: 0 in these turns",
    limit=0.05,
)
MARKS_IN_TEXT = Reason(
    "marks-in-text",
    "records",
    "have a special token of the chat template in a message, which is tokenized as that token",
    "store messages without special tokens, because the chat template writes them",
    limit=0.3,
)
NO_OFFSETS = Reason(
    "no-offsets",
    "records",
    "dropped: the tokenizer has no offsets, and its tokens cannot be placed in the text",
    "use a model with a tokenizer.json, or set data.completion_only: false to learn whole texts",
    limit=0.05,
    drops=True,
)
UNLEARNED_TURNS = Reason(
    "unlearned-turns",
    "turns",
    "learned only in part or not at all, because the chat template drops or changes their text",
    "set data.template to a template that keeps every turn, or data.train_on: last",
    limit=0.0,
)
NO_END_MARK = Reason(
    "no-end-mark",
    "turns",
    "learned without an end-of-turn token, because the chat template writes none",
    "set data.template to a template that ends every turn with an end-of-turn token",
    limit=0.5,
)
CALLS_LEFT_OUT = Reason(
    "calls-left-out",
    "messages",
    "with tool calls that the chat template leaves out",
    "set data.template to a template that writes tool calls",
    limit=0.0,
)
TOOLS_LEFT_OUT = Reason(
    "tools-left-out",
    "records",
    "with tools that the chat template leaves out",
    "set data.template to a template that lists tools, or data.columns: {tools: null}",
    limit=0.0,
)
MESSAGES_LEFT_OUT = Reason(
    "messages-left-out",
    "messages",
    "with text that the chat template leaves out",
    "set data.template to a template that writes these messages, or remove them",
    limit=0.0,
)
LAST_REASONING_LEFT_OUT = Reason(
    "last-reasoning-left-out",
    "turns",
    "are last answers whose reasoning the chat template leaves out",
    "set data.template to a template that writes reasoning, or data.reasoning: drop",
    limit=0.0,
)
REASONING_LEFT_OUT = Reason(
    "reasoning-left-out",
    "messages",
    "with reasoning of earlier answers that the chat template leaves out",
    "set data.reasoning: drop, or data.template to a template that keeps reasoning",
)
MASKED_TURNS = Reason(
    "masked-turns",
    "turns",
    "not learned, because the data mask them, such as with weight: 0",
    "remove the mask from these messages to learn them",
)
UNUSED_COLUMNS = Reason(
    "unused-columns",
    "columns",
    "not read, because the record format has no place for them",
    "if the records need a column, set data.columns: {FIELD: COLUMN}",
)
IGNORED_COLUMNS = Reason(
    "ignored-columns",
    "columns",
    "not read, although their names say that they change what should be learned",
    "set data.columns: {FIELD: COLUMN} to use a column, or {COLUMN: null} to leave it unused",
    limit=0.0,
)
MEDIA_COLUMNS = Reason(
    "media-columns",
    "columns",
    "not read, because they hold images, audio or video, and models are trained on text only",
    "remove the records that need them, or set data.columns: {COLUMN: null} to train on their text",
    limit=0.0,
)
BROKEN_ROWS = Reason(
    "broken-rows",
    "records",
    "left out: the row cannot be read",
    "correct the row in the file",
    limit=0.0,
)
ENCODING_GUESSED = Reason(
    "encoding-guessed",
    "files",
    "not UTF-8: the encoding was guessed",
    "look at a record with fttui check --show 1, and save the file as UTF-8, such as with iconv",
    limit=0.0,
)
OTHER_FORM = Reason(
    "other-form",
    "records",
    "left out: the row does not have the format of the source",
    "correct these rows, split the file by format, or name the columns with data.columns",
    limit=0.0,
    drops=True,
)
READ_AS_FORM = Reason(
    "read-as-form",
    "records",
    "have the columns of another format, but are read in the format of the source",
    "split the file by format, or set data.format",
    limit=0.0,
)
PROMPT_IGNORED = Reason(
    "prompt-ignored",
    "records",
    "have a prompt that no turn of their conversation contains, so that it is not read",
    "add the prompt to the conversation as a user turn, or ignore the column with "
    "data.columns: {prompt: null}",
    limit=0.0,
)
SYSTEM_UNUSED = Reason(
    "system-unused",
    "records",
    "are not conversations, so data.system is not added",
    "map the columns to turns with data.columns, or remove data.system",
    limit=0.0,
)
NOT_MATCHING = Reason(
    "not-matching",
    "records",
    "left out: the label says that the texts do not match, and no match has the same anchor",
    "set data.label: score (with contrastive.kind: cosent) to learn from such pairs as well",
    drops=True,
)
MATCH_NEGATIVES = Reason(
    "match-negatives",
    "records",
    "do not match: their texts are negatives of the matching records with the same anchor",
    "set contrastive.hard_negatives to the number of negatives to use",
)
UNLABELLED = Reason(
    "unlabelled",
    "records",
    "left out: the label that should say whether the texts match is missing",
    "write a label, or remove these records",
    limit=0.05,
    drops=True,
)
PADDING_NULLS = Reason(
    "padding-nulls",
    "records",
    "have nulls in tools or tool calls, which are removed: tables write them for missing fields",
    "store tools and arguments as JSON text to keep their nulls",
)
TEXT_LINES = Reason(
    "text-lines",
    "files",
    "plain text: every line is a record",
    "set data.text: paragraph or file, or write longer documents as JSON lines with a column text",
)
REPEATED_KEYS = Reason(
    "repeated-keys",
    "records",
    "have a key twice in one object; only its last value is read",
    "keep one of the two, or give them different names",
    limit=0.0,
)
JOINED_ROWS = Reason(
    "joined-rows",
    "records",
    "may have become part of a quoted cell of an earlier row, because a quote was not closed",
    'close the quote, or write a literal quote inside a quoted cell as two quotes (""); if the '
    "cell really has several lines, accept the finding",
    limit=0.0,
)
LINES_IN_CELLS = Reason(
    "lines-in-cells",
    "records",
    "have a quoted cell of several lines, which could be rows of their own",
    "look at the first one; if a quote was not closed there, close it in the file",
)
EMPTY_ROWS = Reason(
    "empty-rows",
    "records",
    "left out: all cells of the row are empty",
    "remove these rows from the table",
    drops=True,
)
UNREAD_KEYS = Reason(
    "unread-keys",
    "keys",
    "not read, because the records of the file are under another key",
    "write the records to train on to a file of their own, as a list or as JSON lines",
)
UNREAD_RECORDS = Reason(
    "unread-records",
    "records",
    "not read, because the file has several lists and another one is read",
    "write the list to train on to a file of its own",
    limit=0.0,
)
UNREAD_FILES = Reason(
    "unread-files",
    "files",
    "not read: files of no split, texts beside tables, files without data, or linked folders",
    "name the files with a pattern, such as data.train: folder/*.jsonl",
    limit=0.3,
)
TABLE_LINES = Reason(
    "table-as-text",
    "files",
    "read as plain text, although their lines have the cells of a table",
    "give the file the ending .tsv or .csv, and a first row with the names of the columns",
    limit=0.0,
)

REASONS: tuple[Reason, ...] = (
    BROKEN_ROWS,
    JOINED_ROWS,
    LINES_IN_CELLS,
    EMPTY_ROWS,
    REPEATED_KEYS,
    UNREAD_RECORDS,
    UNREAD_KEYS,
    UNREAD_FILES,
    ENCODING_GUESSED,
    TEXT_LINES,
    TABLE_LINES,
    OTHER_FORM,
    READ_AS_FORM,
    PROMPT_IGNORED,
    SECOND_CONVERSATION,
    SYSTEM_UNUSED,
    MISSING_WORDS,
    PROMPT_REPEATED,
    DIFFERENT_PROMPTS,
    CONTRADICTING_SCORES,
    UNLABELLED,
    NOT_MATCHING,
    MATCH_NEGATIVES,
    PADDING_NULLS,
    CUT,
    NO_TARGET,
    EMPTY_PAIR,
    SAME_COMPLETIONS,
    NO_SCORE,
    UNUSED_NEGATIVES,
    DUPLICATES,
    DROPPED_DUPLICATES,
    EVAL_OVERLAP,
    HELD_OUT_OVERLAP,
    NAN_LABEL,
    NO_CANDIDATE,
    SAME_TARGETS,
    MIXED_MARGINS,
    WEIGHTED,
    WEIGHT_ZERO,
    BEYOND_POSITIONS,
    ROLE_NOT_FOUND,
    NO_OFFSETS,
    SPLIT_MARKS,
    MARKS_IN_TEXT,
    EMPTY_ANSWERS,
    UNLEARNED_TURNS,
    NO_END_MARK,
    CALLS_LEFT_OUT,
    TOOLS_LEFT_OUT,
    MESSAGES_LEFT_OUT,
    LAST_REASONING_LEFT_OUT,
    REASONING_LEFT_OUT,
    MASKED_TURNS,
    UNUSED_COLUMNS,
    IGNORED_COLUMNS,
    MEDIA_COLUMNS,
)
"""Every reason, in the order in which findings are shown."""
NAMES = tuple(reason.name for reason in REASONS)
