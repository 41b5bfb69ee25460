"""`exec`: start a training command of the user, watch its trainers, and show the first run."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.protocol.codec import decode_record
from fttui.engine.run.files import last_lines
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory, require_runs_folder, runs_root
from fttui.engine.watch import startup

from ..text.control_characters import one_line
from .attach import open_app, require_terminal
from .headless import HeadlessLog
from .options import Commands, add_runs_dir, say

EXEC_FOLDER = "FTTUI_EXEC"
"""Environment variable with the folder in which each watched run writes a file with its path."""
_POLL_S = 0.1
_LOG_LINES = 40
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_commands(commands: Commands) -> None:
    """Register the subcommand `exec` of `fttui`."""
    parser = commands.add_parser(
        "exec", help="start a training command of your own; watch and control its trainers"
    )
    parser.add_argument(
        "--headless", action="store_true", help="print lines instead of opening the app"
    )
    add_runs_dir(parser)
    parser.add_argument("--name", metavar="N", help="name of the run")
    parser.add_argument(
        "command", metavar="-- COMMAND", nargs=argparse.REMAINDER, help="such as: python train.py"
    )
    parser.set_defaults(handler=_exec)


def _exec(options: argparse.Namespace) -> int:
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        raise ConfigError("no command given; use: fttui exec -- python train.py")
    if not options.headless:
        require_terminal("without one, use --headless")
    script = StartedScript.start(words, runs_root(options.runs_dir), options.name)
    say(f"starting {words[0]}; its output goes to {script.log}")
    try:
        return _follow(script) if options.headless else _show(script)
    finally:
        script.tidy()


def _show(script: StartedScript) -> int:
    """Open the app on the first run of the command; return the exit code.

    Without a run, wait for the end of the command and print the end of its output.
    """
    with _Forwarded(script):
        while not script.runs() and script.running:
            time.sleep(_POLL_S)
    runs = script.runs()
    if not runs:
        return _report_end(script)
    code = open_app(runs[0])
    return code if script.running else script.exit_code


def _follow(script: StartedScript) -> int:
    """Print every run of the command as lines until the command ends; return its exit code."""
    lines: dict[RunDirectory, tuple[FrameReader, HeadlessLog]] = {}
    with _Forwarded(script):
        ended = False
        while not ended:
            ended = not script.running
            for run in script.runs():
                if run not in lines:
                    say(f"run {run.id} in {run.path}")
                    lines[run] = FrameReader(run.journal), HeadlessLog()
                for line in _new_lines(*lines[run]):
                    say(one_line(line))
            time.sleep(_POLL_S)
    return script.exit_code if lines else _report_end(script)


def _new_lines(reader: FrameReader, log: HeadlessLog) -> Iterator[str]:
    for payload in reader:
        record = decode_record(payload)
        if record is not None:
            yield from log.lines(record, time.monotonic())


def _report_end(script: StartedScript) -> int:
    """Print that no trainer was watched, and the end of the output; return the exit code."""
    code = script.exit_code
    tail = "\n".join(last_lines(script.log, _LOG_LINES)) or "(it printed nothing)"
    say(f"the command ended with exit code {code} and no Hugging Face trainer was watched;")
    say(f"the end of its output:\n{tail}")
    return code


class StartedScript:
    """A command that runs in a process session of its own, so that it outlives this process."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
        self._process = process
        self._folder = folder
        self._log = log
        self._kept: RunDirectory | None = None

    @classmethod
    def start(cls, words: list[str], root: Path, name: str | None) -> StartedScript:
        """Start a command with the hook that watches its trainers.

        Raises:
            FttuiError: the command cannot be started.
        """
        require_runs_folder(root, writing=True)
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".exec-", dir=root))
        log = folder / "output.log"
        try:
            with open(log, "wb") as output:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=_environment(folder, root, name),
                )
        except OSError as error:
            log.unlink()
            folder.rmdir()
            why = (error.strerror or str(error)).lower()
            raise FttuiError(f"{words[0]} cannot be started: {why}") from None
        return cls(process, folder, log)

    @property
    def log(self) -> Path:
        """The file with the output of the command."""
        return self._kept.engine_log if self._kept else self._log

    @property
    def running(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int:
        """The exit code of the command, waiting for its end; 128 + N if signal N ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def runs(self) -> list[RunDirectory]:
        """Return the runs that have announced themselves, oldest first."""
        found = [file for file in self._folder.iterdir() if file != self._log]
        found.sort(key=lambda file: file.stat().st_mtime_ns)
        runs = [RunDirectory(Path(file.read_text(encoding="utf-8"))) for file in found]
        runs = [run for run in runs if run.identity_file.exists()]
        if runs and self._kept is None:
            self._keep_output(runs[0])
        return runs

    def _keep_output(self, run: RunDirectory) -> None:
        """Move the output, which is still being written, into the logs of the first run."""
        with suppress(OSError):
            os.replace(self._log, run.engine_log)
            self._kept = run

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the command."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def tidy(self) -> None:
        """Remove the folder in which runs announce themselves, once the command has ended.

        Without a run it is kept, because it holds the output of the command.
        """
        if self.running or self._kept is None:
            return
        for file in self._folder.iterdir():
            file.unlink()
        self._folder.rmdir()


def _environment(folder: Path, root: Path, name: str | None) -> dict[str, str]:
    paths = [str(Path(startup.__file__).parent), os.environ.get("PYTHONPATH", "")]
    named = {"FTTUI_NAME": name} if name else {}
    return {
        "PYTHONUNBUFFERED": "1",
        "GOMP_SPINCOUNT": "5000",  # threads that spin make a CPU slow when a viewer needs a core
        **os.environ,
        **named,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        EXEC_FOLDER: str(folder),
        "FTTUI_RUNS": str(root),
    }


class _Forwarded:
    """While active, passes Ctrl-C and SIGTERM on to the command."""

    def __init__(self, script: StartedScript) -> None:
        self._script = script
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._script.signal(number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as `signal` returned it
