from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.errors import FttuiError, NoSuchRun
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_index import RunSummary
from fttui.tui.cli import attach, ls
from fttui.tui.connection.ssh import remote_runs
from fttui.tui.connection.ssh.remote_runs import RemoteRuns

SAME = RunSummary(id="sft", name="sft", path="/runs/sft", created=0, state=RunState.RUNNING)
DOWN = FttuiError("c did not answer within 20 s")


@pytest.mark.parametrize(("answer", "opened"), [("1", "a"), ("2", "b"), ("b:sft", "b")])
def test_runs_of_one_path_on_two_hosts_are_told_apart(
    answer: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = RemoteRuns(runs=[("a", [SAME]), ("b", [SAME])], errors=[])
    targets: list[Any] = []

    def open_remote(target: Any, remote_cmd: str | None, *, read_only: bool) -> int:
        targets.append(target)
        return 0

    monkeypatch.setattr(remote_runs, "list_remote_runs", lambda hosts, remote_cmd: found)
    monkeypatch.setattr(attach, "at_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    monkeypatch.setattr(attach, "_open_remote", open_remote)
    assert attach._open_on_hosts(["a", "b"], None, read_only=True) == 0
    assert (targets[0].host, targets[0].run) == (opened, SAME.path if answer.isdigit() else "sft")


def test_an_answer_without_a_host_is_not_taken_for_the_name_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = RemoteRuns(runs=[("a", [SAME]), ("b", [SAME])], errors=[])
    monkeypatch.setattr(remote_runs, "list_remote_runs", lambda hosts, remote_cmd: found)
    monkeypatch.setattr(attach, "at_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "sft")
    with pytest.raises(NoSuchRun, match="sft is not a number in the list; type one, or HOST:RUN"):
        attach._open_on_hosts(["a", "b"], None, read_only=True)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (RemoteRuns(runs=[("a", []), ("b", [])], errors=[]), "no runs on a and b; start one there"),
        (RemoteRuns(runs=[("a", [])], errors=[DOWN]), "no runs on a; start one there"),
        (RemoteRuns(runs=[], errors=[DOWN]), ""),
        (RemoteRuns(runs=[("a", []), ("b", [SAME])], errors=[]), "b:sft"),
    ],
)
def test_hosts_without_runs_are_named(
    found: RemoteRuns, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ls.print_remote_runs(found)
    out = capsys.readouterr().out
    assert said in out
    assert bool(out) == bool(said)
