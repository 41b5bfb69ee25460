"""Where the page of a race reads its state: the folder of the run, on this or another machine."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.codec import UNDECODABLE
from fttui.engine.run.run_dir import RunDirectory

from ...view_model.race.race_state import RaceState
from ..ssh.remote_host import RemoteHost
from .race_file import changed_at, conducted_by, interrupt_race, precedes_lock, read_race
from .race_process import last_words

_ALIVE_S = 10.0
"""Seconds after which an unchanged state is printed again, so that a lost connection is noticed."""
_PLAN_S, _SHORT_S = 60.0, 30.0
_UNCONFIRMED = "add --yes"
"""End of the error of a race that nobody has confirmed; its cost has been printed before."""


class RaceLook(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the newest race of a run at one moment."""

    race: RaceState | None = None
    """None if there was none, or if the race that was just started has not begun."""
    conducted: bool = False
    """Whether a process conducts it now."""
    said: list[str] = []
    """The last lines of that process, once it has ended."""


class RaceSource(Protocol):
    """A race that a page can follow."""

    def look(self) -> RaceLook:
        """Return the newest known state; it may read files."""

    def interrupt(self) -> None:
        """Let the process of the race pause the run and end."""

    def close(self) -> None:
        """Close the connection by which the race is followed; the race continues."""


class LocalRace:
    """The newest race of a run on this machine."""

    def __init__(self, run: RunDirectory, process: subprocess.Popen[bytes] | None = None) -> None:
        """Follow the race of a run; `process` runs it, if it has just been started."""
        self._run = run
        self._process = process
        self._earlier = changed_at(run) if process is not None else None
        """When the file of the race was written before the process began."""

    def look(self) -> RaceLook:
        """Return the state in the file of the race; an error is among the lines of the process."""
        running = self._process is not None and self._process.poll() is None
        try:
            conducted = running or conducted_by(self._run) is not None
            said = [] if conducted else last_words(self._run)
            race = self._newest(conducted)
            return RaceLook(race=race, conducted=conducted, said=said)
        except (FttuiError, OSError) as error:
            return RaceLook(conducted=running, said=[str(error)])

    def _newest(self, conducted: bool) -> RaceState | None:
        """Return the race in the file; None if it is an earlier one than that of the process.

        Before a race has its start, its process writes no file, so the file is still that of the
        race before.
        """
        if self._process is not None and changed_at(self._run) == self._earlier:
            return None
        race = read_race(self._run)
        earlier = conducted and race is not None and race.ended and precedes_lock(self._run)
        return None if earlier else race

    def interrupt(self) -> None:
        """Let the process of the race pause the run and end.

        Raises:
            FttuiError: no process conducts a race any more.
        """
        if not interrupt_race(self._run):
            raise FttuiError(f"no race of {self._run.id} is running")

    def close(self) -> None:
        """Nothing is open."""


def follow_race(run: RunDirectory, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield the state of the newest race as lines of JSON, whenever it changes and while it lasts.

    Args:
        run: the run.
        sleep: waits for a number of seconds.
    """
    race, before, waited_s = LocalRace(run), "", 0.0
    while True:
        found = race.look()
        line = msgspec.json.encode(found).decode()
        if line != before or waited_s >= _ALIVE_S:
            yield line
            before, waited_s = line, 0.0
        if not found.conducted:
            return
        sleep(1.0)
        waited_s += 1.0


class RemoteRace:
    """The newest race of a run on a remote host, followed through ssh."""

    def __init__(self, host: RemoteHost, run: str, *, began: bool = False) -> None:
        """Follow the race of the run in a folder on a host.

        Args:
            host: the host.
            run: the folder of the run there.
            began: whether a race has just been started there.
        """
        self._host, self._run = host, run
        self._look = RaceLook(conducted=began)
        self._ssh = subprocess.Popen(
            host.argv(["race", run, "--follow"], may_prompt=False),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._ssh.stdout is not None
        for line in self._ssh.stdout:
            with suppress(*UNDECODABLE):
                self._look = msgspec.json.decode(line, type=RaceLook)
        code = self._ssh.wait()
        if code:
            said = self._ssh.stderr.read() if self._ssh.stderr else ""
            why = [*said.strip().splitlines()[-3:], "the race continues on its machine"]
            self._look = msgspec.structs.replace(self._look, conducted=False, said=why)

    def look(self) -> RaceLook:
        """Return the state that arrived last."""
        return self._look

    def interrupt(self) -> None:
        """Let the process of the race pause the run and end.

        Raises:
            FttuiError: the host did not do so.
        """
        run_there(self._host, ["race", self._run, "--interrupt"], _SHORT_S)

    def close(self) -> None:
        """End the connection."""
        self._ssh.kill()


def plan_there(host: RemoteHost, run: str, arguments: Sequence[str]) -> list[str]:
    """Return the cost of a race on a host, in lines; nothing is started.

    Raises:
        FttuiError: the race is not possible; the text is that of the host.
    """
    code, out, said = _called(host, ["race", run, *arguments], _PLAN_S)
    if code and not said.rstrip().endswith(_UNCONFIRMED):
        raise FttuiError(said.strip().removeprefix("fttui: ") or f"{host.host}: exit code {code}")
    return out.splitlines()


def run_there(host: RemoteHost, words: Sequence[str], timeout_s: float = _SHORT_S) -> str:
    """Run a command of fttui on a host and return what it prints.

    Raises:
        FttuiError: it failed; the text is what it has printed to standard error.
    """
    code, out, said = _called(host, words, timeout_s)
    if code:
        raise FttuiError(said.strip().removeprefix("fttui: ") or f"{host.host}: exit code {code}")
    return out


def _called(host: RemoteHost, words: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            host.argv(words, may_prompt=False),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FttuiError(f"{host.host} did not answer within {timeout_s:g} s; try again") from None
    except OSError as error:
        raise FttuiError(f"ssh cannot be started: {error}") from None
    return done.returncode, done.stdout, done.stderr
