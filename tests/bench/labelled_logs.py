"""Scores the detector on labelled logs by event, with intervals of a bootstrap over their sources.

Alarms close to each other are one, and so are alarms of one excursion: until the loss has been back
near the level that the first alarm names, further alarms report the same event. Reports of one more
recurring peak (the kind `unstable`) are no alarms: they find no label and are never false.

A folder has `labels.jsonl` (lines of `id` and `anomalies`, each with `kind`, `start_step`,
`end_step` and `confidence`), one `<id>.jsonl` per log, and the source of each log as the second
column of `sources.tsv` or `index.tsv`. Logs of one source stay together in the bootstrap.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fttui.engine.core.anomaly import INSTABILITY, Alert, Detector

Record = dict[str, Any]
BEFORE, AFTER, MERGE, LONGEST = 2, 5, 10, 50
"""Records around a label in which an alert counts, between alerts that are one alarm, and the
longest such alarm."""
BACK_RECORDS, BACK_SHARE = 5, 0.25
"""An excursion is over after so many records with at most this share of its rise in a row."""
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""False alarms per 10,000 steps that are compared."""
RESAMPLES = 1000


class Score(NamedTuple):
    """What was found in one log."""

    source: str
    records: int
    labels: int
    hit: int
    """Labels in whose window an alarm is."""
    true: int
    """Alarms within the window of a label."""
    false: int
    """Alarms outside of the windows of all labels, also of uncertain ones."""


def read(path: Path) -> list[Record]:
    """Return the records of a log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Alarm(NamedTuple):
    """An alarm of the detector."""

    record: int
    """Index of its record."""
    alert: Alert

    def over(self, records: list[Record], until: int) -> bool:
        """Whether the loss came back between the alarm and record `until`.

        True for an alarm that is not about the loss, or that names no level.
        """
        level, value = self.alert.baseline, self.alert.value
        if self.alert.kind not in ("spike", "divergence") or level is None or value is None:
            return True
        losses = [record["loss"] for record in records[self.record : until]]
        top = max([value, *(x for x in losses if x is not None and math.isfinite(x))])
        limit, row = level + BACK_SHARE * (top - level), 0
        for loss in losses[1:]:
            row = row + 1 if loss is not None and loss <= limit else 0
            if row == BACK_RECORDS:
                return True
        return False


def groups(alarms: Iterable[Alarm], records: list[Record]) -> list[list[int]]:
    """Return the records of alarms as events: alarms close together or of one excursion are one."""
    found: list[list[Alarm]] = []
    for alarm in alarms:
        first = found[-1][0] if found else None
        if first is None or alarm.record - first.record >= LONGEST:
            found.append([alarm])
        elif alarm.record - found[-1][-1].record < MERGE or not first.over(records, alarm.record):
            found[-1].append(alarm)
        else:
            found.append([alarm])
    return [[alarm.record for alarm in group] for group in found]


def window(records: list[Record], label: dict[str, Any]) -> tuple[int, int]:
    """Return the first and last record in which an alert belongs to a label."""
    inside = [i for i, record in enumerate(records) if label["start_step"] <= record["step"]]
    first = inside[0] if inside else len(records) - 1
    last = max((i for i in inside if records[i]["step"] <= label["end_step"]), default=first)
    return first - BEFORE, last + AFTER


def _counts(label: dict[str, Any]) -> bool:
    return label["kind"] != "ambiguous" and label["confidence"] >= 0.5


def score(
    detector: Detector, source: str, records: list[Record], labels: list[dict[str, Any]]
) -> Score:
    """Score a fresh detector on one log."""
    alarms = [
        Alarm(i, alert)
        for i, record in enumerate(records)
        for alert in detector.update(dict(record))
        if alert.kind in INSTABILITY
    ]
    wanted = [window(records, x) for x in labels if _counts(x) and x["kind"] in INSTABILITY]
    unsure = [window(records, x) for x in labels if not _counts(x) or x["kind"] == "dead"]
    true = false = 0
    for group in groups(alarms, records):
        if any(a <= i <= b for i in group for a, b in wanted):
            true += 1
        elif not any(a <= i <= b for i in group for a, b in unsure):
            false += 1
    hit = sum(any(a <= alarm.record <= b for alarm in alarms) for a, b in wanted)
    return Score(source, len(records), len(wanted), hit, true, false)


def sources(folder: Path) -> dict[str, str]:
    """Return the source of each log by its id."""
    table, own = folder / "index.tsv", folder / "sources.tsv"
    lines = (own if own.exists() else table).read_text(encoding="utf-8").splitlines()
    return {cells[0]: cells[1] for cells in (line.split("\t") for line in lines)}


def scores(folders: list[Path], make: Callable[[], Detector]) -> list[Score]:
    """Return the scores of all logs of some folders."""
    found = []
    for folder in folders:
        names = sources(folder)
        for entry in read(folder / "labels.jsonl"):
            records = read(folder / f"{entry['id']}.jsonl")
            found.append(score(make(), names[entry["id"]], records, entry["anomalies"]))
    return found


def figures(found: list[Score]) -> dict[str, float]:
    """Return precision, recall, F1, false alarms per 1,000 records, and share of quiet logs."""
    true, false, hit = (
        sum(x) for x in zip(*[(s.true, s.false, s.hit) for s in found], strict=True)
    )
    precision = true / max(1, true + false)
    recall = hit / max(1, sum(s.labels for s in found))
    clean = [s for s in found if not s.labels]
    return {
        "precision": precision,
        "recall": recall,
        "F1": 2 * precision * recall / max(1e-9, precision + recall),
        "false per 1,000": 1000 * false / sum(s.records for s in found),
        "quiet": sum(not s.false for s in clean) / max(1, len(clean)),
    }


def _by_source(found: list[Score]) -> dict[str, list[Score]]:
    parts: dict[str, list[Score]] = {}
    for item in found:
        parts.setdefault(item.source, []).append(item)
    return parts


def intervals(found: list[Score]) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals of the figures, by resampling whole sources."""
    parts, rng = [*_by_source(found).values()], random.Random(0)
    drawn = [
        figures([item for part in rng.choices(parts, k=len(parts)) for item in part])
        for _ in range(RESAMPLES)
    ]
    edge = int(0.025 * RESAMPLES)
    spread = {name: sorted(one[name] for one in drawn) for name in drawn[0]}
    return {name: (values[edge], values[-1 - edge]) for name, values in spread.items()}


def left_out(by_rate: dict[float, list[Score]]) -> tuple[list[Score], dict[str, float]]:
    """Return each source's scores at the rate that has the best F1 on all other sources.

    Also returns the rates of the sources for which it is not the most frequent one.
    """
    chosen: dict[str, float] = {}
    for source in _by_source(by_rate[RATES[0]]):
        best = {
            rate: figures([s for s in found if s.source != source])["F1"]
            for rate, found in by_rate.items()
        }
        chosen[source] = max(best, key=lambda rate: best[rate])
    usual = max(chosen.values(), key=[*chosen.values()].count)
    kept = [s for rate, found in by_rate.items() for s in found if chosen[s.source] == rate]
    return kept, {source: rate for source, rate in chosen.items() if rate != usual}


def _line(name: str, found: list[Score]) -> None:
    spread = intervals(found)
    cells = [
        f"{what} {value:.3f} [{spread[what][0]:.2f}, {spread[what][1]:.2f}]"
        for what, value in figures(found).items()
    ]
    print(f"{name:12} " + "  ".join(cells))
    hit, labels = sum(s.hit for s in found), sum(s.labels for s in found)
    false, records = sum(s.false for s in found), sum(s.records for s in found)
    print(f"{'':12} {hit} of {labels} events, {false} false alarms in {records} records")


def report(folders: list[Path]) -> None:
    """Print the figures of each folder, of all, by rate, and with one source at a time left out."""
    print("\nlabelled logs")
    by_rate = {
        rate: scores(folders, lambda rate=rate: Detector(false_alarms=rate))  # type: ignore[misc]
        for rate in RATES
    }
    for folder in folders:
        _line(folder.name, scores([folder], Detector))
    for rate, found in by_rate.items():
        _line(f"rate {rate:g}", found)
    kept, other = left_out(by_rate)
    _line("left out", kept)
    print(f"{'':12} {len(_by_source(kept))} sources; other rates: {other or 'none'}")
