"""Checks of the `data` section: sources, columns, roles, evaluation data, packing, streaming."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...protocol.settings import why_not_mixed
from ..data_reasons import NAMES
from ..data_reasons.reason import EVERYTHING
from ..schema import STDLIB_PAIRS, DataConfig, RunConfig
from ..sections.file_endings import ACCEPTED_FILES as ACCEPTED_FILES
from ..sections.file_endings import FILE_SUFFIXES as FILE_SUFFIXES
from .forgetting import missing_texts
from .problem import Problem
from .source_paths import HUB_FILE, files_of_pattern, is_pattern
from .user_metrics import missing_task_folder


def check_sources(config: RunConfig) -> list[Problem]:
    """Return a problem for each source of the data, and of general texts, that does not exist.

    Ids of Hub datasets are not looked up.
    """
    train = [("data.train", one.path) for one in config.data.sources]
    sources = (*train, ("data.eval", config.data.eval))
    return [
        *(
            Problem(key, describe_missing(source))
            for key, source in sources
            if source is not None and _is_missing(source)
        ),
        *missing_texts(config),
        *missing_task_folder(config),
    ]


def _is_missing(source: str) -> bool:
    """Whether a source names local files that do not exist, or a folder with the ending of a file.

    False for the id of a Hub dataset, and for a file in one.
    """
    if source.startswith(HUB_FILE):
        return False
    if not source.strip() or "://" in source:
        return True
    if is_pattern(source):
        return not files_of_pattern(source)
    local = source.endswith(FILE_SUFFIXES) or source.startswith(("~", "/", "./", "../"))
    path = Path(source).expanduser()
    return local and not (path.is_file() or (path.is_dir() and not source.endswith(FILE_SUFFIXES)))


def describe_missing(source: str) -> str:
    """Return the error text for a data file that is missing, with the most similar file name.

    The source may also be empty, a pattern without any file, or a folder with the name of a file.
    """
    if not source.strip():
        return "got an empty text, expected a file or a folder; a dot is the current folder"
    if "://" in source:
        return (
            f"{source}: an address, but data are read from files, folders and the Hub; download "
            "it first, and name the file"
        )
    path = Path(source).expanduser()
    if is_pattern(str(path)):
        return (
            f"{path}: no file matches this pattern (current folder: {Path.cwd()}); * stands for "
            "characters of a name, ** for folders"
        )
    if path.is_dir():
        return f"{path}: a folder, although its name ends like that of a file; name a file in it"
    if path.exists():
        return (
            f"{path}: a pipe or device, but data are read several times; write its content to a "
            "file"
        )
    folder = path.parent
    names = [one.name for one in folder.iterdir() if one.is_file()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    hint = f"; did you mean {folder / close[0]}?" if close else "."
    return (
        f"{path}: no such file (current folder: {Path.cwd()}){hint} Accepted: files ending in "
        f"{ACCEPTED_FILES}; a pattern of files, a folder, a Hub dataset id, or {STDLIB_PAIRS}"
    )


def _check_eval(config: RunConfig) -> Iterator[Problem]:
    data = config.data
    if data.eval is None and data.eval_fraction == 1:
        yield Problem("data.eval_fraction", "got 1, which leaves nothing to train on; lower it")
    wanted = config.eval.recurs or config.eval.at_start
    if data.eval is None and data.eval_fraction == 0 and wanted:
        yield Problem(
            "eval.every",
            "evaluations are requested, but there is no evaluation data; set data.eval or "
            "data.eval_fraction, or eval.every: 0",
        )
    itself = [one for one in data.sources if one.path == data.eval != STDLIB_PAIRS]
    splits = [one.split or data.train_split for one in itself]
    if itself and (data.eval_split in splits or itself[0].path.endswith(FILE_SUFFIXES)):
        yield Problem(
            "data.eval",
            "the evaluation data are the training data; name other data, or remove the key and set "
            "data.eval_fraction to hold out a share",
        )


def _check_packing(config: RunConfig) -> Iterator[Problem]:
    if not config.data.packing:
        return
    if config.task != "sft" or config.contrastive.kind != "off":
        yield Problem(
            "data.packing",
            "got true, but packed rows support only next-token training; set data.packing: false, "
            "or task: sft with contrastive.kind: off",
        )
    if config.model.attention == "flash_attention_2" and config.train.micro_batch_size > 1:
        yield Problem(
            "train.batch",
            f"got {config.train.batch}, but flash_attention_2 separates packed records only when a "
            "batch has one row; set train.batch: 1 with a larger data.max_length, or "
            "model.attention: sdpa",
        )


def _check_special_tokens(config: RunConfig) -> Iterator[Problem]:
    added = {
        "data.special_tokens": config.data.special_tokens,
        "model.add_tokens": [one.token for one in config.model.add_tokens],
    }
    for key, tokens in added.items():
        blank = [token for token in tokens if not token.strip() or token != token.strip()]
        if blank:
            yield Problem(
                key,
                f"got {blank[0]!r}, but a token is a text without white space at its ends; correct "
                "or remove it",
            )
        if tokens and config.train.lean:
            yield Problem(
                key,
                f"is set, but train.memory: {config.train.memory} keeps embedding and head in "
                "forms that cannot be trained; set train.memory: plain, or remove the key if the "
                "tokenizer has the tokens",
            )
    repeated = sorted({one for one in config.added_tokens if config.added_tokens.count(one) > 1})
    if repeated:
        key = (
            "data.special_tokens"
            if repeated[0] in config.data.special_tokens
            else "model.add_tokens"
        )
        yield Problem(key, f"{repeated[0]} is listed twice; list it once")
    for one in config.model.add_tokens:
        if one.description is not None and not one.description.strip():
            yield Problem(
                "model.add_tokens",
                f"the description of {one.token} is empty; describe it, or remove the line",
            )


def _check_mix(config: RunConfig) -> Iterator[Problem]:
    train = config.data.train
    if isinstance(train, str):
        return
    if not train:
        yield Problem(
            "data.train", "the list is empty, so there is nothing to train on; name a source"
        )
    weighted = [one.path for one in train if one.weight is not None]
    if weighted and len(weighted) < len(train):
        yield Problem(
            "data.train",
            f"{len(weighted)} of {len(train)} sources have a weight; give every source a "
            "weight, or remove all weights to use every record once per epoch",
        )
    if any(one.path == STDLIB_PAIRS for one in train):
        yield Problem("data.train", f"{STDLIB_PAIRS} cannot be mixed; name files or Hub datasets")
    places = [(one.path, one.split) for one in train]
    for path, _ in sorted({place for place in places if places.count(place) > 1}, key=str):
        yield Problem("data.train", f"{path} is listed twice; list it once with a larger weight")


def _check_phases(config: RunConfig) -> Iterator[Problem]:
    """Yield the problems of `data.mix` that do not depend on the number of steps of the run.

    `data.mix_plan` checks the order of phases once that number is known.
    """
    data = config.data
    if not data.mix:
        return
    if len(data.sources) < 2:
        yield Problem(
            "data.mix",
            "weighs several sources, but data.train names one; name several, or remove the key",
        )
        return
    if any(one.weight is not None for one in data.sources):
        yield Problem(
            "data.mix",
            "is set, and sources in data.train have a weight too; remove these weights, and write "
            "them in the phase at 0",
        )
    if data.mix[0].at != 0:
        yield Problem(
            "data.mix",
            f"the first phase begins at {data.mix[0].at:g}, expected 0; add the weights with which "
            "the run begins",
        )
    for form in (True, False):
        starts = [one.at for one in data.mix if (one.at < 1) is form]
        if sorted(set(starts)) != starts:
            text = ", ".join(f"{at:g}" for at in starts)
            yield Problem("data.mix", f"the phases begin at {text}; list each once, in their order")
    for one in data.mix:
        if reason := why_not_mixed(one.weights, data.source_names):
            yield Problem("data.mix", f"at {one.at:g}: {reason}")


def _check_streaming(config: RunConfig) -> Iterator[Problem]:
    data = config.data
    if not data.streaming:
        return
    if data.dedup != "off":
        yield Problem(
            "data.dedup",
            f"got {data.dedup}, but streamed data are not known as a whole, so their duplicates "
            "are not found; set data.streaming: false, or remove the key",
        )
    if config.train.steps is None:
        yield Problem(
            "train.epochs",
            "the length of streamed data is unknown; set train.steps (and train.epochs: null)",
        )
    if data.eval is None and data.eval_fraction:
        yield Problem(
            "data.eval_fraction",
            f"got {data.eval_fraction:g}, but streamed data cannot be held out; name data.eval, or "
            "set data.eval_fraction: 0",
        )
    if data.packing:
        yield Problem(
            "data.packing",
            "got true with data.streaming, but packing needs the lengths of all records; set one "
            "of data.packing and data.streaming to false",
        )
    if len(data.sources) > 1 and not data.mix and not all(one.weight for one in data.sources):
        yield Problem(
            "data.train",
            "streamed sources are mixed by weight, because their lengths are unknown; give every "
            "source a weight, or set data.mix",
        )
    for one in data.sources:
        if one.path.endswith(".json") or one.path == STDLIB_PAIRS:
            yield Problem(
                "data.streaming",
                f"{one.path} can only be read as a whole; stream .jsonl or .parquet files or Hub "
                "datasets, or set data.streaming: false",
            )


def _check_accept(config: RunConfig) -> Iterator[Problem]:
    for name in config.data.accept:
        if name not in (*NAMES, EVERYTHING):
            close = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield Problem(
                "data.accept",
                f"got {name!r}, expected one of {', '.join((*NAMES, EVERYTHING))}{hint}",
            )


FIELDS = (
    *("messages", "prompt", "completion", "text", "chosen", "rejected", "anchor", "positive"),
    *("negatives", "label", "score", "tools", "instruction", "input", "output", "id"),
    *("system", "history", "reasoning", "weight"),
)
"""Fields that `data.columns` maps to columns."""


def _check_columns(config: RunConfig) -> Iterator[Problem]:
    yield from _check_meanings(config.data, config.task, "data")
    for source in config.data.sources if isinstance(config.data.train, list) else ():
        for problem in _check_meanings(config.data.of_source(source), config.task, "data.train"):
            yield Problem("data.train", f"{source.path}: {problem.key}: {problem.text}")


def _check_meanings(data: DataConfig, task: str, path: str) -> Iterator[Problem]:
    """Yield settings of columns and labels that are unknown or that the task does not use."""
    for field, column in data.columns.items():
        if column == []:
            yield Problem(f"{path}.columns", f"{field} has an empty list; name a column, or null")
        if column is not None and field not in FIELDS:
            close = difflib.get_close_matches(field, FIELDS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield Problem(
                f"{path}.columns",
                f"got the field {field!r}, expected one of {', '.join(FIELDS)} (field: column), or "
                f"{{{field}: null}} for a column that stays unused{hint}",
            )
    if data.label == "answer" and task != "sft":
        yield Problem(
            f"{path}.label", f"got answer, but task {task} learns no answers; set task: sft"
        )
    if data.label in ("class", "score", "match") and task != "contrastive":
        yield Problem(
            f"{path}.label",
            f"got {data.label}, but only task contrastive has pairs; set data.label: auto",
        )
    if data.yes_labels is not None and task != "kto" and data.label != "match":
        yield Problem(
            f"{path}.yes_labels",
            f"is used by task kto and by data.label: match only, but the task is {task} and the "
            f"label {data.label}; remove it, or set data.label: match",
        )
    if data.yes_labels == []:
        yield Problem(
            f"{path}.yes_labels",
            "got an empty list, so that every label is negative; name the positive labels",
        )


STANDARD_ROLES = ("user", "assistant", "system", "tool")
"""Roles of chat templates; further ones have names of their own."""
_MISSPELT = 0.75
"""Similarity from which another name is taken for a misspelt one."""


def _check_roles(config: RunConfig) -> Iterator[Problem]:
    """Yield roles that are probably misspelt, so that their turns would not be learned."""
    for source in config.data.sources:
        for name, role in config.data.of_source(source).roles.items():
            meant = None if role == name else _meant(role.lower(), STANDARD_ROLES)
            if meant:
                yield Problem(
                    "data.roles",
                    f"got the role {role!r} for {name!r}; did you mean {meant}? A role of the chat "
                    f"template keeps its name: {{{role}: {role}}}",
                )


def _meant(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that `name` probably misspells; None if it is known, or like none."""
    if name in known:
        return None
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_MISSPELT)), None)


def _check_quarantine(config: RunConfig) -> Iterator[Problem]:
    if config.data.quarantine and config.data.streaming:
        yield Problem(
            "data.quarantine",
            "is set, but streamed data are read during training, so that an id cannot be looked "
            "up; take the records out of the source, or set data.streaming: false",
        )


DATA = (
    _check_columns,
    _check_roles,
    _check_accept,
    _check_eval,
    _check_packing,
    _check_special_tokens,
    _check_mix,
    _check_phases,
    _check_quarantine,
    _check_streaming,
)
"""Checks of the data."""
