"""The process that sends messages, with the real apprise and a receiver on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.followers.alerts.addresses import VARIABLE, has_addresses, read_addresses
from fttui.engine.followers.alerts.sender import Sender
from fttui.engine.run.run_dir import RunDirectory
from tests.support.journaled import CONFIG, new_run, records, write_journal
from tests.support.receiver import Receiver, receiver

pytest.importorskip("apprise")
MODULE = "fttui.engine.followers.alerts"


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", MODULE, *arguments],
        env={**os.environ, "XDG_CONFIG_HOME": "/nowhere", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def texts(taken: Receiver) -> list[str]:
    return [message["message"] for message in taken.messages]


def secrets_in(run: RunDirectory) -> list[str]:
    files = [file for file in run.path.rglob("*") if file.is_file()]
    return [file.name for file in files if b"hunter2" in file.read_bytes()]


def test_what_happened_is_sent_once_and_no_address_is_kept(tmp_path: Path) -> None:
    run = new_run(tmp_path, f"{CONFIG}alerts: {{mute: [finished]}}\n")
    write_journal(run, records())
    with receiver() as taken:
        done = process(str(run.path), **{VARIABLE: taken.url})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert texts(taken) == ["step 6: spike: loss is 9"]
        assert taken.messages[0]["title"] == f"fttui {run.id}"
        process(str(run.path), **{VARIABLE: taken.url})
        assert len(taken.messages) == 1, "the second process tells nothing again"
    assert secrets_in(run) == []


def test_a_test_message_says_which_address_took_it(tmp_path: Path) -> None:
    with receiver() as taken:
        done = process("--test", **{VARIABLE: taken.url})
        assert done.stdout == "alerts: address 1 (json) accepted the test message\n"
        assert done.returncode == 0
        assert texts(taken) == ["This is a test message of fttui doctor --notify."]
        taken.status = 500
        done = process("--test", **{VARIABLE: taken.url})
    assert done.stdout == "alerts: address 1 (json) did not accept it\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("addresses", "said"), [("", "no addresses are named"), ("hunter2:/x", "address 1 (hunter2)")]
)
def test_addresses_that_cannot_be_used_are_named_by_position(addresses: str, said: str) -> None:
    done = process("--test", **{VARIABLE: addresses})
    assert said.replace("hunter2", "***") in done.stdout.replace("hunter2", "***")
    assert done.returncode == 2


def test_a_service_that_fails_is_said_without_its_address() -> None:
    sender = Sender(["json://ann:hunter2@127.0.0.1:9/hook"])
    assert sender.send("t", "b") == ["address 1 (json) did not accept it"]


def test_the_file_of_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (has_addresses(), read_addresses()) == (False, [])
    file = tmp_path / "fttui" / "notify-urls"
    file.parent.mkdir()
    file.write_text("# mine\njson://host/a\n\njson://host/b\n")
    file.chmod(0o644)
    assert has_addresses()
    with pytest.raises(ConfigError, match="chmod 600"):
        read_addresses()
    file.chmod(0o600)
    assert read_addresses() == ["json://host/a", "json://host/b"]
    monkeypatch.setenv(VARIABLE, "json://x, json://y")
    assert read_addresses() == ["json://x", "json://y"]


def test_without_apprise_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(FttuiError, match=r"pip install 'fttui\[alerts\]'"):
        Sender(["json://x"])
