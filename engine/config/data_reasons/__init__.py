"""Reasons why the data trained on differ from the data as stored, with their limits.

A share above a reason's limit needs the user's consent in `data.accept` before a new run starts.
"""

from __future__ import annotations

from .reason import Reason
from .rows import (
    BROKEN_ROWS,
    CHANGED_FILES,
    CONTRADICTING_SCORES,
    DIFFERENT_PROMPTS,
    EARLY_DIFFERENCE,
    EMPTY_ROWS,
    ENCODING_GUESSED,
    IGNORED_COLUMNS,
    INVALID_ROWS,
    JOINED_ROWS,
    LINES_IN_CELLS,
    MATCH_NEGATIVES,
    MEDIA_COLUMNS,
    MISSING_FILES,
    MISSING_WORDS,
    MIXED_SOURCES,
    MIXED_TEXTS,
    NAN_LABEL,
    NOT_MATCHING,
    OTHER_FORM,
    OTHER_SPLITS,
    OWN_NEGATIVES,
    PADDING_NULLS,
    PROMPT_IGNORED,
    PROMPT_REPEATED,
    READ_AS_FORM,
    REPEATED_KEYS,
    SECOND_CONVERSATION,
    SPLIT_VARIANTS,
    SYSTEM_UNUSED,
    TABLE_LINES,
    TEXT_LINES,
    UNLABELLED,
    UNREAD_FILES,
    UNREAD_KEYS,
    UNREAD_RECORDS,
    UNUSED_COLUMNS,
)

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
SURPLUS_NEGATIVES = Reason(
    "surplus-negatives",
    "records",
    "have more negatives than contrastive.hard_negatives, so that the last ones are not used",
    "set contrastive.hard_negatives to the number of negatives to use",
)
REPEATED_IDS = Reason(
    "repeated-ids",
    "records",
    "have the id of an earlier record, so that quarantine keeps both out",
    "give every record an id of its own, or leave the column out: data.columns: {id: null}",
)
SEVERAL_EOS = Reason(
    "several-eos",
    "records",
    "end with several end-of-sequence tokens, of which one is kept",
    "end the texts without this token, because one is added to every text",
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
CHANGED_TEXT = Reason(
    "changed-text",
    "messages",
    "with text that the chat template changes, such as its capitals or its white space",
    "set data.template to a template that writes the text as it is stored",
    limit=0.0,
)
TRIMMED_TEXT = Reason(
    "trimmed-text",
    "messages",
    "with white space at an end that the chat template removes",
    "set data.template to a template that keeps it, if it matters",
)
IGNORED_KEYS = Reason(
    "ignored-keys",
    "messages",
    "with keys that the chat template does not write, although they may hold what to learn",
    "move the texts to content or reasoning_content, or remove the keys",
    limit=0.0,
)
UNREAD_MESSAGE_KEYS = Reason(
    "unread-message-keys",
    "messages",
    "with keys that the chat template does not write",
    "set data.template to a template that writes them, if they matter",
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
REJECTED_RECORDS = Reason(
    "rejected-records",
    "records",
    "left out: the chat template or the tokenizer rejects the record",
    "correct or remove these records, or set data.template to a template that takes them",
    limit=0.0,
    drops=True,
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
    OTHER_SPLITS,
    SPLIT_VARIANTS,
    MISSING_FILES,
    CHANGED_FILES,
    ENCODING_GUESSED,
    TEXT_LINES,
    TABLE_LINES,
    INVALID_ROWS,
    OTHER_FORM,
    READ_AS_FORM,
    PROMPT_IGNORED,
    SECOND_CONVERSATION,
    SYSTEM_UNUSED,
    MISSING_WORDS,
    PROMPT_REPEATED,
    DIFFERENT_PROMPTS,
    EARLY_DIFFERENCE,
    MIXED_TEXTS,
    MIXED_SOURCES,
    OWN_NEGATIVES,
    CONTRADICTING_SCORES,
    UNLABELLED,
    NOT_MATCHING,
    MATCH_NEGATIVES,
    PADDING_NULLS,
    REJECTED_RECORDS,
    CUT,
    NO_TARGET,
    EMPTY_PAIR,
    SAME_COMPLETIONS,
    NO_SCORE,
    UNUSED_NEGATIVES,
    SURPLUS_NEGATIVES,
    REPEATED_IDS,
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
    CHANGED_TEXT,
    TRIMMED_TEXT,
    SEVERAL_EOS,
    IGNORED_KEYS,
    UNREAD_MESSAGE_KEYS,
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
