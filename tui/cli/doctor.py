"""`doctor`: check that this machine and terminal have what a run needs."""

from __future__ import annotations

import argparse
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..text.format import plural, size
from .options import Commands, say
from .outward.relay import relay_lines
from .preflight.training_packages import INSTALL, TRAIN, fits, installed, unusable

_CORE = ("fttui", "textual", "pyzmq", "msgspec")
_NEED_THEM = "run, check, data, export, lr-find and profile"
"""The subcommands that need the training packages."""
_IMPORT_TIMEOUT_S = 180
_ROUND_TRIP_TIMEOUT_MS = 2000
_LEAST_COLUMNS, _LEAST_LINES = 80, 24


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check."""

    name: str
    text: str
    level: str = "ok"
    """`ok`, `note` (works with limits) or `bad` (must be fixed)."""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `doctor` of `fttui`."""
    parser = commands.add_parser(
        "doctor", help="check this machine: packages, GPUs, sockets, terminal"
    )
    parser.add_argument(
        "--notify",
        action="store_true",
        help="only send a test message to the addresses in $FTTUI_NOTIFY_URLS or "
        "~/.config/fttui/notify-urls",
    )
    parser.set_defaults(handler=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    if options.notify:
        return relay_lines([sys.executable, "-P", "-m", "fttui.engine.followers.alerts", "--test"])
    bad = 0
    for finding in findings():
        bad += finding.level == "bad"
        mark = {"ok": "ok  ", "note": "note", "bad": "BAD "}[finding.level]
        say(f"{mark}  {finding.name:<14} {finding.text}")
    if bad:
        say(f"{plural(bad, 'problem')}, marked BAD")
    else:
        say(_verdict())
    return 1 if bad else 0


def _verdict() -> str:
    if not any(unusable()):
        return "this machine has everything a run needs"
    return (
        "this machine can follow and control runs and watch scripts; training with fttui run needs "
        f"more: {INSTALL}"
    )


def findings() -> Iterator[HealthCheck]:
    """Yield the result of every check as it ends, since some take seconds."""
    checks: tuple[Callable[[], Iterator[HealthCheck]], ...] = (
        _check_python,
        _check_packages,
        _check_training_packages,
        _check_devices,
        _check_bitsandbytes,
        _check_trainers,
        _check_zeromq,
        _check_terminal,
    )
    for check in checks:
        yield from check()


def _check_python() -> Iterator[HealthCheck]:
    old = sys.version_info < (3, 11)
    where = f"{platform.python_version()} ({sys.executable}) on {platform.platform(terse=True)}"
    yield HealthCheck("Python", where, "bad" if old else "ok")


def _check_packages() -> Iterator[HealthCheck]:
    for name in _CORE:
        found = installed(name)
        missing = f"not installed; pip install {name}"
        yield HealthCheck(name, found or missing, "ok" if found else "bad")


def _check_training_packages() -> Iterator[HealthCheck]:
    """Check the packages that training needs.

    A missing one is a note only, because the app and watched scripts work without.
    """
    found = {name: installed(name) for name in TRAIN}
    if not any(found.values()):
        text = f"not installed; {_NEED_THEM} need them: {INSTALL}"
        yield HealthCheck("training", text, "note")
        return
    for name, one in found.items():
        if one is None:
            text = f"not installed; {_NEED_THEM} need it: {INSTALL}"
            yield HealthCheck(name, text, "note")
        elif not fits(one, TRAIN[name]):
            text = f"{one}; {_NEED_THEM} need {name}{TRAIN[name]}: {INSTALL}"
            yield HealthCheck(name, text, "note")
        else:
            yield HealthCheck(name, one)


def _check_devices() -> Iterator[HealthCheck]:
    from fttui.engine.config.memory.hardware import probe_hardware

    hardware = probe_hardware()
    for index, device in enumerate(hardware.devices):
        bf16 = "bf16" if device.bf16 else "no bf16, precision auto uses fp16"
        free = f"{size(device.free_bytes)} of {size(device.total_bytes)} free"
        yield HealthCheck(f"GPU {index}", f"{device.name}, {free}, {bf16}")
    if not hardware.devices:
        yield HealthCheck(
            "GPU", "none that an installed torch can use; runs train on the CPU", "note"
        )
    free = f"{size(hardware.host_free_bytes)} of {size(hardware.host_total_bytes)} free"
    yield HealthCheck("host", f"{hardware.processors} processors, {free}")


def _check_bitsandbytes() -> Iterator[HealthCheck]:
    """Import bitsandbytes in a separate process, which a broken native library may crash."""
    if installed("bitsandbytes") is None:
        return
    command = [sys.executable, "-c", "import bitsandbytes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        text = f"importing it took more than {_IMPORT_TIMEOUT_S} s"
        yield HealthCheck("bitsandbytes", text, "bad")
        return
    if done.returncode == 0:
        yield HealthCheck("bitsandbytes", "can be imported (needed to train 4-bit models)")
    else:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        text = f"cannot be imported: {last}; without it, set model.quantize: none"
        yield HealthCheck("bitsandbytes", text, "bad")


def _check_trainers() -> Iterator[HealthCheck]:
    """List the commands that the installed trainer classes can carry out when they are watched.

    A separate process imports their libraries.
    """
    if installed("torch") is None:
        text = "torch is not installed, so there is no trainer to watch"
        yield HealthCheck("trainers", text, "note")
        return
    command = [sys.executable, "-W", "ignore", "-m", "fttui.engine.watch.trainer_list"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        text = (
            f"importing their libraries took more than {_IMPORT_TIMEOUT_S} s, so it is not known "
            "which commands they can carry out"
        )
        yield HealthCheck("trainers", text, "note")
        return
    for line in done.stdout.splitlines():
        name, _, text = line.partition("\t")
        limited = "not watched:" in text or text.startswith("no ")
        yield HealthCheck(name, text, "note" if limited else "ok")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield HealthCheck("trainers", f"their libraries cannot be imported: {last}", "note")


def _check_zeromq() -> Iterator[HealthCheck]:
    import zmq

    name = f"ZeroMQ {zmq.zmq_version()}"
    context = zmq.Context()
    context.linger = 0
    with tempfile.TemporaryDirectory(prefix="fttui-") as folder:
        server, client = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        try:
            server.bind(f"ipc://{Path(folder) / 's'}")
            client.connect(f"ipc://{Path(folder) / 's'}")
            client.send(b"ping")
            answered = server.poll(_ROUND_TRIP_TIMEOUT_MS) and server.recv() == b"ping"
        except zmq.ZMQError as error:
            yield HealthCheck(name, f"ipc sockets do not work in {folder}: {error}", "bad")
        else:
            text = "ipc sockets work" if answered else "a message over an ipc socket was lost"
            yield HealthCheck(name, text, "ok" if answered else "bad")
        finally:
            context.destroy(linger=0)


def _check_terminal() -> Iterator[HealthCheck]:
    if not sys.stdout.isatty():
        yield HealthCheck(
            "terminal", "standard output is not a terminal; run doctor in one to check it", "note"
        )
        return
    columns, rows = shutil.get_terminal_size()
    small = columns < _LEAST_COLUMNS or rows < _LEAST_LINES
    text = f"{columns}×{rows}"
    hint = f"; at least {_LEAST_COLUMNS}×{_LEAST_LINES} is recommended" if small else ""
    yield HealthCheck("terminal", text + hint, "note" if small else "ok")
    encoding = locale.getpreferredencoding(False)
    utf8 = encoding.lower().replace("-", "") == "utf8"
    yield HealthCheck("encoding", encoding if utf8 else f"{encoding}; the app draws with ASCII")
    yield HealthCheck("TERM", f"{os.environ.get('TERM') or 'not set'}, {_colours()}")


def _colours() -> str:
    if os.environ.get("NO_COLOR"):
        return "no colour, because NO_COLOR is set"
    if os.environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        return "true colour"
    return "256 colours" if "256" in os.environ.get("TERM", "") else "16 colours"
