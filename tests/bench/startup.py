"""From the command to the first step of the demo, by phases: `python -m tests.bench.startup`.

`--config FILE` starts another run than the demo. `--runs N` repeats it, `--app` opens the app in a
terminal instead of printing lines, `--first` starts with empty caches of fttui, `--cold` also
drops the files of the Python environment and the caches from the memory of the machine, and
`--baseline REV` measures the sources of a git revision in turn with the present ones. `--python`
names the interpreter of another environment, such as one without the packages for development.

On a machine that does other work, too, a process waits for a processor. The kernel counts that for
the main threads that the start depends on: those of the command and of its check of the data, then
that of the engine. `idle` is the wall time without it, and so at least what the same start takes
on idle processors; the waiting of compute threads is still in it. The processor time is that of all
processes of the start together.

Before, the modules of each source tree are compiled, as pip does when it installs them: in a new
checkout, or with PYTHONDONTWRITEBYTECODE, every process would compile all that it imports.
"""

from __future__ import annotations

import argparse
import compileall
import ctypes
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.events import (
    ProgressMade,
    Record,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameReader

ROOT = Path(__file__).parents[2]
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: processes whose parent ended become children of this one."""
_EVERY_S = 0.04
_LIMIT_S = 300.0
PHASES = (
    "command, until the engine's journal",
    "imports, as far as still missing",
    "tokenizer",
    "weights",
    "adapters",
    "data, trainer",
    "checkpoint 0, first step",
)


@dataclass(frozen=True)
class Cost:
    """Seconds since the command, at one moment or between two."""

    wall_s: float = 0.0
    waited_s: float = 0.0
    processor_s: float = 0.0

    @property
    def idle_s(self) -> float:
        """Wall time without waiting for a processor."""
        return self.wall_s - self.waited_s

    def __sub__(self, other: Cost) -> Cost:
        """Return the cost between two moments."""
        return Cost(
            self.wall_s - other.wall_s,
            self.waited_s - other.waited_s,
            self.processor_s - other.processor_s,
        )


@dataclass
class Clock:
    """Samples what the processes of a start have used."""

    began: float
    samples: list[tuple[float, Cost]] = field(default_factory=list)
    _used_s: dict[int, float] = field(default_factory=dict)
    _waited_s: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        """Add a sample."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._used_s[process.pid] = times.user + times.system
                if "fttui.engine.data.validate" in process.cmdline():
                    self.wait_of(process.pid, 0.0)
        now = time.time()
        cost = Cost(now - self.began, sum(self._waited_s.values()), sum(self._used_s.values()))
        self.samples.append((now, cost))

    def wait_of(self, pid: int, since_s: float) -> None:
        """Read how long the main thread of a process has waited, after the first `since_s`."""
        with suppress(OSError, ValueError):
            waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
            self._waited_s[pid] = max(0.0, waited - since_s)

    def waited_by(self, pid: int) -> float:
        """Return how long the main thread of a process has waited so far."""
        with suppress(OSError, ValueError):
            return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        return 0.0

    def at(self, moment: float) -> Cost:
        """Return the cost at a moment, between those of the samples before and after it."""
        before = (self.began, Cost())
        for when, cost in self.samples:
            if when >= moment:
                share = (moment - before[0]) / (when - before[0])
                return Cost(
                    moment - self.began,
                    before[1].waited_s + share * (cost.waited_s - before[1].waited_s),
                    before[1].processor_s + share * (cost.processor_s - before[1].processor_s),
                )
            before = when, cost
        raise ValueError("no sample after that moment")


def moments(records: list[Record]) -> list[float]:
    """Return the ends of `PHASES`, in seconds since the epoch; fewer if not reached."""
    marks: list[Callable[[Record], bool]] = [
        lambda r: isinstance(r.event, RunStarted),
        lambda r: _progress(r, "Loading tokenizer"),
        lambda r: _progress(r, "Loading weights"),
        lambda r: _progress(r, "Attaching adapters"),
        lambda r: _progress(r, "Attaching adapters", whole=True),
        lambda r: isinstance(r.event, StateChanged) and r.event.state is RunState.RUNNING,
        lambda r: isinstance(r.event, StepFinished),
    ]
    found: list[float] = []
    for mark in marks:
        first = next((record.time for record in records if mark(record)), None)
        if first is None:
            return found
        found.append(first)
    return found


def _progress(record: Record, label: str, *, whole: bool = False) -> bool:
    event = record.event
    if not isinstance(event, ProgressMade) or event.label != label:
        return False
    return not whole or event.done >= event.total


def sources(revision: str, folder: Path) -> Path:
    """Write the sources of a git revision; return the folder to import them from."""
    tree = folder / "tree"
    tree.mkdir()
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "x"], cwd=tree, input=packed.stdout, check=True)
    return importable(tree, folder / "path")


def importable(tree: Path, path: Path) -> Path:
    """Make a folder in which the packages of a source tree have the names they are imported by.

    Their modules are compiled.
    """
    (path / "fttui").mkdir(parents=True)
    for file in (tree / "engine" / "library").iterdir():
        (path / "fttui" / file.name).symlink_to(file)
    for name in ("engine", "tui"):
        compileall.compile_dir(tree / name, quiet=1)
        (path / "fttui" / name).symlink_to(tree / name)
    return path


def drop(*folders: Path) -> None:
    """Drop the files of folders from the memory of the machine, as far as no process maps them."""
    os.sync()
    for folder in folders:
        for name, _, files in os.walk(folder, followlinks=True):
            for file in files:
                with suppress(OSError):
                    opened = os.open(os.path.join(name, file), os.O_RDONLY)
                    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(opened)


def start(
    options: argparse.Namespace, path: Path, place: Path, environment: dict[str, str]
) -> list[Cost]:
    """Start a run, wait for its first step, end it; return the costs at the ends of `PHASES`."""
    command = [
        *(options.python, "-m", "fttui.tui", "run", str(options.config)),
        *("--runs-dir", str(place), *([] if options.app else ["--headless"])),
    ]
    paths = [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | environment | {"TERM": "xterm-256color"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    clock = Clock(time.time())
    begin = _in_terminal if options.app else _silent
    process = begin(command, environment)
    try:
        records = _until_step(clock, process, place)
        clock.look()
        return [clock.at(moment) for moment in moments(records)]
    finally:
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                one.kill()
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _silent(command: list[str], environment: dict[str, str]) -> int:
    made = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return made.pid


def _in_terminal(command: list[str], environment: dict[str, str]) -> int:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment)
    threading.Thread(target=_swallow, args=[terminal], daemon=True).start()
    return pid


def _swallow(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def _until_step(clock: Clock, command: int, place: Path) -> list[Record]:
    """Sample until the journal has the first step; return its records."""
    reader: FrameReader | None = None
    records: list[Record] = []
    engine, before_s = 0, 0.0
    while not (records and isinstance(records[-1].event, StepFinished)):
        if clock.samples and clock.samples[-1][1].wall_s > _LIMIT_S:
            raise TimeoutError("the run did not reach its first step")
        if reader is None and (found := list(place.glob("*/journal.log"))):
            reader = FrameReader(found[0])
        if reader is None:
            clock.wait_of(command, 0.0)
        for _, payload in reader.read() if reader else ():
            record = decode_record(payload)
            if record is not None and not (records and isinstance(records[-1].event, StepFinished)):
                records.append(record)
        if not engine and records and isinstance(records[0].event, RunStarted):
            engine = records[0].event.pid
            before_s = clock.waited_by(engine)
        if engine:
            clock.wait_of(engine, before_s)
        clock.look()
        time.sleep(_EVERY_S)
    return records


def measure(options: argparse.Namespace, path: Path) -> list[Cost]:
    """Measure one start from the sources in `path`."""
    with tempfile.TemporaryDirectory(prefix="fttui-bench-") as name:
        folder = Path(name)
        environment = {}
        if options.first or options.cold:
            environment["XDG_CACHE_HOME"] = str(folder / "cache")
        if options.cold:
            site = Path(sys.prefix) / "lib"
            drop(site, *map(Path, {*filter(os.path.isdir, sys.path)}), CACHES / "fttui", path)
        return start(options, path, folder / "runs", environment)


def table(name: str, runs: list[list[Cost]]) -> Cost:
    """Print the phases of a start, each the median of its runs; return the median of the whole."""
    print(f"\n{name}: {len(runs)} starts, load {os.getloadavg()[0]:.1f}")
    print(f"  {'phase':<38} {'idle s':>7} {'wall s':>7} {'processor s':>12}")
    for number, phase in enumerate(PHASES):
        parts = [run[number] - (run[number - 1] if number else Cost()) for run in runs]
        print(_row(phase, parts))
    print(_row("until the first step", [run[-1] for run in runs]))
    return _middle([run[-1] for run in runs])


def _row(name: str, costs: list[Cost]) -> str:
    cost = _middle(costs)
    return f"  {name:<38} {cost.idle_s:>7.2f} {cost.wall_s:>7.2f} {cost.processor_s:>12.2f}"


def _middle(costs: list[Cost]) -> Cost:
    wall_s = median(cost.wall_s for cost in costs)
    idle_s = median(cost.idle_s for cost in costs)
    return Cost(wall_s, wall_s - idle_s, median(cost.processor_s for cost in costs))


def cases(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of each source tree to measure."""
    yield "this tree", importable(ROOT, folder / "this")
    if options.baseline:
        (folder / "baseline").mkdir()
        yield f"baseline {options.baseline}", sources(options.baseline, folder / "baseline")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--app", action="store_true", help="in the app, not as lines")
    parser.add_argument("--first", action="store_true", help="with empty caches of fttui")
    parser.add_argument("--cold", action="store_true", help="and with no file in memory")
    parser.add_argument("--baseline", metavar="REV", help="a git revision to compare with")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "demo.yaml")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to start")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of terminals that end
    with tempfile.TemporaryDirectory(prefix="fttui-bench-") as name:
        trees = list(cases(options, Path(name)))
        found: dict[str, list[list[Cost]]] = {name: [] for name, _ in trees}
        if not (options.first or options.cold):
            for _, path in trees:
                measure(options, path)  # fills the caches
        for _ in range(options.runs):
            for name, path in trees:
                found[name].append(measure(options, path))
        whole = [table(name, runs) for name, runs in found.items()]
    if len(whole) == 2:
        idle, processor = (
            getattr(whole[0], part) / getattr(whole[1], part) for part in ("idle_s", "processor_s")
        )
        print(f"\nratio to the baseline: {idle:.2f} of its time, {processor:.2f} of its processor")


if __name__ == "__main__":
    main()
