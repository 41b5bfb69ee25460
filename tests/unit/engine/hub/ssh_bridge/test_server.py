"""Which run a viewer gets: the one it names, else the newest live one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.errors import NoSuchRun
from fttui.engine.hub.ssh_bridge import server
from fttui.engine.hub.ssh_bridge.server import BridgeServer
from tests.support.engine_double import make_run


@pytest.mark.parametrize(("wanted", "live"), [(None, True), ("double", False)])
def test_only_without_a_name_a_live_run_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, live: bool
) -> None:
    asked: list[bool] = []

    def choose(runs: Any, wanted: str | None, place: str, *, live: bool, listing: str) -> None:
        asked.append(live)

    monkeypatch.setattr(server, "list_known_runs", lambda runs: [])
    monkeypatch.setattr(server, "choose_run", choose)
    bridge: Any = SimpleNamespace(_options=SimpleNamespace(runs=Path("/none"), only=None))
    BridgeServer._find(bridge, wanted)
    assert asked == [live]


def test_a_viewer_that_names_no_run_is_told_how_to_list_those_of_the_host(tmp_path: Path) -> None:
    make_run(tmp_path, name="peach")
    bridge: Any = SimpleNamespace(_options=SimpleNamespace(runs=tmp_path, run=None))
    with pytest.raises(NoSuchRun, match=r"list all with: fttui ls \[USER@\]HOST$"):
        BridgeServer._find(bridge, "another")


def test_a_folder_is_opened_as_it_is_and_another_run_is_refused(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    bridge: Any = SimpleNamespace(_options=SimpleNamespace(runs=tmp_path / "a", run=str(run.path)))
    bridge._find = lambda wanted: BridgeServer._find(bridge, wanted)
    assert BridgeServer._chosen(bridge, None).path == run.path
    assert BridgeServer._chosen(bridge, run.id[:8]).path == run.path
    with pytest.raises(NoSuchRun, match="may only open"):
        BridgeServer._chosen(bridge, str(other.path))
