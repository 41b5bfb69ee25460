"""The process that sends messages about a run: `python -m fttui.engine.followers.alerts RUN`.

With `--test` it sends one message to every address instead.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import ConfigError, FttuiError
from ...run.files import free_bytes
from ...run.folder.open_folder import read_plain
from ...run.processes.marks import read_engine
from ...run.records.record_feed import RecordFeed, engine_works
from ...run.run_dir import SMALL_FILE_BYTES, RunDirectory
from ..quiet import Termination, masked, own_output, settle_in_background
from ..run_config import alerts_of, config_of
from .addresses import VARIABLE, addresses_file, read_addresses
from .messages import Message
from .outbox import Outbox, QuietHours
from .sender import Sender
from .watch import RunWatch

Say = Callable[[str], None]
_FILE, _LOCK = "alerts.json", "alerts.lock"
_POLL_S = 1.0
_LOST_AFTER_S = 15.0
"""Seconds without an engine after which it counts as lost; torchrun may start it again."""
_AGAIN_S = 30.0
_LAST_ATTEMPTS = 4


class Told(msgspec.Struct, kw_only=True):
    """What was reported about a run, so that a later process reports nothing twice."""

    through_seq: int = 0
    incidents: list[str] = []


def main(arguments: list[str]) -> int:
    """Watch a run until its engine has ended and all is sent; return the exit code."""
    settle_in_background()
    terminated = Termination()
    output = own_output()

    def say(text: str) -> None:
        output.write(f"alerts: {masked(text, os.environ)}\n")

    try:
        addresses = read_addresses()
        if not addresses:
            raise ConfigError(
                f"no addresses are named; put apprise addresses into ${VARIABLE}, or one on each "
                f"line of {addresses_file()}"
            )
        sender = Sender(addresses)
        if arguments == ["--test"]:
            return _test(sender, say)
        AlertProcess(RunDirectory(Path(arguments[0]).absolute()), sender, say, terminated).work()
    except FttuiError as error:
        say(str(error))
        return error.exit_code
    return 0


def _test(sender: Sender, say: Say) -> int:
    failed = sender.send("fttui", "This is a test message of fttui doctor --notify.")
    for name in sender.names:
        wrong = [text for text in failed if text.startswith(f"{name} ")]
        say(wrong[0] if wrong else f"{name} accepted the test message")
    return FttuiError.exit_code if failed else 0


class AlertProcess:
    """Reads the journal of a run, and sends what is worth a message."""

    def __init__(
        self, run: RunDirectory, sender: Sender, say: Say, terminated: Termination
    ) -> None:
        """Read the settings of the run and what was reported before.

        Raises:
            FttuiError: another process does it already, or the run cannot be read.
        """
        self._run, self._sender = run, sender
        self._say, self._terminated = say, terminated
        self._folder = run.open()
        self._take_lock()
        settings = alerts_of(config_of(run))
        self._told = self._read_told()
        self._incidents = set(self._told.incidents)
        self._watch = RunWatch(settings.stalled_factor, settings.disk_gib * 2**30, self._incidents)
        quiet = QuietHours.parse(settings.quiet) if settings.quiet else None
        self._outbox = Outbox(frozenset(settings.mute), quiet, settings.most_per_hour)
        self._feed = RecordFeed(run)
        engine = read_engine(run)
        before = (engine.after_seq if engine else None) or 0
        self._through_seq = max(self._told.through_seq, before)
        """Records up to this one were reported, or are of an engine that nobody watched."""
        self._read_seq = self._through_seq
        self._retry_at = 0.0
        self._failures = 0
        self._gone_since: float | None = None

    def _take_lock(self) -> None:
        self._lock = self._folder.open_file(_LOCK, os.O_RDWR | os.O_CREAT)
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if not engine_works(self._run) or self._terminated.wait(_POLL_S):
                    raise FttuiError("another process sends the messages of this run") from None

    def _read_told(self) -> Told:
        try:
            return msgspec.json.decode(
                read_plain(self._run.path / _FILE, SMALL_FILE_BYTES), type=Told
            )
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return Told()

    def work(self) -> None:
        """Watch and send until the engine has gone and nothing waits, or until SIGTERM."""
        while not self._turn():
            if self._terminated.wait(_POLL_S):
                return

    def _turn(self) -> bool:
        """Do what is due; return whether all is done."""
        works = engine_works(self._run)
        while records := self._feed.read():
            for record in records:
                message = self._watch.record(record, time.monotonic())
                self._read_seq = max(self._read_seq, record.seq)
                new = message is not None and record.seq > self._through_seq
                self._put([message] if message is not None and new else [])
        if works:
            self._put(self._watch.look(time.monotonic(), free_bytes(self._run.path)))
        over = not works and self._is_over()
        self._send()
        return over and (self._outbox.empty or self._failures >= _LAST_ATTEMPTS)

    def _is_over(self) -> bool:
        """Whether the run has ended, or its engine is gone for long enough to say so."""
        if self._watch.ended:
            return True
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        if now - self._gone_since < _LOST_AFTER_S:
            return False
        lost = self._watch.lost()
        self._put([] if lost is None else [lost])
        return True

    def _put(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._outbox.put(message)

    def _send(self) -> None:
        now, local = time.monotonic(), time.localtime()
        messages = self._outbox.due(now, local.tm_hour * 60 + local.tm_min)
        if now < self._retry_at:
            return None
        if not messages:
            return self._save()
        failed = self._sender.send(f"fttui {self._run.id}", self._outbox.text(messages))
        if failed and len(failed) == len(self._sender.names):
            return self._fail(failed, now)
        for text in failed:
            self._say(f"{text}; the others did")
        self._failures = 0
        self._outbox.sent(messages, now)
        return self._save()

    def _fail(self, failed: list[str], now: float) -> None:
        self._failures += 1
        self._retry_at = now + _AGAIN_S
        if self._failures == 1:
            self._say(f"{'; '.join(failed)}; tries again every {_AGAIN_S:.0f} s")

    def _save(self) -> None:
        """Note what was sent; what waits is reported again if this process is killed."""
        waiting = {message.incident for message in self._outbox.waiting}
        through_seq = self._told.through_seq if waiting else self._read_seq
        told = Told(through_seq=through_seq, incidents=sorted(self._incidents - waiting))
        if told == self._told:
            return
        with suppress(OSError):
            self._folder.write(_FILE, msgspec.json.encode(told))
            self._told = told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
