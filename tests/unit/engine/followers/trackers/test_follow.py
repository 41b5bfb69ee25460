from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.followers.trackers import follow
from fttui.engine.followers.trackers.courier import Courier
from fttui.engine.followers.trackers.deliveries import Delivery, RunFacts, Timeline
from fttui.engine.followers.trackers.ledger import Ledger
from fttui.engine.run.run_dir import RunDirectory
from tests.support.journaled import new_run, records, write_journal

RUN = RunFacts(id="x-1", key="0" * 16, created=0.0, config={})


class Service:
    """A tracker that is down for its first calls."""

    def __init__(self, down: int) -> None:
        self.down = down
        self.held: list[Delivery] = []
        self.outcomes: list[str] = []

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        self.down -= 1
        if self.down >= 0:
            raise ConnectionError("no route to\nhost")
        return None

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        self.held += deliveries
        return {}

    def close(self, outcome: str) -> None:
        self.outcomes.append(outcome)


class Scene:
    """A run whose engine works for some looks, and what is said about its delivery."""

    def __init__(
        self, run: RunDirectory, service: Service, monkeypatch: pytest.MonkeyPatch, works: int
    ) -> None:
        self.looks, self.works = 0, works
        self.waited: list[float] = []
        self.said: list[str] = []
        self.stop_at = 1000
        monkeypatch.setattr(follow, "engine_works", self._works)
        courier = Courier(RUN, service, Ledger(tracker="t", shown="t"), lambda: None)
        self.delivery = follow.Follower(run, courier, self.said.append, self._wait)

    def _works(self, _run: RunDirectory) -> bool:
        self.looks += 1
        return self.looks <= self.works

    def _wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) >= self.stop_at


def test_a_live_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, service = new_run(tmp_path), Service(down=0)
    write_journal(run, records())
    scene = Scene(run, service, monkeypatch, works=3)
    scene.delivery.follow(while_it_runs=True)
    assert (scene.looks, scene.waited, scene.said) == (4, [1.0] * 3, [])
    assert len(service.held) == len({item.seq for item in service.held}) == 18
    assert service.outcomes[-1] == "finished"


def test_an_outage_is_two_lines_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, service = new_run(tmp_path), Service(down=9)
    write_journal(run, records())
    scene = Scene(run, service, monkeypatch, works=20)
    scene.delivery.follow(while_it_runs=True)
    assert len(scene.said) == 2
    assert "cannot deliver (ConnectionError: no route to" in scene.said[0]
    assert "delivers again" in scene.said[1]
    assert "9 failures" in scene.said[1]
    assert scene.waited[:9] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [item.seq for item in service.held] == sorted({item.seq for item in service.held})


@pytest.mark.parametrize("works", [0, 100], ids=["ended", "not followed"])
def test_a_tracker_that_stays_down_is_an_error_for_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    run, service = new_run(tmp_path), Service(down=99)
    write_journal(run, records())
    scene = Scene(run, service, monkeypatch, works=works)
    with pytest.raises(FttuiError, match="what is missing is delivered the next time"):
        scene.delivery.follow(while_it_runs=False)
    assert len(scene.waited) == 2


def test_a_stop_closes_the_tracker_run_and_leaves_it_open_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, service = new_run(tmp_path), Service(down=0)
    write_journal(run, records())
    scene = Scene(run, service, monkeypatch, works=100)
    scene.stop_at = 1
    scene.delivery.follow(while_it_runs=True)
    assert service.outcomes[-1] == ""
