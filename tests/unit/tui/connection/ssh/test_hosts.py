from __future__ import annotations

from pathlib import Path

import pytest

from fttui.tui.connection.ssh.hosts import is_known_host, remember_host


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def test_without_a_word_about_machines_no_name_is_one() -> None:
    assert not is_known_host("smollm2-pairs")


def test_a_machine_attached_to_before_is_known_with_and_without_a_user() -> None:
    remember_host("ann@box")
    remember_host("pod")
    assert is_known_host("box")
    assert is_known_host("pod")
    assert not is_known_host("bo")


def test_names_in_ssh_configuration_are_known_and_patterns_are_not(home: Path) -> None:
    (home / ".ssh" / "config").write_text(
        "Include more/*.conf\nInclude config\n"  # one that includes itself ends somewhere
        "Host gpu gpu2 !gpu3 *.lab\n  HostName 10.0.0.7\nhost=pod\nHost *\n  User ann\n"
    )
    (home / ".ssh" / "more").mkdir()
    (home / ".ssh" / "more" / "a.conf").write_text("Host far\n")
    assert all(is_known_host(name) for name in ("gpu", "gpu2", "pod", "far"))
    assert not any(is_known_host(name) for name in ("gpu3", "x.lab", "*", "10.0.0.7", "User"))
