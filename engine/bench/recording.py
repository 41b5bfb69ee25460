"""Puts results into the journal of a run: through its hub while it is live, else directly.

Only one process writes a journal. While an engine works, that is the engine, which records the
result at its next step boundary; afterwards nobody does, and the result is appended here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import zmq

from ..config.load import read_resolved
from ..errors import CommandRejected, FttuiError, NotOwner
from ..hub.ssh_bridge.hub_client import OWN_REF, HubClient
from ..protocol.benchmarks.result import (
    BenchmarkFinished,
    BenchmarkResult,
    BenchmarkScore,
    same_conditions,
)
from ..protocol.codec import PROTOCOL_VERSION
from ..protocol.commands import AddNote
from ..protocol.events import CheckpointSaved, CommandApplied, CommandFailed, Record
from ..protocol.requests import Accepted, Hello, Rejected, SubmitCommand
from ..run.checkpoint_store import CheckpointStore
from ..run.journal import JournalLocked
from ..run.processes.marks import read_engine_status
from ..run.records.record_feed import RecordFeed, engine_works
from ..run.run_dir import RunDirectory
from ..train.journal_writer import JournalWriter

ISSUER = "fttui bench"
_SUBMIT = 1
"""Number of the request that submits a result."""
_POLL_MS = 100
_HUB_PATIENCE_S = 60.0
"""Seconds until a hub has to answer; without one it is started meanwhile."""
_LOCK_PATIENCE_S = 60.0
"""Seconds for which the journal may be locked by an engine that ends or starts."""
_SLOW_S = 20.0


class ResultJournal:
    """The results of benchmarks in the journal of a run, and the way for new ones."""

    def __init__(self, run: RunDirectory, say: Callable[[str], None]) -> None:
        """Read the results so far.

        Raises:
            FttuiError: an engine of another machine works on the run.
            OSError: the journal cannot be read.
        """
        engine = read_engine_status(run)
        if engine.alive and engine.host:
            raise FttuiError(
                f"{run.id} trains on {engine.host}, whose processes this machine cannot reach; run "
                "fttui bench there"
            )
        self._run, self._say = run, say
        self._feed = RecordFeed(run)
        self.results: list[BenchmarkResult] = []
        """The results in the journal, in the order in which they were recorded."""
        self._places: dict[str, tuple[int, int]] = {}
        """Step and timeline of each checkpoint that was ever saved."""
        self._newest: Record | None = None
        self._outcomes: dict[str, str] = {}
        self._follow()

    def _follow(self) -> None:
        while records := self._feed.read():
            for record in records:
                self._newest = record
                match record.event:
                    case BenchmarkFinished(result=result):
                        self.results.append(result)
                    case CheckpointSaved(name=name):
                        self._places[name] = record.step, record.timeline
                    case CommandApplied(id=id_):
                        self._outcomes[id_] = ""
                    case CommandFailed(id=id_, reason=reason):
                        self._outcomes[id_] = reason

    def known_base(self, result: BenchmarkResult) -> dict[str, BenchmarkScore]:
        """Return the scores of the base model under the conditions of a result; empty if unknown.

        They are those of an earlier result of the same task.
        """
        for earlier in reversed(self.results):
            if earlier.task == result.task and same_conditions(earlier, result):
                found = _base_of(earlier.scores)
                if found:
                    return found
        return {}

    def others(self, result: BenchmarkResult) -> Sequence[BenchmarkResult]:
        """Return earlier results of the same task that were measured under other conditions."""
        same_task = [one for one in self.results if one.task == result.task and not one.error]
        return [one for one in same_task if not same_conditions(one, result)]

    def record_failure(self, checkpoint: str, tasks: str, error: str) -> None:
        """Record that tasks could not be measured on a checkpoint.

        Raises:
            FttuiError: it cannot be recorded.
        """
        step, timeline = self._places.get(checkpoint, (0, 1))
        self.record(
            BenchmarkResult(
                task=tasks,
                checkpoint=checkpoint,
                step=step,
                timeline=timeline,
                scores={},
                error=error,
            )
        )

    def record(self, result: BenchmarkResult) -> None:
        """Record a result, whether the run is live or not.

        Raises:
            CommandRejected: the run refuses the result.
            FttuiError: it has no hub, or its journal is written by another process.
        """
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            if engine_works(self._run):
                if self._submitted(result):
                    break
                deadline = time.monotonic() + _LOCK_PATIENCE_S
            try:
                self._append(result)
                break
            except JournalLocked as error:
                if time.monotonic() > deadline:
                    raise FttuiError(
                        f"{error}; its writer is not an engine of this run, which could "
                        f"record the result, so it is lost: {result.text}"
                    ) from None
                time.sleep(0.5)
        self._follow()

    def _append(self, result: BenchmarkResult) -> None:
        """Append a result to the journal of a run on which no engine works.

        Raises:
            JournalLocked: a process has the journal.
            OSError: the journal or the manifest cannot be written.
        """
        self._follow()
        writer = JournalWriter(self._run, lambda run: None, in_thread=False)
        try:
            newest = self._newest
            writer.emit(
                BenchmarkFinished(result=result, after_end=True),
                step=newest.step if newest else result.step,
                timeline=newest.timeline if newest else result.timeline,
            )
            if read_resolved(self._run.config).eval.benchmarks.decides_by(result):
                CheckpointStore(self._run).add_metrics(result.checkpoint, result.metrics)
        finally:
            writer.close()

    def _submitted(self, result: BenchmarkResult) -> bool:
        """Let the engine record a result; return False if it ends before it has done so.

        Raises:
            CommandRejected: the run refuses the result.
            FttuiError: no hub can be reached.
        """
        viewer = f"bench-{secrets.token_hex(6)}"
        hello = Hello(ref=OWN_REF, version=PROTOCOL_VERSION, viewer=viewer, issuer=ISSUER)
        note = AddNote(text=result.text, result=result)
        client = HubClient(self._run, hello)
        try:
            return self._sent(client, viewer, note)
        finally:
            client.close()

    def _sent(self, client: HubClient, viewer: str, note: AddNote) -> bool:
        id_ = f"c-{secrets.token_hex(8)}"
        command = SubmitCommand(
            ref=_SUBMIT, id=id_, command=note, viewer=viewer, issuer=ISSUER, one_shot=True
        )
        client.ask(command)  # it waits until the hub has answered the greeting
        started, accepted = time.monotonic(), False
        patience_s = _SLOW_S
        while engine_works(self._run):
            client.maintain(time.monotonic())
            _wait(client)
            for reply in client.replies():
                if isinstance(reply, Accepted) and reply.ref == _SUBMIT:
                    accepted = True
                elif isinstance(reply, Rejected) and reply.ref == _SUBMIT:
                    return self._refused(reply.reason)
            if client.refusal:
                raise NotOwner(client.refusal)
            self._follow()
            if id_ in self._outcomes:
                return not self._outcomes[id_]
            waited_s = time.monotonic() - started
            if not accepted and waited_s > _HUB_PATIENCE_S:
                raise FttuiError(f"the hub of {self._run.id} does not answer; see logs/hub.log")
            if accepted and waited_s > patience_s:
                self._say("the run records it at the end of the step that it is in")
                patience_s = float("inf")
        self._follow()
        return self._outcomes.get(id_) == ""

    def _refused(self, reason: str) -> bool:
        """Return False if the run has ended meanwhile, so that the result can be appended."""
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while engine_works(self._run) and "takes no commands" in reason:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        if engine_works(self._run):
            raise CommandRejected(f"the run does not take the result: {reason}")
        return False


def _wait(client: HubClient) -> None:
    """Wait a moment, at most until the hub sends something."""
    if not client.sockets:
        time.sleep(_POLL_MS / 1000)
        return
    poller = zmq.Poller()
    for socket in client.sockets:
        poller.register(socket, zmq.POLLIN)
    poller.poll(_POLL_MS)
    client.beats()


def _base_of(scores: dict[str, BenchmarkScore]) -> dict[str, BenchmarkScore]:
    return {
        metric: BenchmarkScore(value=score.base, stderr=score.base_stderr)
        for metric, score in scores.items()
        if score.base is not None
    }
