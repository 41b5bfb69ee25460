"""Waiting always ends: a host that accepts a connection and says nothing keeps no command."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from fttui.engine.protocol.codec import PROTOCOL_VERSION
from fttui.engine.protocol.ssh_protocol import MAGIC, FrameKind, Greeting, frames_of
from tests.support.matrix import in_part

from .test_cli import fttui

GREETING = MAGIC + frames_of(
    FrameKind.GREETING, msgspec.json.encode(Greeting(proto=PROTOCOL_VERSION, version="0"))
)


def ssh_that(tmp_path: Path, says: bytes) -> str:
    """A program in place of ssh that says something once and then nothing, and stays."""
    script = tmp_path / "ssh"
    script.write_text(
        f"#!{sys.executable}\nimport os, time\nos.write(1, {says!r})\ntime.sleep(600)\n"
    )
    script.chmod(0o700)
    return str(script)


@pytest.mark.parametrize(
    "says",
    in_part([b"", b"Welcome to box\n", GREETING], [GREETING]),
    ids=["nothing", "noise", "greets"],
)
def test_a_host_that_says_nothing_more_ends_a_command_at_its_timeout(
    tmp_path: Path, says: bytes
) -> None:
    done = fttui(
        *("ctl", "--timeout", "1", "box:demo", "pause"),
        environ={"FTTUI_SSH": ssh_that(tmp_path, says), "HOME": str(tmp_path)},
    )
    assert done.returncode == 255, done.stderr
    assert "box did not answer within 1 s" in done.stderr


def _talk(payload: bytes) -> bytes:
    return GREETING + frames_of(FrameKind.TALK, payload)


LS, CTL = ("ls", "box:"), ("ctl", "--timeout", "1", "box:demo", "pause")
NONSENSE = {
    "greeting": MAGIC + frames_of(FrameKind.GREETING, b"[1, 2"),
    "frame": MAGIC + b"\xff" * 64,
    "message": _talk(b"\xc1"),
    "half": _talk(b"\x81\xa1k\xa4Runs"),
    "endless": _talk(msgspec.msgpack.encode({"k": "Runs", "table": b"\xdf\xff\xff\xff\xff"})),
    "table": _talk(msgspec.msgpack.encode({"k": "Runs", "table": b"\xc1"})),
}


@pytest.mark.parametrize(
    ("kind", "words"),
    in_part(
        [(kind, words) for kind in NONSENSE for words in (LS, CTL)],
        [("frame", CTL), ("endless", LS)],
    ),
)
def test_a_host_that_sends_nonsense_is_named_with_its_error(
    tmp_path: Path, kind: str, words: tuple[str, ...]
) -> None:
    says = NONSENSE[kind]
    done = fttui(*words, environ={"FTTUI_SSH": ssh_that(tmp_path, says), "HOME": str(tmp_path)})
    assert done.returncode != 0
    assert "box" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", in_part(["0", "-1", "nan", "inf", "soon"], ["nan", "soon"]))
def test_a_timeout_is_a_finite_number_of_seconds(text: str) -> None:
    done = fttui("ctl", f"--timeout={text}", "demo", "pause")
    assert done.returncode == 2
    assert f"--timeout: got {text!r}, expected a number of seconds above 0" in done.stderr
