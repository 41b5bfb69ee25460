from __future__ import annotations

import subprocess

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.connection.ssh.remote_host import (
    LoginRefused,
    NoFttui,
    RemoteHost,
    RemoteTarget,
    UnknownHost,
    Unreachable,
    is_remote,
    parse_target,
)


@pytest.mark.parametrize(
    ("text", "host", "run"),
    [
        ("box", "box", None),
        ("box:", "box", None),
        ("ann@box:run-1", "ann@box", "run-1"),
        ("box:/home/ann/runs/r", "box", "/home/ann/runs/r"),
        ("ann@[::1]:run", "ann@::1", "run"),
        ("[fe80::1%eth0]", "fe80::1%eth0", None),
    ],
)
def test_targets(text: str, host: str, run: str | None) -> None:
    assert parse_target(text) == RemoteTarget(host, run)


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "-l:run", "a b", "", "a@b@c", "x/y"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a host"):
        parse_target(text)


def test_names_of_runs_are_not_remote() -> None:
    assert not is_remote("smollm2-20260101-000000")
    assert is_remote("box:run")
    assert is_remote("ann@box")


def test_the_host_cannot_become_an_option_and_nothing_weakens_ssh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FTTUI_SSH", "ssh -F '/a b/config'")
    argv = RemoteHost("box").argv(may_prompt=False, shared=False)
    assert argv[:3] == ["ssh", "-F", "/a b/config"]
    assert argv[argv.index("--") + 1] == "box"
    assert "BatchMode=yes" in argv
    assert "ControlPath=none" in argv
    assert not any("StrictHostKeyChecking" in word for word in argv)
    asking = RemoteHost("box").argv(may_prompt=True)
    assert not any("BatchMode" in word or "ControlPath" in word for word in asking)


@pytest.mark.parametrize(
    ("code", "said", "kind", "told"),
    [
        (255, "ann@box: Permission denied (publickey).", LoginRefused, "refused the login"),
        (255, "Host key verification failed.", LoginRefused, "is not the known one"),
        (255, "ssh: Could not resolve hostname box", UnknownHost, "the host 'box' is unknown"),
        (255, "Connection timed out", Unreachable, "cannot be reached"),
        (127, "", NoFttui, "--remote-cmd"),
        (1, "No module named fttui", Unreachable, "exit code 1"),
        (None, "", Unreachable, "closed the connection"),
    ],
)
def test_failures_are_told_apart(
    code: int | None, said: str, kind: type[Exception], told: str
) -> None:
    error = RemoteHost("box").explain(code, said, "")
    assert type(error) is kind
    assert told in str(error)
    assert said in str(error)


def test_the_bootstrap_finds_the_noted_interpreter_or_says_127(tmp_path: object) -> None:
    words = RemoteHost("box").shell_command
    assert words.count("'") == 2, "csh and fish must read it as one quoted word"
    environment = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", words], env=environment, capture_output=True)
    assert done.returncode == 127
