"""Real engine ranks at the price of a fork: every process starts with the training stack loaded.

A fork server imports the stack once; each rank is then a process of its own that runs the engine's
own `main` with the environment torchrun would give it. Signals, kills, gloo and files are real.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from fttui.engine.config.load import load_config
from fttui.engine.protocol.codec import decode_record, encode
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import AnyEvent, Event, Record, StateChanged, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.journal import FrameReader, FrameWriter
from fttui.engine.run.processes.marks import Endpoint, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory, create_run
from tests.support.ports import free_port
from tests.support.waiting import until

PATIENCE_S = 90.0
PRELOAD = (
    "tests.conftest",
    "fttui.engine.__main__",
    "tests.support.training",
    "fttui.engine.train.distributed.place",
    "transformers.models.llama.modeling_llama",
    "tests.faults",
)
SETTINGS: dict[str, object] = {
    "train__steps": 60,
    "train__devices": 2,
    "train__batch": 2,
    "train__lr": 0.002,
    "checkpoint__every": 4,
    "checkpoint__keep": 50,
    "eval__every": 0,
    "hub__idle_s": 2,
}
"""Of every run on the stage, so that one fault-free run is the reference of all."""

Sabotage = Callable[[int], None]
"""Called with the rank in each rank's process before the engine starts; picklable."""
E = TypeVar("E", bound=Event)


class Stage:
    """Starts engines; one per harness run, with one fork server behind it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(list(PRELOAD))
        self._template: tuple[Path, list[str]] | None = None
        self._references: dict[int, dict[int, float]] = {}

    def spawn(self, target: Callable[..., object], *arguments: object) -> ForkServerProcess:
        """Run a function of a module in a process of its own."""
        process = self.processes.Process(target=target, args=arguments)
        process.start()
        return process

    def new_run(self, **overrides: object) -> RunDirectory:
        """A folder for a tiny run; the model is made on first use."""
        settings = {**SETTINGS, **overrides}
        path = self._config()
        sets = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
        loaded = load_config(path, sets)
        return create_run(
            self._folder / "runs",
            name="fault",
            config=path,
            source=loaded.source,
            resolved=loaded.resolved,
            overrides=sets,
            version="0",
        )

    def _config(self) -> Path:
        path = self._folder / "tiny.yaml"
        if not path.exists():
            process = self.spawn(_write_template, self._folder)
            process.join(PATIENCE_S)
            assert process.exitcode == 0, "the tiny model could not be made"
        return path

    def start(
        self,
        run: RunDirectory,
        *,
        ranks: int = 2,
        sabotage: Sabotage | None = None,
        resume: str | None = None,
        hub: bool = False,
        attempt: tuple[int, int] = (0, 0),
    ) -> Ranks:
        """Start an engine on a run; without a hub the commands come from here.

        `attempt` is which start of the ranks this is and how many restarts are allowed.
        """
        environments = _environments(ranks, attempt)
        return Ranks(self, run, environments, sabotage, resume, hub=hub)

    def reference(self, ranks: int = 2) -> dict[int, float]:
        """Loss by step of a fault-free run."""
        if ranks not in self._references:
            run = self.new_run(train__devices=ranks)
            with self.start(run, ranks=ranks) as engine:
                assert engine.join() == [0] * ranks, "the fault-free run failed"
            self._references[ranks] = losses(read_journal(run))
        return self._references[ranks]


class Ranks:
    """The processes of one engine, what each of them saw, and the commands they get."""

    def __init__(
        self,
        stage: Stage,
        run: RunDirectory,
        environments: list[dict[str, str]],
        sabotage: Sabotage | None,
        resume: str | None,
        *,
        hub: bool,
    ) -> None:
        self.run = run
        self._control: ControlWriter | None = None
        if not hub:
            self._control = ControlWriter(run)
            me = ProcessMark.current()
            write_mark(run.endpoint, Endpoint(pid=me.pid, started=me.started, folder="/none"))
        launch = time.monotonic_ns()
        files = [run.logs / f"witness-{launch}-{rank}.log" for rank in range(len(environments))]
        self._witnesses = [FrameReader(file) for file in files]
        self._seen: list[list[Record]] = [[] for _ in files]
        self.processes = [
            stage.spawn(_be_rank, run, rank, environment, files[rank], sabotage, resume)
            for rank, environment in enumerate(environments)
        ]

    def send(self, text: str) -> str:
        """Hand a command over as the hub would; returns its id."""
        assert self._control is not None, "the hub takes the commands of this engine"
        return self.entry(self._control, text)

    @staticmethod
    def entry(control: ControlWriter, text: str) -> str:
        """Append an accepted command to a control journal; returns its id."""
        seq = control.last_seq + 1
        entry = ControlEntry(
            seq=seq, time=time.time(), id=f"c{seq}", command=parse_command(text), issuer="fault"
        )
        control.append(entry)
        return entry.id

    def seen(self, rank: int = 0) -> list[Record]:
        """What a rank recorded so far; times are monotonic seconds."""
        for payload in self._witnesses[rank]:
            record = decode_record(payload)
            assert record is not None
            self._seen[rank].append(record)
        return self._seen[rank]

    def events(self, kind: type[E], rank: int = 0) -> list[E]:
        """Events of one kind that a rank recorded."""
        return [r.event for r in self.seen(rank) if isinstance(r.event, kind)]

    def step(self, rank: int = 0) -> int:
        """The last step a rank finished."""
        return max(
            (r.step for r in self.seen(rank) if isinstance(r.event, StepFinished)), default=0
        )

    def state(self, rank: int = 0) -> RunState | None:
        """The state a rank is in."""
        states = self.events(StateChanged, rank)
        return states[-1].state if states else None

    def until(self, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Wait for a condition; fail at once when a rank ends meanwhile."""
        until(lambda: condition() or not self.alive, timeout_s)
        assert condition(), f"a rank ended: exit codes {[p.exitcode for p in self.processes]}"

    def until_step(self, step: int) -> None:
        """Wait until every rank has finished a step."""
        everyone = range(len(self.processes))
        self.until(lambda: all(self.step(rank) >= step for rank in everyone))

    def until_state(self, state: RunState) -> None:
        """Wait until every rank is in a state."""
        everyone = range(len(self.processes))
        self.until(lambda: all(self.state(rank) is state for rank in everyone))

    def outcome(self, id_: str, rank: int = 0) -> Record:
        """Wait for a command's outcome on a rank."""
        self.until(lambda: self._outcomes(id_, rank))
        return self._outcomes(id_, rank)[0]

    def _outcomes(self, id_: str, rank: int) -> list[Record]:
        return outcomes(self.seen(rank)).get(id_, [])

    @property
    def alive(self) -> bool:
        """Every rank runs."""
        return all(process.is_alive() for process in self.processes)

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid or 0 for process in self.processes]

    def signal(self, number: int, rank: int) -> None:
        """Signal one rank."""
        os.kill(self.pids[rank], number)

    def join(self, timeout_s: float = PATIENCE_S) -> list[int | None]:
        """Exit codes once all ranks ended; None for one that did not in time."""
        deadline = time.monotonic() + timeout_s
        waiting = {process.sentinel for process in self.processes}
        while waiting and (left := deadline - time.monotonic()) > 0:
            waiting -= {item for item in connection.wait(waiting, left) if isinstance(item, int)}
        return [process.exitcode for process in self.processes]

    def finish(self, step: int = 0) -> None:
        """Let it train up to a step, then stop it; it must end well on every rank."""
        self.until_step(step)
        self.send("stop")
        codes = self.join()
        assert codes == [0] * len(codes), f"exit codes {codes}"

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        if self._control is not None:
            self._control.close()
        if error is not None and self.run.engine_log.exists():
            print(self.run.engine_log.read_text(errors="replace")[-3000:])


def outcomes(records: list[Record]) -> dict[str, list[Record]]:
    """Records that tell a command's outcome, by its id."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if type(record.event).__name__ in ("CommandApplied", "CommandFailed"):
            found.setdefault(str(getattr(record.event, "id", "")), []).append(record)
    return found


def read_journal(run: RunDirectory) -> list[Record]:
    """All records of a run."""
    found = [decode_record(payload) for payload in FrameReader(run.journal)]
    return [record for record in found if record is not None]


def losses(records: list[Record], timeline: int | None = None) -> dict[int, float]:
    """Loss by step, of one timeline or the newest of each step."""
    return {
        record.step: record.event.loss_or_nan
        for record in records
        if isinstance(record.event, StepFinished) and timeline in (None, record.timeline)
    }


def _write_template(folder: Path) -> None:
    from tests.support.training import write_config

    write_config(folder)


def _environments(ranks: int, attempt: tuple[int, int]) -> list[dict[str, str]]:
    """What torchrun tells each rank; nothing for an engine of one rank."""
    if ranks == 1:
        return [{}]
    shared: dict[str, object] = {
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "TORCHELASTIC_RESTART_COUNT": attempt[0],
        "TORCHELASTIC_MAX_RESTARTS": attempt[1],
    }
    own = ({"RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks))
    return [{k: str(v) for k, v in {**shared, **place}.items()} for place in own]


def _be_rank(
    run: RunDirectory,
    rank: int,
    environment: dict[str, str],
    witness: Path,
    sabotage: Sabotage | None,
    resume: str | None,
) -> None:
    """Be one rank of an engine, as torchrun would start it."""
    os.environ.update(environment)
    with open(run.engine_log, "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    import torch

    from fttui.engine.__main__ import main

    torch.set_num_threads(1)
    _witness_events(witness)
    if sabotage is not None:
        sabotage(rank)
    raise SystemExit(main([str(run.path), *(["--from", resume] if resume else [])]))


def _witness_events(path: Path) -> None:
    """Write down what this rank records, also on ranks that do not own the journal."""
    from fttui.engine.train.event_log import EventLog

    frames, lock, tell = FrameWriter(path, path.with_suffix(".lock")), threading.Lock(), []
    record_event = EventLog.record

    def record(self: EventLog, event: AnyEvent) -> None:
        with lock:
            tell.append(event)
            seen = Record(
                seq=len(tell),
                time=time.monotonic(),
                step=self.step,
                timeline=self.timeline,
                event=event,
            )
            frames.append(encode(seen))
        record_event(self, event)

    EventLog.record = record  # type: ignore[method-assign]  # every rank's witness
