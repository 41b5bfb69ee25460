from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.hub.ssh_bridge.request_router import RequestRouter
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import Pause
from fttui.engine.protocol.requests import (
    Accepted,
    ClientMessage,
    ConfigTexts,
    DataSampleRecords,
    FetchConfig,
    FetchDataSample,
    FetchHistory,
    FetchReport,
    Ping,
    Pong,
    Refused,
    Rejected,
    ReleaseControl,
    SubmitCommand,
    TakeControl,
)
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run

SUBMIT = SubmitCommand(ref=5, id="c1", command=Pause(), viewer="v", issuer="ann")
TAKE = TakeControl(ref=6, viewer="v", issuer="ann")
RELEASE = ReleaseControl(ref=7, viewer="v")


class HubDouble:
    """A hub connection that only keeps what it is asked."""

    def __init__(self, *, connected: bool = True, engine_alive: bool = True) -> None:
        self.connected, self.engine_alive = connected, engine_alive
        self.refusal = ""
        self.asked: list[ClientMessage] = []

    def ask(self, message: ClientMessage) -> None:
        self.asked.append(message)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path)


def answer(run: RunDirectory, hub: Any, message: ClientMessage, why_read_only: str = "") -> Any:
    return RequestRouter(run, hub, why_read_only).answer(encode(message))


@pytest.mark.parametrize("message", [SUBMIT, TAKE, RELEASE])
def test_commands_and_control_are_passed_on_to_the_hub(
    run: RunDirectory, message: ClientMessage
) -> None:
    hub = HubDouble()
    assert answer(run, hub, message) is None
    assert hub.asked == [message]


def test_the_folder_and_the_bridge_answer_the_rest(run: RunDirectory) -> None:
    hub = HubDouble()
    assert isinstance(answer(run, hub, FetchConfig(ref=1)), ConfigTexts)
    assert isinstance(answer(run, hub, FetchReport(ref=2, report="b1")), Refused)
    assert answer(run, hub, FetchDataSample(ref=3)) == DataSampleRecords(ref=3, records=[])
    assert answer(run, hub, Ping(ref=3)) == Pong(ref=3)
    refused = answer(run, hub, FetchHistory(ref=4, after_seq=0))
    assert (refused.ref, "without a request" in refused.reason) == (4, True)
    assert RequestRouter(run, hub, "").answer(b"\xc1").ref == 0  # type: ignore[arg-type, union-attr]
    assert hub.asked == []


@pytest.mark.parametrize("message", [SUBMIT, TAKE, RELEASE])
def test_a_read_only_viewer_and_one_the_hub_refused_reach_no_hub(
    run: RunDirectory, message: ClientMessage
) -> None:
    hub = HubDouble()
    assert answer(run, hub, message, "only to watch").reason == "only to watch"
    hub.refusal = "another version"
    assert answer(run, hub, message).reason == "another version"
    assert hub.asked == []


@pytest.mark.parametrize(("connected", "alive"), [(True, False), (False, True)])
def test_a_hub_or_an_engine_is_enough_to_ask(
    run: RunDirectory, connected: bool, alive: bool
) -> None:
    hub = HubDouble(connected=connected, engine_alive=alive)
    assert answer(run, hub, SUBMIT) is None
    assert hub.asked == [SUBMIT]


def test_without_hub_and_engine_a_command_gets_its_earlier_decision_or_the_next_step(
    run: RunDirectory,
) -> None:
    hub = HubDouble(connected=False, engine_alive=False)
    unknown = answer(run, hub, SUBMIT)
    assert isinstance(unknown, Rejected)
    assert f"fttui run --resume {run.id}" in unknown.reason
    assert isinstance(answer(run, hub, TAKE), Refused)
    control = ControlWriter(run)
    for seq, (id_, rejected) in enumerate((("c1", None), ("c2", "it expired")), start=1):
        control.append(
            ControlEntry(
                seq=seq, time=0.0, id=id_, command=Pause(), issuer="ann", rejected=rejected
            )
        )
    control.close()
    assert answer(run, hub, SUBMIT) == Accepted(ref=5, id="c1")
    second = SubmitCommand(ref=8, id="c2", command=Pause(), viewer="v", issuer="ann")
    assert answer(run, hub, second) == Rejected(ref=8, id="c2", reason="it expired")
    assert hub.asked == []
