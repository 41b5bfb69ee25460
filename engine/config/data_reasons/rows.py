"""Reasons that apply while files are read and their rows become records."""

from __future__ import annotations

from .reason import Reason

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
    "have chosen and rejected conversations that differ first in a turn of the user, or in length",
    "give both the same turns of the user, so that they differ only in the answers",
    limit=0.05,
)
EARLY_DIFFERENCE = Reason(
    "early-difference",
    "records",
    "have chosen and rejected conversations that continue after their first different answer, so "
    "that several answers are compared at once",
    "end both conversations with the first answer in which they differ",
)
NAN_LABEL = Reason(
    "nan-label",
    "records",
    "have the label NaN, which is read as no label",
    "write a label, or remove the column",
    limit=0.05,
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
INVALID_ROWS = Reason(
    "invalid-rows",
    "records",
    "left out: a column or a message of the row has a value that cannot be read",
    "correct or remove these rows",
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
    "not read: files of no split, texts beside tables, files without data, or linked files",
    "name the files with a pattern, such as data.train: folder/*.jsonl",
    limit=0.3,
)
OTHER_SPLITS = Reason(
    "other-splits",
    "files",
    "not read, because their names say that they are of other splits of the folder",
    "set data.train_split and data.eval_split, or name the files with a pattern",
)
SPLIT_VARIANTS = Reason(
    "split-variants",
    "files",
    "are read with others of the split, although their names have more words than the split",
    "name the files with a pattern if these hold variants of the same records",
)
MISSING_FILES = Reason(
    "missing-files",
    "files",
    "are missing: the numbers in the names of the others count more files than there are",
    "fetch these files, or accept the finding to train on the others",
    limit=0.0,
)
CHANGED_FILES = Reason(
    "changed-files",
    "files",
    "have changed since an earlier pass over the data, whose rows cannot be repeated exactly",
    "leave the files of a run as they are until it ends, and write new rows to other files",
    limit=0.0,
)
TABLE_LINES = Reason(
    "table-as-text",
    "files",
    "read as plain text, although their lines have the cells of a table",
    "give the file the ending .tsv or .csv, and a first row with the names of the columns",
    limit=0.0,
)
MIXED_TEXTS = Reason(
    "mixed-texts",
    "records",
    "differ from the first ones of the source in whether they are plain text or conversations, "
    "and the chat template is used for conversations alone",
    "write all records of a source in one of the two ways",
    limit=0.0,
)
MIXED_SOURCES = Reason(
    "mixed-sources",
    "records",
    "are joined as plain text, while other sources are conversations that the chat template writes",
    "write prompt and completion as lists of messages to use the chat template for them",
)
OWN_NEGATIVES = Reason(
    "own-negatives",
    "records",
    "have a negative with the text of their positive or their anchor",
    "remove these negatives; contrastive.mask_duplicates leaves them out of the loss",
    limit=0.05,
)
