"""`exec`: start a training command of the user, watch its trainers, and show the first run."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.run.files import last_lines
from fttui.engine.run.run_dir import RunDirectory, require_runs_folder, runs_root
from fttui.engine.watch import startup
from fttui.engine.watch.startup import switched_off

from ..text.control_characters import one_line
from ..text.format import plural
from .attach import open_app, require_terminal
from .headless import HeadlessLog, JournalRecords
from .options import Commands, add_runs_dir, say

EXEC_FOLDER = "FTTUI_EXEC"
"""Environment variable with the folder in which each watched run writes a file with its path."""
_POLL_S = 0.1
_LOG_LINES = 40
_PREFIX = ".exec-"
_OUTPUT = "output.log"
"""Output of a command, until its first run has a folder for it."""
_KEPT_DAYS = 7
_STARTING_S = 60.0
"""Age from which a folder that nobody holds is taken for one that is left over."""
_LONGEST_NOTICE_BYTES = 4096
_NOTICE = re.compile(rb"fttui: ([^\r\n]*)[\r\n]")
"""A line that fttui itself has printed into the output of the command."""
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
    if switched_off():
        _replace_by(words)
    if not options.headless:
        require_terminal("without one, use --headless")
    root = runs_root(options.runs_dir)
    removed = remove_left_over(root)
    if removed:
        ended = plural(removed, "earlier command")
        say(f"removed the output of {ended} in which fttui found no training")
    script = StartedScript.start(words, root, options.name)
    then = "" if options.headless else "; the app opens when its first trainer starts"
    say(f"starting {words[0]}; its output goes to {script.log}{then}")
    try:
        return _follow(script) if options.headless else _show(script)
    finally:
        script.tidy()


def _replace_by(words: list[str]) -> NoReturn:
    """Replace this process with the command, which runs unwatched and prints to the terminal."""
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise _not_started(words, error) from None


def _not_started(words: list[str], error: OSError) -> FttuiError:
    return FttuiError(f"{words[0]} cannot be started: {(error.strerror or str(error)).lower()}")


def _show(script: StartedScript) -> int:
    """Open the app on the first run of the command; return the exit code.

    That is the one of the app if the command still runs, else the one of the command. If the
    command ends without a run, print the end of its output.
    """
    with _Forwarded(script) as forwarded:
        while not script.runs() and script.running:
            _say_all(script.notices())
            _say_all(forwarded.news())
            time.sleep(_POLL_S)
    runs = script.runs()
    if not runs:
        return _report_end(script)
    code = open_app(runs[0])
    return code if script.running else script.exit_code


def _follow(script: StartedScript) -> int:
    """Print every run of the command as lines until the command ends; return its exit code."""
    lines: dict[RunDirectory, tuple[JournalRecords, HeadlessLog]] = {}
    with _Forwarded(script) as forwarded:
        ended = False
        while not ended:
            ended = not script.running
            _say_all(script.notices())
            _say_all(forwarded.news())
            for run in script.runs():
                if run not in lines:
                    say(f"the output of the command is in {script.log}")
                    lines[run] = JournalRecords(run.journal), HeadlessLog()
                _say_all(_new_lines(*lines[run]))
            time.sleep(_POLL_S)
    return script.exit_code if lines else _report_end(script)


def _say_all(lines: Iterator[str]) -> None:
    for line in lines:
        say(one_line(line))


def _new_lines(journal: JournalRecords, log: HeadlessLog) -> Iterator[str]:
    for record in journal.new():
        yield from log.lines(record, time.monotonic())
    yield from journal.news()


def _report_end(script: StartedScript) -> int:
    """Print that nothing was watched, and the end of the output; return the exit code."""
    code = script.exit_code
    _say_all(script.notices())
    say(f"the command ended with exit code {code}; fttui found no training to watch")
    say("a training loop of your own needs fttui.watch(model=…, optimizer=…) in the script")
    tail = last_lines(script.log, _LOG_LINES)
    if not tail:
        say("the command printed nothing")
        return code
    say("the end of its output:\n" + "\n".join(tail))
    say(f"all of its output is in {script.log}, kept for {_KEPT_DAYS} days")
    return code


class StartedScript:
    """A command that runs in a process session of its own, so that it outlives this process."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, held: int) -> None:
        self._process = process
        self._folder = folder
        self._held = held
        """Descriptor of the folder, which is locked while this process uses it."""
        self._log = folder / _OUTPUT
        self._output = open(self._log, "rb")  # noqa: SIM115 -- read while the command writes
        self._unread = b""
        self._kept: RunDirectory | None = None

    @classmethod
    def start(cls, words: list[str], root: Path, name: str | None) -> StartedScript:
        """Start a command with the hook that watches its trainers.

        Args:
            words: the command and its arguments.
            root: the folder for the runs.
            name: the name of the runs; None for the default one.

        Raises:
            FttuiError: the command cannot be started, or the runs folder cannot be written.
        """
        require_runs_folder(root, writing=True)
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        held = os.open(folder, os.O_RDONLY)
        _hold(held)
        try:
            with open(folder / _OUTPUT, "wb") as output:
                _hold(output.fileno())  # inherited, so held until the last process has ended
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=_environment(folder, root, name),
                )
        except OSError as error:
            os.close(held)
            shutil.rmtree(folder)
            raise _not_started(words, error) from None
        return cls(process, folder, held)

    @property
    def log(self) -> Path:
        """The file with the output of the command."""
        return self._kept.engine_log if self._kept else self._log

    @property
    def running(self) -> bool:
        """Whether the command still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int:
        """The exit code of the command, waiting for its end; 128 + N if signal N ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def notices(self) -> Iterator[str]:
        """Yield the lines that fttui itself has printed into the output since the last call."""
        self._unread += self._output.read()
        while found := _NOTICE.search(self._unread):
            self._unread = self._unread[found.end() :]
            yield found[1].decode(errors="replace")
        self._unread = self._unread[-_LONGEST_NOTICE_BYTES:]

    def runs(self) -> list[RunDirectory]:
        """Return the runs of the trainers that were found so far, oldest first.

        Each wrote a file with the path of its run into the folder of this command. Once there is a
        run, the output of the command is moved into the logs of the first one.
        """
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
        """Close all files; remove the folder of this command unless it has or can get output."""
        self._output.close()
        os.close(self._held)
        holds = self._log.exists() and (self.running or self._log.stat().st_size > 0)
        if not holds:
            shutil.rmtree(self._folder, ignore_errors=True)


def _hold(descriptor: int) -> None:
    """Lock an open file until this process and all that inherited its descriptor have closed it.

    Nothing is locked on a file system without locks.
    """
    with suppress(OSError):  # a file system without locks; then nothing is removed either
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _is_held(path: Path) -> bool:
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:  # such as the folder of another user
        return True
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(opened)
    return False


def remove_left_over(root: Path) -> int:
    """Remove the folders of ended commands that hold no output, or output older than a week.

    Args:
        root: the runs folder.

    Returns:
        The number of outputs that were removed.
    """
    removed = 0
    for folder in root.glob(f"{_PREFIX}*"):
        log = folder / _OUTPUT
        if _is_held(folder) or _is_held(log):
            continue
        holds = log.exists() and log.stat().st_size > 0
        age_s = time.time() - (log if holds else folder).stat().st_mtime
        if age_s > (_KEPT_DAYS * 86_400 if holds else _STARTING_S):
            shutil.rmtree(folder, ignore_errors=True)
            removed += holds and not folder.exists()
    return removed


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
    """A context in which Ctrl-C and SIGTERM are passed on to the command."""

    def __init__(self, script: StartedScript) -> None:
        self._script = script
        self._before: dict[int, object] = {}

        self._received: list[int] = []

    def __enter__(self) -> _Forwarded:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._pass_on)
        return self

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)
        self._script.signal(number)

    def news(self) -> Iterator[str]:
        """Yield a line for each signal since the last call.

        The signal handler itself must not print, because it may interrupt a print.
        """
        while self._received:
            name = signal.Signals(self._received.pop(0)).name
            yield f"{name} is passed on to the command; waiting for its end"

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as `signal` returned it
