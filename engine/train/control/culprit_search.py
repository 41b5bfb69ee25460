"""Culprit search: trains up to the step of an anomaly again, and repeats it with samples replaced.

A sample is replaced as if it were in quarantine. So a test shows what that would do to the step,
for every task, for packed rows and on all ranks. The run's own state is held on the host meanwhile,
and compared by a checksum when it is back. If the cause may lie in an earlier step, a second copy
holds the state from which the tests of the earlier steps begin.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from ...core.replay.course import Course
from ...core.replay.culprits import Figures, SearchResult, Suspect, most_tests
from ...core.replay.replay_plan import PlannedStep, ReplayPlan, Unrepeatable, plan_replay
from ...data.batches.batch_source import BatchSource, HeldPlace
from ...data.batches.mixing import MixChanges
from ...data.tokens.examples import Example, PackedExample
from ...errors import CheckpointError, TrainingFailed
from ...protocol.codec import decode_readable
from ...protocol.culprit_text import culprit_headline
from ...protocol.event_parts import Culprit, CulpritSearch
from ...protocol.events import CulpritsFound, Record
from ...protocol.settings import RunSettings
from ...run.journal import FrameReader
from ...run.run_dir import RunDirectory
from ..checkpoint.checkpointer import Checkpointer
from ..checkpoint.counters import Counters
from ..checkpoint.exact_state import ExactState
from ..distributed.agreement import Agreement
from ..event_log import EventLog
from .command_scheduler import Impossible

_plans = msgspec.msgpack.Decoder(ReplayPlan)
_ids = msgspec.msgpack.Decoder(list[str])
_described = msgspec.msgpack.Decoder(list[Culprit])


class RepeatableState(ExactState, Protocol):
    """An exact state that can be kept in memory and restored."""

    @property
    def why_not_repeated(self) -> str:
        """Why no step can be repeated and undone; empty if it can."""

    def hold(self) -> Any:
        """Return a copy of the whole live state on the host."""

    def put_back(self, held: Any) -> None:
        """Restore what `hold` has returned."""


@dataclass(frozen=True, kw_only=True)
class Repeatable:
    """The parts of a trainer whose steps can be repeated."""

    state: RepeatableState
    source: BatchSource
    set_lr: Callable[[float], None]
    """Sets the learning rate of the next update."""
    prepare: Callable[[RunSettings], None]
    """Puts the settings in force that a step is trained with from its first batch on."""
    prepared: Callable[[], RunSettings]
    """Returns the settings that were put in force last, as far as they belong to these."""
    describe: Callable[[Example], tuple[str, list[str]]]
    """Returns the beginning of a sample's text, and its first tokens as text."""
    accumulate: int
    """Micro-batches of a step."""
    in_batch_negatives: bool
    """Whether samples of a step are negatives of each other."""


@dataclass
class _Running:
    """A search in progress."""

    course: Course
    state: Any
    """The run's own state."""
    place: HeldPlace
    """The run's own place in the data."""
    print: bytes
    """Checksum of the run's own state."""
    own: Counters
    """The run's own counters, for the checksum."""
    prepared: RunSettings
    """The settings that the run's newest step was trained with."""
    base: int = 0
    """Position in the data at the checkpoint."""
    changes: MixChanges = ()
    """Changes of the weights of the sources up to the checkpoint."""
    examples: dict[str, Example] = field(default_factory=dict)
    """The samples of this rank in the step that is searched, by id."""
    boundary: Any = None
    """The state before the step of the anomaly, when its own samples are searched."""
    start: Any = None
    """A copy of the state before the first of the earlier steps, when they are searched."""
    started: float = field(default_factory=time.monotonic)

    def begin_at(self, counters: Counters) -> None:
        """Take the position in the data of the checkpoint that was restored, and its mix."""
        self.base, self.changes = counters.position, counters.mix

    def mix_at(self, step: PlannedStep, source: BatchSource) -> MixChanges:
        """Return the changes of the weights of the sources with which a step was made."""
        changes = self.changes
        for one in self.course.plan.steps:
            if one.step <= step.step:
                changes = source.changes_after(changes, self.base + one.position, one.mix)
        return changes

    def examine(self, examples: dict[str, Example], samples: Sequence[str]) -> None:
        """Begin to search samples, given by their ids on all ranks and this rank's examples."""
        self.examples = examples
        self.course.examine(samples)

    def keep_way_back(self, state: RepeatableState) -> None:
        """Keep the present state if the first step of the tests is next and none is kept yet."""
        course = self.course
        if course.number != course.first:
            return
        if not course.early and self.boundary is None:
            self.boundary = state.mark(self.base + course.step.position)
        if course.early and self.start is None:
            self.boundary, self.start = None, state.hold()

    def go_back(self, state: RepeatableState) -> None:
        """Restore the state from which tests begin, after a test."""
        if self.start is None:
            state.return_to(self.boundary)
        else:
            state.put_back(self.start)
        self.course.again()


class CulpritFinder:
    """Implements `StepReplay`: finds the samples that raise loss or norm of an anomaly's step."""

    def __init__(
        self,
        run: RunDirectory,
        parts: Repeatable,
        checkpointer: Checkpointer,
        event_log: EventLog,
        agreement: Agreement,
        ends: Callable[[], bool],
    ) -> None:
        """Wait for a command.

        Args:
            run: the run, whose journal is read.
            parts: what a step consists of.
            checkpointer: restores the checkpoint before the anomaly.
            event_log: receives the progress and the result.
            agreement: of the ranks.
            ends: returns, on all ranks together, whether a command ends the search.
        """
        self._run = run
        self._parts = parts
        self._checkpointer = checkpointer
        self._event_log = event_log
        self._agreement = agreement
        self._ends = ends
        self._now: _Running | None = None

    @property
    def running(self) -> bool:
        """Whether steps are being repeated."""
        return self._now is not None

    @property
    def clip(self) -> float | None:
        """Max gradient norm of the step that is repeated; None if there was no limit."""
        return self._now.course.step.clip if self._now else None

    def begin(self, anomaly: str) -> tuple[str, str]:
        """Save the run's own state and restore the checkpoint before an anomaly.

        Return the old and the new value for the journal.

        Raises:
            Impossible: the steps cannot be repeated; nothing was changed.
            TrainingFailed: the ranks have restored different states.
        """
        if reason := self._parts.state.why_not_repeated:
            raise Impossible(reason)
        plan = self._plan(anomaly)
        own = self._own_counters()
        now = _Running(
            Course(plan),
            state=self._parts.state.hold(),
            place=self._parts.source.hold(),
            print=self._parts.state.fingerprint(own),
            own=own,
            prepared=self._parts.prepared(),
        )
        self._event_log.hold_step()
        try:
            self._restore(now)
            if reason := self._examine(now):
                self._parts.state.put_back(now.state)
                raise Impossible(reason)
        except Impossible:
            self._event_log.release_step()
            raise
        self._now = now
        return "", _cost(plan, len(now.course.samples))

    def _restore(self, now: _Running) -> None:
        """Restore the checkpoint of the plan.

        Raises:
            Impossible: the checkpoint cannot be used; the state is the one before.
        """
        try:
            _, counters = self._checkpointer.restore(now.course.plan.checkpoint)
        except CheckpointError as error:
            raise Impossible(str(error)) from None
        now.begin_at(counters)

    def _examine(self, now: _Running) -> str:
        """Begin the search among the samples of the step `cause`.

        Return why it cannot begin; empty if it has begun. All ranks call it together.
        """
        step = now.course.cause
        examples = self._examples(now, step)
        mine = msgspec.msgpack.encode(list(examples))
        every = [_ids.decode(data) for data in self._agreement.gather(mine)]
        samples = [one for ids in every for one in ids]
        batches = self._parts.source.batches
        if reason := batches.why_not_replaced({*samples, *step.quarantine}):
            return f"the samples of step {step.step} cannot be replaced: {reason}"
        now.examine(examples, samples)
        return ""

    def _own_counters(self) -> Counters:
        return Counters(
            step=self._event_log.step,
            position=self._parts.source.position,
            desired=RunSettings(),
        )

    def _plan(self, anomaly: str) -> ReplayPlan:
        """Return rank 0's plan on every rank; a collective.

        Raises:
            Impossible: the step cannot be repeated; the text is rank 0's reason.
        """
        refused, found = "", b""
        if self._agreement.rank == 0:
            self._event_log.sync()
            known = [one.name for one in self._checkpointer.ledger.all()]
            try:
                plan = plan_replay(self._records, anomaly, known, self._parts.accumulate)
                found = msgspec.msgpack.encode(plan)
            except Unrepeatable as reason:
                refused = str(reason)
        shared = self._agreement.share(found)
        if not shared:
            raise Impossible(self._agreement.share(refused.encode()).decode())
        return _plans.decode(shared)

    def _records(self) -> Iterator[Record]:
        records = (decode_readable(payload) for payload in FrameReader(self._run.journal))
        return (record for record in records if record is not None)

    def _examples(self, now: _Running, step: PlannedStep) -> dict[str, Example]:
        """Return the samples of this rank in a step, by id."""
        take, out = self._parts.source.batches.take, frozenset(step.quarantine)
        position, changes = now.base + step.position, now.mix_at(step, self._parts.source)
        found: dict[str, Example] = {}
        for number in range(self._parts.accumulate):
            for example in take(position + number, out, changes):
                found |= {one.id: one for one in samples_of(example)}
        return found

    def next_step(self) -> bool:
        """Prepare the next step; False after the last one, when the run's own state is back.

        Raises:
            TrainingFailed: the run's own state could not be restored exactly.
        """
        now = self._now
        if now is None:
            return False
        course = now.course
        if course.result is None and self._ends():
            course.stop("interrupted", "another command came")
        while course.result is not None:
            if not self._goes_earlier(now):
                self._finish(now, course.result)
                return False
        now.keep_way_back(self._parts.state)
        source, step = self._parts.source, course.step
        self._parts.prepare(RunSettings(weight_decay=step.weight_decay, dropout=step.dropout))
        source.replay_at(now.base + step.position, course.left_out, now.mix_at(step, source))
        self._event_log.progress(f"culprit of {course.plan.anomaly}", course.trained, course.most)
        return True

    def _goes_earlier(self, now: _Running) -> bool:
        """Begin to search the samples of an earlier step; return False if the search is over.

        All ranks call it together.
        """
        course = now.course
        if not course.go_earlier():
            return False
        try:
            if now.start is None:
                self._restore(now)
            reason = self._examine(now)
        except Impossible as error:
            reason = str(error)
        if reason:
            course.give_up(f"the steps before were not searched: {reason}")
            return False
        return True

    def judge(self, loss: float, grad_norm: float) -> None:
        """Compare the figures of the step with those of the run, or pass them to the search.

        The learning rate is set to the one that the run had at this step. A collective.

        Args:
            loss: this rank's share of the loss.
            grad_norm: gradient norm over all ranks, before clipping.
        """
        now = self._now
        assert now is not None, "a replay is running"
        rows = self._agreement.rows([loss, grad_norm])
        shares = [share for share, _ in rows]
        # The norm is that of rank 0, so that all ranks decide alike whatever the last bit is.
        now.course.judge(Figures(sum(shares) / len(shares), rows[0][1]))
        self._parts.set_lr(now.course.step.lr)

    def may_update(self) -> bool:
        """Return whether the optimizer may change the weights.

        False for the step of the anomaly, for a step whose update the run refused, and once the
        search has ended.
        """
        return self._now is not None and self._now.course.may_update

    def end_step(self) -> bool:
        """Return whether the step counts; that of the anomaly is undone first and does not."""
        now = self._now
        assert now is not None, "a replay is running"
        course = now.course
        if not course.at_anomaly:
            if course.result is None:
                course.passed()
            return True
        now.go_back(self._parts.state)
        return False

    def _finish(self, now: _Running, result: SearchResult) -> None:
        """Restore the run's own state, and record what was found.

        Raises:
            TrainingFailed: the state is not the one that was held.
        """
        anomaly = now.course.plan.anomaly
        self._parts.state.put_back(now.state)
        self._parts.source.put_back(now.place)
        self._parts.prepare(now.prepared)
        self._event_log.release_step()
        self._now = None
        if self._parts.state.fingerprint(now.own) != now.print:
            raise TrainingFailed(
                f"after the search for culprits of {anomaly} the training state is not "
                "the one before it, so the run ends; resume it from its newest checkpoint"
            )
        found = CulpritsFound(
            anomaly=anomaly,
            anomaly_step=now.course.plan.steps[-1].step,
            search=self._described(now, result),
        )
        self._event_log.progress(f"culprit of {anomaly}", 1, 1)
        self._event_log.record(found)
        self._event_log.log("info", f"culprits of {found.anomaly}: {culprit_headline(found)}")

    def _described(self, now: _Running, result: SearchResult) -> CulpritSearch:
        whole, replaced, course = result.whole, result.replaced, now.course
        names = [one.id for one in result.culprits]
        return CulpritSearch(
            verdict=result.verdict,
            reason=course.reason,
            checkpoint=course.plan.checkpoint,
            steps=course.steps,
            tests=course.tests,
            samples=len(course.samples),
            cause_step=course.cause.step,
            earlier=course.searched_earlier,
            why_not_quarantined=self._parts.source.batches.why_not_kept_out(names),
            loss=whole.loss if whole else None,
            grad_norm=whole.grad_norm if whole else None,
            loss_replaced=replaced.loss if replaced else None,
            grad_norm_replaced=replaced.grad_norm if replaced else None,
            culprits=self._culprits(now, result),
            group=result.group,
            difference=course.difference,
            in_batch_negatives=self._parts.in_batch_negatives,
            seconds=time.monotonic() - now.started,
        )

    def _culprits(self, now: _Running, result: SearchResult) -> list[Culprit]:
        """Return the culprits as the ranks that trained on them describe them; a collective.

        Those with the largest shares come first.
        """
        found = {one.id: self._culprit(one, now, result) for one in result.culprits}
        mine = [one for name, one in found.items() if name in now.examples]
        every = self._agreement.gather(msgspec.msgpack.encode(mine))
        known = [one for data in every for one in _described.decode(data)]
        by_id = {one.id: one for one in reversed(known)}
        in_words = [by_id.get(name, one) for name, one in found.items()]
        return sorted(in_words, key=_share, reverse=True)

    def _culprit(self, suspect: Suspect, now: _Running, result: SearchResult) -> Culprit:
        assert result.whole is not None
        assert result.replaced is not None
        example = now.examples.get(suspect.id)
        text, pieces = self._parts.describe(example) if example else ("", [])
        return Culprit(
            id=suspect.id,
            place=example.place if example else "",
            rank=self._agreement.rank,
            tokens=example.length if example else 0,
            text=text,
            pieces=pieces,
            loss=suspect.present.loss,
            loss_without=suspect.absent.loss,
            grad_norm=suspect.present.grad_norm,
            grad_norm_without=suspect.absent.grad_norm,
            loss_share=suspect.loss_share(result.whole, result.replaced),
            grad_norm_share=suspect.norm_share(result.whole, result.replaced),
        )


def _share(culprit: Culprit) -> float:
    """Return the share by which a culprit is ranked; one with non-finite figures comes first."""
    shares = culprit.loss_share, culprit.grad_norm_share
    return max(math.inf if share is None else share for share in shares)


def _cost(plan: ReplayPlan, samples: int) -> str:
    """Return the largest number of steps that a search trains, as text for the journal."""
    tests = most_tests(samples)
    text = (
        f"step {plan.steps[-1].step} again, from {plan.checkpoint} on, then at most "
        f"{tests} tests of its {samples} samples"
    )
    wider = plan.wider
    if wider is None:
        return text
    way, each = len(wider.steps) - 1 - wider.earlier, wider.earlier + 1
    steps = way + each * (tests + wider.earlier - 2)
    return (
        f"{text}; if they are not the cause, the samples of the {wider.earlier} steps before it, "
        f"from {wider.checkpoint} on, in at most {steps} steps"
    )


def samples_of(example: Example) -> Sequence[Example]:
    """Return the samples in an example, of which a packed row has several."""
    return example.documents if isinstance(example, PackedExample) else [example]
