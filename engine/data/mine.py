"""Mine hard negatives for pairs: `python -m fttui.engine.data.mine`.

Reads the options from standard input and writes messages to standard output. The search is
`mine_hard_negatives` of sentence-transformers: the texts nearest to an anchor that are not among
its positives. This module reads the records as training does, joins what was found with the
negatives that the records have, and counts what was left out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..config.data_reasons.rows import TEXT_LINES
from ..config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from ..config.sections.contrastive import ContrastiveConfig
from ..errors import DataError, FttuiError
from ..protocol.data.messages import DataLine, DataRefused
from .channel import Channel
from .findings import Findings
from .reading import Progress, read_records
from .records.formats import PairRecord
from .records.forms import listed
from .sources import read_rows

_SKIPPED = re.compile(r"Skipped ([\d,]+) potential negatives .* due to the (\w+) of")
"""What sentence-transformers prints about candidates that it left out."""
_MORE_CANDIDATES = 100
"""Largest number of candidates to search for beyond the negatives that are asked for."""
_REASONS = {
    "relative_margin": "their similarity is too near that of the positive (--relative-margin)",
    "absolute_margin": "their similarity is too near that of the positive (--margin)",
    "max_score": "they are too similar to the anchor (--max-score)",
    "min_score": "they are not similar enough to the anchor (--min-score)",
}


class MineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to mine, and with which limits."""

    source: str
    out: str
    model: str
    """Folder of a model that sentence-transformers loads."""
    negatives: int = 3
    """Largest number of negatives to find for a pair."""
    skip: int = 0
    """Nearest texts to leave out, which are likely positives without a label."""
    margin: float | None = None
    """By how much the cosine of a negative must be below that of the positive."""
    relative_margin: float | None = 0.05
    """The same as a share of the cosine of the positive."""
    max_score: float | None = None
    min_score: float | None = None
    corpus: str | None = None
    """A file of further texts, one per line or in a column `text`, among which to search."""
    batch: int = 32
    columns: dict[str, str] = {}
    """Columns of the fields of a pair, as in `data.columns`."""


@dataclass(frozen=True)
class Mined:
    """The rows to write, and what was left out."""

    rows: list[dict[str, Any]]
    left_out: Counter[str]
    """Number of candidates and pairs by the reason why they were left out."""
    found: int
    """Number of mined negatives that are written."""
    bare: int
    """Number of written pairs for which no negative was found."""


def mine(
    records: Sequence[PairRecord], model: Any, options: MineOptions, corpus: Sequence[str] = ()
) -> Mined:
    """Return the pairs with the hard negatives that a model finds for them.

    Args:
        records: the pairs.
        model: a `SentenceTransformer`.
        options: limits of the search.
        corpus: further texts among which to search, beside the positives of all pairs.

    Raises:
        DataError: no pair has both texts.
    """
    left_out: Counter[str] = Counter()
    pairs = list(_usable(records, left_out))
    if not pairs:
        raise DataError(f"{options.source}: no pair has both texts, so there is nothing to mine")
    labelled, matching = _texts_by_label(pairs), _positives_by_anchor(pairs)
    wanted = options.negatives + _most_refusals(pairs, matching, labelled)
    nearest = _nearest(pairs, model, options, wanted, corpus, left_out)
    rows, found, bare = [], 0, 0
    for one in pairs:
        near = nearest.get((one.anchor, one.positive), ())
        kept = _kept(one, near, matching[one.anchor.strip()], labelled, left_out)
        new = list(itertools.islice(kept, options.negatives))
        bare += not new
        found += len(new)
        rows.append(_row(one, [*one.negatives, *new]))
    return Mined(rows, +left_out, found, bare)


def _usable(records: Sequence[PairRecord], left_out: Counter[str]) -> Iterator[PairRecord]:
    """Yield the pairs with both texts, each once; count the others."""
    seen = set()
    for one in records:
        if not (one.anchor.strip() and one.positive.strip()):
            left_out["pairs with an empty text"] += 1
        elif (one.anchor, one.positive) in seen:
            left_out["pairs that repeat another one"] += 1
        else:
            seen.add((one.anchor, one.positive))
            yield one


def _nearest(
    pairs: Sequence[PairRecord],
    model: Any,
    options: MineOptions,
    wanted: int,
    corpus: Sequence[str],
    left_out: Counter[str],
) -> Mapping[tuple[str, str], list[str]]:
    """Return up to `wanted` candidates by anchor and positive, the nearest first."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    texts = {"anchor": [p.anchor for p in pairs], "positive": [p.positive for p in pairs]}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        found = mine_hard_negatives(
            Dataset.from_dict(texts),
            model,
            anchor_column_name="anchor",
            positive_column_name="positive",
            corpus=list(corpus) or None,
            num_negatives=wanted,
            range_min=options.skip,
            absolute_margin=options.margin,
            relative_margin=options.relative_margin,
            max_score=options.max_score,
            min_score=options.min_score,
            output_format="triplet",
            batch_size=options.batch,
            verbose=True,
        )
    for count, name in _SKIPPED.findall(printed.getvalue()):
        left_out[f"candidates: {_REASONS.get(name, name)}"] += int(count.replace(",", ""))
    nearest: dict[tuple[str, str], list[str]] = {}
    for row in found:
        nearest.setdefault((row["anchor"], row["positive"]), []).append(row["negative"])
    return nearest


def _texts_by_label(pairs: Sequence[PairRecord]) -> Mapping[int, set[str]]:
    """Return the texts of the pairs of each label, without white space around them."""
    found: dict[int, set[str]] = {}
    for one in pairs:
        if one.label is not None:
            found.setdefault(one.label, set()).update((one.anchor.strip(), one.positive.strip()))
    return found


def _positives_by_anchor(pairs: Sequence[PairRecord]) -> Mapping[str, set[str]]:
    """Return the positives of each anchor, all without white space around them."""
    found: dict[str, set[str]] = {}
    for one in pairs:
        found.setdefault(one.anchor.strip(), set()).add(one.positive.strip())
    return found


def _most_refusals(
    pairs: Sequence[PairRecord],
    matching: Mapping[str, Set[str]],
    labelled: Mapping[int, Set[str]],
) -> int:
    """Return how many candidates of one pair `_kept` may refuse, at most `_MORE_CANDIDATES`.

    So many more are searched for, so that a refused candidate does not cost a negative.
    """
    most = 0
    for one in pairs:
        same = labelled.get(one.label, set()) if one.label is not None else set()
        known = {text.strip() for text in one.negatives}
        most = max(most, len(known | matching[one.anchor.strip()] | same) + 1)
    return min(most, _MORE_CANDIDATES)


def _kept(
    pair: PairRecord,
    texts: Sequence[str],
    matching: Set[str],
    labelled: Mapping[int, set[str]],
    left_out: Counter[str],
) -> Iterator[str]:
    """Yield the mined negatives that do not match the anchor and are new; count the others.

    Texts that differ only in white space around them count as the same.
    """
    same = labelled.get(pair.label, set()) if pair.label is not None else set()
    known = {one.strip() for one in pair.negatives}
    for text in texts:
        bare = text.strip()
        if bare == pair.anchor.strip():
            left_out["candidates: the text is the anchor itself"] += 1
        elif bare in matching:
            left_out["candidates: the text is a positive of the anchor"] += 1
        elif bare in known:
            left_out["candidates: the record, or a nearer candidate, has the same text"] += 1
        elif bare in same:
            left_out["candidates: a pair of the same label has the text"] += 1
        else:
            known.add(bare)
            yield text


def _row(pair: PairRecord, negatives: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": pair.id, "anchor": pair.anchor, "positive": pair.positive}
    if negatives:
        row["negatives"] = list(negatives)
    if pair.label is not None:
        row["label"] = pair.label
    return row if pair.weight == 1 else row | {"weight": pair.weight}


def read_pairs(options: MineOptions, progress: Progress) -> tuple[list[PairRecord], list[str]]:
    """Return the pairs of the source, and the lines about what was found in them.

    Raises:
        DataError: the source cannot be read, has no pairs, or its pairs have scores.
    """
    data = DataConfig(train=options.source, eval_fraction=0.0, columns=dict(options.columns))
    config = RunConfig(
        model=ModelConfig(id=options.model),
        data=data,
        train=TrainConfig(steps=1),
        task="contrastive",
        contrastive=ContrastiveConfig(kind="infonce"),
    )
    try:
        found = read_records(config, progress)
    except DataError as error:
        if "data.columns" not in str(error):
            raise
        raise DataError(
            f"{error}; fttui mine takes such names as --column FIELD=COLUMN, once for each field"
        ) from None
    pairs = [one for part in found.train for one in part if isinstance(one, PairRecord)]
    scored = next((one for one in pairs if one.score is not None), None)
    if scored is not None:
        raise DataError(
            f"{scored.place}: the pair has a score, and the losses of scored pairs use no "
            "negatives; mine for pairs without scores"
        )
    found.findings.counted("records", found.count)
    lines = [one.line for one in found.sources]
    return pairs, [*lines, *(f"finding: {one.line}" for one in found.findings)]


def read_corpus(path: str) -> tuple[list[str], list[str]]:
    """Return the texts of a file, and the lines about what was found in it.

    Raises:
        DataError: the file cannot be read, or a row has no text.
    """
    findings, texts = Findings(), list[str]()
    for row in read_rows(path, "train", None, findings):
        text = row.values.get("text")
        if not isinstance(text, str):
            raise DataError(
                f"{row.place}: no column text; found {listed(row.values)}. A corpus has one text "
                "per line, or rows with a column text"
            )
        texts.append(text)
    findings.counted("records", len(texts))
    kept = [one for one in texts if one.strip()]
    empty = len(texts) - len(kept)
    left_out = f"; texts left out because they are empty: {empty:,}" if empty else ""
    # That each line is a text is what the option asks for.
    lines = (f"finding in {path}: {one.line}" for one in findings if one.reason is not TEXT_LINES)
    return kept, [f"{path}: {len(kept):,} texts to search{left_out}", *lines]


def write_rows(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write rows as JSON lines; the file is complete or not there.

    Raises:
        DataError: the file exists, or cannot be written.
    """
    if out.exists():
        raise DataError(f"{out} exists; name another file, or remove it")
    part = out.with_name(out.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        part.rename(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise DataError(f"{out}: cannot be written: {error.strerror}; name another file") from None


def _lines(options: MineOptions, progress: Progress) -> Iterator[str]:
    from sentence_transformers import SentenceTransformer

    pairs, said = read_pairs(options, progress)
    yield from said
    corpus: list[str] = []
    if options.corpus is not None:
        corpus, said = read_corpus(options.corpus)
        yield from said
    with contextlib.redirect_stdout(sys.stderr):
        model = SentenceTransformer(options.model, local_files_only=True)
    mined = mine_within_memory(pairs, model, options, corpus)
    write_rows(mined.rows, Path(options.out))
    if any("label" in row for row in mined.rows):
        yield "labels are written as numbers: equal labels have equal numbers"
    for reason, count in sorted(mined.left_out.items()):
        yield f"left out: {count:,} {reason}"
    none = f"; {mined.bare:,} pairs have none" if mined.bare else ""
    yield f"{options.out}: {len(mined.rows):,} pairs with {mined.found:,} mined negatives{none}"


def mine_within_memory(
    pairs: Sequence[PairRecord], model: Any, options: MineOptions, corpus: Sequence[str]
) -> Mined:
    """Return `mine`'s result.

    Raises:
        DataError: no pair has both texts, or the device's memory does not suffice.
    """
    from torch import OutOfMemoryError

    try:
        return mine(pairs, model, options, corpus)
    except OutOfMemoryError:
        raise DataError(
            f"the device has too little memory for {options.batch} texts per pass; choose fewer "
            "with --batch"
        ) from None


def main() -> int:
    """Mine for the options on standard input, write messages, and return the exit code."""
    channel = Channel(sys.stdout)
    try:
        options = msgspec.json.decode(sys.stdin.read(), type=MineOptions)
        for line in _lines(options, channel.progress):
            channel.send(DataLine(text=line))
    except (FttuiError, ValueError, OSError) as error:
        code = error.exit_code if isinstance(error, FttuiError) else DataError.exit_code
        channel.send(DataRefused(text=str(error), exit_code=code))
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
