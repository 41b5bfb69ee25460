"""The surviving timeline of a run: the steps that its weights descend from, and what changed them.

A rollback and a resume continue from a checkpoint, so the way back leads from checkpoint to
checkpoint. A rollback keeps the settings in force, so a setting that was made on an abandoned
timeline counts from the rollback on.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from fttui.engine.protocol.benchmarks.result import BenchmarkFinished, BenchmarkScore
from fttui.engine.protocol.command_kinds import Quarantine, ResetLr, SkipBatches, undo_schedule
from fttui.engine.protocol.commands import describe_command
from fttui.engine.protocol.events import (
    CheckpointSaved,
    CommandApplied,
    EvalFinished,
    Record,
    RolledBack,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.settings import RunSettings


@dataclass(frozen=True)
class Change:
    """A command that changes the training after a step."""

    step: int
    """The number of finished steps when it is applied."""
    command: str
    """The command as a person would type it, with all digits of its numbers."""


@dataclass(frozen=True)
class SurvivingTimeline:
    """The steps that the newest weights of a run descend from."""

    steps: Mapping[int, StepFinished]
    evaluations: Mapping[int, Mapping[str, float]]
    """Metrics by step; of several evaluations at a step the newest."""
    changes: tuple[Change, ...]
    """The commands that, from a fresh start, lead to the same settings and data at every step."""
    abandoned_steps: int
    """Number of finished steps that were rolled back."""
    unexplained: tuple[int, ...]
    """Steps whose learning rate factor or clip follows from no command in the journal."""
    benchmarks: Mapping[str, tuple[int, BenchmarkScore]] = field(default_factory=dict)
    """Newest score of each metric such as `bench.hellaswag.acc`, with its checkpoint's step."""
    left_out: tuple[str, ...] = ()
    """Commands that may have changed settings, which their records lack; not among `changes`."""
    means: tuple[str, ...] = ()
    """Checkpoints from which training continued and that are means of others, which no command
    leads to."""


@dataclass
class _Segment:
    """Records between two points at which training continued from a checkpoint."""

    start: int
    checkpoint: str
    parent: int | None
    """Index of the segment in which the checkpoint was saved; None for the beginning of the run."""
    until: int
    """Sequence number of the last record of the parent that counts."""
    settings: RunSettings | None
    """The settings in force at its start; None before the first command."""
    records: list[Record] = field(default_factory=list)

    @property
    def trained(self) -> bool:
        return any(isinstance(record.event, StepFinished) for record in self.records)


class _Segments:
    """Divides a journal into segments."""

    def __init__(self) -> None:
        self.all = [_Segment(0, "", None, 0, None)]
        self._saved: dict[str, tuple[int, int]] = {}
        """Checkpoint → its segment, and the sequence number of its record."""
        self._settings: RunSettings | None = None
        self.means: set[str] = set()
        """Checkpoints that are the mean of others."""
        self.first: RunSettings | None = None
        """The settings before the first command of the run; None without one."""

    def add(self, record: Record) -> None:
        """Add the next record."""
        match record.event:
            case RolledBack(checkpoint=name, to_step=step):
                self._begin(name, step, record)
            case RunStarted(resumed_from=str(name), devices=[_, *_]):
                if self._settings is not None:
                    self._settings = _as_started(self._settings, record.event)
                if not self._goes_on(name):
                    self._begin(name, record.event.start_step, record)
            case CheckpointSaved(name=name, mean_of=mean_of):
                self._saved[name] = len(self.all) - 1, record.seq
                self.means |= {name} if mean_of else set()
            case CommandApplied(settings=RunSettings() as settings, previous=previous):
                self.first, self._settings = self.first or previous, settings
            case _:
                pass
        self.all[-1].records.append(record)

    def _begin(self, checkpoint: str, step: int, record: Record) -> None:
        known = self._saved.get(checkpoint)
        last = (len(self.all) - 1, record.seq)
        parent, until = known or ((None, 0) if step == 0 else last)
        self.all.append(_Segment(step, checkpoint, parent, until, self._settings))

    def _goes_on(self, checkpoint: str) -> bool:
        """Whether a process that resumed from a checkpoint continues the newest segment."""
        newest = self.all[-1]
        if newest.checkpoint == checkpoint and not newest.trained:
            return True
        segment, seq = self._saved.get(checkpoint, (None, 0))
        later = (r for r in newest.records if r.seq > seq)
        return segment == len(self.all) - 1 and not any(
            isinstance(record.event, StepFinished) for record in later
        )

    def survives(self, checkpoint: str) -> bool:
        """Whether the newest weights descend from a checkpoint."""
        segment, seq = self._saved.get(checkpoint, (None, 0))
        return any(
            one is self.all[segment] and any(record.seq == seq for record in counting)
            for one, counting in self.path()
            if segment is not None
        )

    def path(self) -> list[tuple[_Segment, list[Record]]]:
        """Return the segments that lead to the newest record, each with its records that count."""
        found: list[tuple[_Segment, list[Record]]] = []
        index: int | None = len(self.all) - 1
        until: float = float("inf")
        while index is not None:
            segment = self.all[index]
            counting = [record for record in segment.records if record.seq <= until]
            found.append((segment, counting))
            index, until = segment.parent, min(until, segment.until)
        return found[::-1]


def surviving_timeline(records: Iterable[Record], fresh: RunSettings | None) -> SurvivingTimeline:
    """Return what led to the newest record of a journal.

    Args:
        records: the records of the journal, in their order.
        fresh: the settings with which a new run of the same configuration starts; None if they are
            not known, so that the run is taken to have started with those before its first command.
    """
    segments = _Segments()
    left_out: list[str] = []
    for record in records:
        segments.add(record)
        left_out += _without_settings(record)
    fresh = fresh or segments.first or RunSettings()
    path = segments.path()
    kept = [record for _, counting in path for record in counting]
    steps = {r.step: r.event for r in kept if isinstance(r.event, StepFinished)}
    points, skips = _points(path, segments.first or fresh), _skips(path)
    trained = sum(isinstance(r.event, StepFinished) for one in segments.all for r in one.records)
    return SurvivingTimeline(
        steps=steps,
        evaluations={r.step: r.event.metrics for r in kept if isinstance(r.event, EvalFinished)},
        benchmarks=_benchmarks(segments),
        changes=tuple(_changes(points, skips, fresh)),
        abandoned_steps=trained - len(steps),
        unexplained=tuple(_unexplained(steps, points)),
        left_out=tuple(left_out),
        means=tuple(one.checkpoint for one, _ in path if one.checkpoint in segments.means),
    )


def _benchmarks(segments: _Segments) -> dict[str, tuple[int, BenchmarkScore]]:
    """Return the newest scores on checkpoints that survive, whenever they were measured."""
    found: dict[str, tuple[int, BenchmarkScore]] = {}
    for record in (record for segment in segments.all for record in segment.records):
        if not isinstance(record.event, BenchmarkFinished):
            continue
        result = record.event.result
        for metric, score in result.scores.items() if segments.survives(result.checkpoint) else ():
            name = result.name_of(metric)
            if name not in found or found[name][0] <= result.step:
                found[name] = result.step, score
    return found


def _without_settings(record: Record) -> Iterator[str]:
    """Yield the command of a record that may have changed settings, but does not have them.

    Journals of older versions have no settings, and this version cannot read those of some newer
    ones.
    """
    event = record.event
    if not isinstance(event, CommandApplied) or event.settings is not None:
        return
    if event.spec is None or event.spec.versioned:
        yield f"step {record.step}: {event.command}"


def _points(
    path: list[tuple[_Segment, list[Record]]], first: RunSettings
) -> dict[int, RunSettings]:
    """Return the settings from a step on, for each step after which they may have changed."""
    now, found = first, {0: first}
    for segment, records in path:
        if segment.settings is not None:
            now = found[segment.start] = segment.settings
        for record in records:
            match record.event:
                case CommandApplied(settings=RunSettings() as now):
                    found[record.step] = now
                case RunStarted(resumed_from=str(), devices=[_, *_]) as started:
                    if (after := _as_started(now, started)) != now:
                        now = found[started.start_step] = after
                case _:
                    pass
    return dict(sorted(found.items()))


def _as_started(settings: RunSettings, started: RunStarted) -> RunSettings:
    """Return settings as a resumed run has them, whose configuration may have replaced some."""
    return msgspec.structs.replace(
        settings, mix=started.mix, weight_decay=started.weight_decay, dropout=started.dropout
    )


def _skips(path: list[tuple[_Segment, list[Record]]]) -> Counter[int]:
    """Return the number of steps whose data is skipped after a step."""
    found: Counter[int] = Counter()
    for _, records in path:
        for record in records:
            match record.event:
                case RolledBack(skipped_batches=skipped, to_step=step) if skipped:
                    found[step] += skipped
                case CommandApplied(typed=SkipBatches(steps=steps)):
                    found[record.step] += steps
                case _:
                    pass
    return found


def _changes(
    points: Mapping[int, RunSettings], skips: Mapping[int, int], fresh: RunSettings
) -> Iterator[Change]:
    before = fresh
    for step in sorted({*points, *skips}):
        after = points.get(step, before)
        for command in _commands(before, after):
            yield Change(step, command)
        if skipped := skips.get(step):
            yield Change(step, f"skip {skipped}")
        before = after


def _commands(before: RunSettings, after: RunSettings) -> Iterator[str]:
    """Yield the commands that lead from one setting to another."""
    if after.lr_scale != before.lr_scale:
        yield f"lr scale {after.lr_scale!r}"
    if after.clip_percentile is not None:
        if after.clip_percentile != before.clip_percentile:
            yield f"clip p{after.clip_percentile!r}"
    elif (after.clip, None) != (before.clip, before.clip_percentile):
        yield f"clip {'off' if after.clip is None else repr(after.clip)}"
    if after.nonfinite != before.nonfinite:
        yield f"policy nonfinite {shlex.quote(after.nonfinite)}"
    yield from _of_recipe(before, after)
    if after.mix != before.mix:
        words = [shlex.quote(f"{name}={weight!r}") for name, weight in after.mix.items()]
        yield f"mix {' '.join(words or ['reset'])}"
    for lift, ids in ((True, _without(before, after)), (False, _without(after, before))):
        if ids:
            yield describe_command(Quarantine(ids=ids, lift=lift))


def _of_recipe(before: RunSettings, after: RunSettings) -> Iterator[str]:
    """Yield the commands that lead to another weight decay, dropout and schedule."""
    for verb in ("weight_decay", "dropout"):
        value = getattr(after, verb)
        if value != getattr(before, verb):
            yield f"{verb} {'reset' if value is None else repr(value)}"
    if after.schedule != before.schedule:
        yield describe_command(undo_schedule(ResetLr(), after))


def _without(these: RunSettings, others: RunSettings) -> tuple[str, ...]:
    return tuple(one for one in these.quarantine if one not in others.quarantine)


def _unexplained(
    steps: Mapping[int, StepFinished], points: Mapping[int, RunSettings]
) -> Iterator[int]:
    """Yield the steps that were trained with other settings than the commands account for."""
    starts = sorted(points)
    for step, event in sorted(steps.items()):
        settings = points[max(start for start in starts if start < step)]
        same = event.lr_scale == settings.lr_scale
        if settings.clip_percentile is None:
            same = same and event.clip == settings.clip
        if not same:
            yield step
