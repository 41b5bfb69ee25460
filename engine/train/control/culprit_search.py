"""Culprit search: trains up to the step of an anomaly again, and repeats it with samples replaced.

A sample is replaced as if it were in quarantine. So a test shows what that would do to the step,
for every task, for packed rows and on all ranks. The run's own state is held on the host meanwhile,
and compared by a checksum when it is back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from ...core.replay.culprits import (
    Figures,
    Noise,
    Search,
    SearchResult,
    Suspect,
    Verdict,
    most_tests,
    search,
)
from ...core.replay.replay_plan import PlannedStep, ReplayPlan, Unrepeatable, plan_replay
from ...data.batches.batch_source import BatchSource, HeldPlace
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

SAME = 1e-3
"""Relative difference from the run up to which a repeated step counts as the same. Without
`train.deterministic`, kernels of a GPU may add in another order each time."""

NO_NOISE = Noise(0.0, 0.0)
_plans = msgspec.msgpack.Decoder(ReplayPlan)
_ids = msgspec.msgpack.Decoder(list[str])
_described = msgspec.msgpack.Decoder(list[Culprit])


class RepeatableState(ExactState, Protocol):
    """An exact state that can be held in memory and put back."""

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
    describe: Callable[[Example], tuple[str, list[str]]]
    """Returns the beginning of a sample's text, and its first tokens as text."""
    accumulate: int
    """Micro-batches of a step."""
    in_batch_negatives: bool
    """Whether samples of a step are negatives of each other."""


@dataclass
class _Running:
    """A search in progress."""

    plan: ReplayPlan
    state: Any
    """The run's own state."""
    place: HeldPlace
    """The run's own place in the data."""
    print: bytes
    """Checksum of the run's own state."""
    own: Counters
    """The run's own counters, for the checksum."""
    base: int = 0
    """Position in the data at the checkpoint."""
    examples: dict[str, Example] = field(default_factory=dict)
    """The samples of this rank in the step of the anomaly, by id."""
    samples: list[str] = field(default_factory=list)
    """The ids of the samples of all ranks."""
    search: Search = field(default_factory=lambda: search((), NO_NOISE))
    present: tuple[str, ...] = ()
    """The samples that are present in the next test."""
    number: int = 0
    """Steps trained again so far."""
    tests: int = 0
    boundary: Any = None
    """The state before the step of the anomaly; None on the way to it."""
    difference: float = 0.0
    result: SearchResult | None = None
    reason: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def step(self) -> PlannedStep:
        """The step that is being repeated."""
        return self.plan.steps[self.number]

    @property
    def testing(self) -> bool:
        """Whether the step is that of the anomaly, which is repeated and not applied."""
        return self.number == len(self.plan.steps) - 1

    def place_samples(
        self, base: int, examples: dict[str, Example], samples: Sequence[str]
    ) -> None:
        """Begin the search among the samples of all ranks, of which this rank has the examples."""
        self.base, self.examples = base, examples
        self.samples = list(dict.fromkeys(samples))
        self.search = search(self.samples, self.plan.noise)
        self.present = next(self.search)

    @property
    def left_out(self) -> set[str]:
        """The samples that are left out of the step that is repeated.

        They are those in quarantine at the time and, in a test, those that are not present in it.
        """
        out = set(self.step.quarantine)
        return out | {*self.samples} - {*self.present} if self.testing else out

    def mark(self, boundary: Callable[[], Any]) -> None:
        """Keep the state before the step of the anomaly, the first time that it is repeated."""
        if self.testing and self.boundary is None:
            self.boundary = boundary()

    def passed(self) -> None:
        """Go on to the next step."""
        self.number += 1

    def differ(self, difference: float) -> None:
        """Take note of a difference from the run."""
        self.difference = max(self.difference, difference)

    def tested(self, figures: Figures) -> None:
        """Pass the figures of a test to the search, which gives the next test or its result."""
        self.tests += 1
        try:
            self.present = self.search.send(figures)
        except StopIteration as end:
            self.result = end.value

    def stop(self, verdict: Verdict, reason: str) -> None:
        """End the search early."""
        self.result, self.reason = SearchResult(verdict), reason


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
        return self._now.step.clip if self._now else None

    def begin(self, anomaly: str) -> tuple[str, str]:
        """Hold the run's own state and restore the checkpoint before an anomaly.

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
            plan,
            state=self._parts.state.hold(),
            place=self._parts.source.hold(),
            print=self._parts.state.fingerprint(own),
            own=own,
        )
        self._event_log.hold_step()
        try:
            self._go_back(now)
        except Impossible:
            self._event_log.release_step()
            raise
        self._now = now
        return "", (
            f"step {plan.steps[-1].step} again, from {plan.checkpoint} on, then at most "
            f"{most_tests(len(now.samples))} tests of its {len(now.samples)} samples"
        )

    def _go_back(self, now: _Running) -> None:
        """Restore the checkpoint, and look up the samples of the anomaly's step.

        Raises:
            Impossible: the checkpoint cannot be used, or the samples cannot be replaced; the run's
                own state is in place.
        """
        try:
            _, counters = self._checkpointer.restore(now.plan.checkpoint)
        except CheckpointError as error:
            raise Impossible(str(error)) from None
        last = now.plan.steps[-1]
        examples = self._examples(counters.position + last.position, last)
        mine = msgspec.msgpack.encode(list(examples))
        every = [_ids.decode(data) for data in self._agreement.gather(mine)]
        now.place_samples(counters.position, examples, [one for ids in every for one in ids])
        batches = self._parts.source.batches
        if reason := batches.why_not_kept_out({*now.samples, *last.quarantine}):
            self._parts.state.put_back(now.state)
            raise Impossible(f"the samples of step {last.step} cannot be replaced: {reason}")

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

    def _examples(self, position: int, step: PlannedStep) -> dict[str, Example]:
        """Return the samples of this rank in a step, by id."""
        take, out = self._parts.source.batches.take, frozenset(step.quarantine)
        found: dict[str, Example] = {}
        for number in range(self._parts.accumulate):
            for example in take(position + number, out):
                found |= {one.id: one for one in samples_of(example)}
        return found

    def next_step(self) -> bool:
        """Prepare the next step; False after the last one, when the run's own state is back.

        Raises:
            TrainingFailed: the run's own state could not be put back exactly.
        """
        now = self._now
        if now is None:
            return False
        if now.result is None and self._ends():
            now.stop("interrupted", "another command came")
        if now.result is not None:
            self._finish(now, now.result)
            return False
        position = now.base + now.step.position
        now.mark(lambda: self._parts.state.mark(position))
        self._parts.source.replay_at(position, now.left_out)
        most = len(now.plan.steps) - 1 + most_tests(len(now.samples))
        self._event_log.progress(f"culprit of {now.plan.anomaly}", now.number + now.tests, most)
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
        figures = Figures(sum(shares) / len(shares), rows[0][1])
        if not now.testing or now.tests == 0:
            self._compare(now, figures)
        if now.testing and now.result is None:
            now.tested(figures)
        self._parts.set_lr(now.step.lr)

    def _compare(self, now: _Running, got: Figures) -> None:
        """End the search if a repeated step differs from the run by more than the share `SAME`."""
        step = now.step
        pairs = ((got.loss, step.loss), (got.grad_norm, step.grad_norm))
        difference = max(relative_difference(*pair) for pair in pairs)
        now.differ(difference)
        if difference > SAME:
            now.stop(
                "not repeated",
                f"step {step.step} came to loss {got.loss:.6g} and gradient norm "
                f"{got.grad_norm:.6g}, in the run to {step.loss:.6g} and {step.grad_norm:.6g}",
            )

    def may_update(self) -> bool:
        """Return whether the optimizer may change the weights.

        False for the step of the anomaly, for a step whose update the run refused, and once the
        search has ended.
        """
        now = self._now
        return now is not None and now.result is None and not now.testing and not now.step.skipped

    def end_step(self) -> bool:
        """Return whether the step counts; that of the anomaly is undone first and does not."""
        now = self._now
        assert now is not None, "a replay is running"
        if now.boundary is not None:
            self._parts.state.return_to(now.boundary)
            return False
        if now.result is None:
            now.passed()
        return True

    def _finish(self, now: _Running, result: SearchResult) -> None:
        """Put the run's own state back, and record what was found.

        Raises:
            TrainingFailed: the state is not the one that was held.
        """
        self._parts.state.put_back(now.state)
        self._parts.source.put_back(now.place)
        self._event_log.release_step()
        self._now = None
        if self._parts.state.fingerprint(now.own) != now.print:
            raise TrainingFailed(
                f"after the search for culprits of {now.plan.anomaly} the training state is not "
                "the one before it, so the run ends; resume it from its newest checkpoint"
            )
        found = CulpritsFound(
            anomaly=now.plan.anomaly,
            anomaly_step=now.plan.steps[-1].step,
            search=self._described(now, result),
        )
        self._event_log.progress(f"culprit of {now.plan.anomaly}", 1, 1)
        self._event_log.record(found)
        self._event_log.log("info", f"culprits of {found.anomaly}: {culprit_headline(found)}")

    def _described(self, now: _Running, result: SearchResult) -> CulpritSearch:
        whole, replaced = result.whole, result.replaced
        return CulpritSearch(
            verdict=result.verdict,
            reason=now.reason,
            checkpoint=now.plan.checkpoint,
            steps=now.number,
            tests=now.tests,
            samples=len(now.samples),
            loss=whole.loss if whole else None,
            grad_norm=whole.grad_norm if whole else None,
            loss_replaced=replaced.loss if replaced else None,
            grad_norm_replaced=replaced.grad_norm if replaced else None,
            culprits=self._culprits(now, result),
            group=result.group,
            difference=now.difference,
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
    """Return by which share culprits are ranked; one whose figures are not finite comes first."""
    shares = culprit.loss_share, culprit.grad_norm_share
    return max(math.inf if share is None else share for share in shares)


def relative_difference(got: float, expected: float) -> float:
    """Return the relative difference of two figures.

    It is 0 if both are not finite, and infinite if one of them is not.
    """
    if not math.isfinite(got) or not math.isfinite(expected):
        return 0.0 if math.isfinite(got) == math.isfinite(expected) else math.inf
    return abs(got - expected) / max(abs(expected), 1e-12)


def samples_of(example: Example) -> Sequence[Example]:
    """Return the samples in an example, of which a packed row has several."""
    return example.documents if isinstance(example, PackedExample) else [example]
