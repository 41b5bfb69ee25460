"""Agents keep their limits, and a proposal has no effect until a person confirms it."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from fttui.engine.config.sections.outward import AgentsConfig
from fttui.engine.hub.intake import ClockReading, Intake
from fttui.engine.protocol.commands import (
    AnyCommand,
    Confirm,
    Decline,
    Propose,
    Recover,
    Resume,
    Rollback,
    ScaleLr,
    SetPolicy,
    Stop,
    TrainingCommand,
    parse_command,
    proposal_name,
)
from fttui.engine.protocol.requests import Accepted, Rejected, SubmitCommand
from fttui.engine.protocol.states import RunState
from tests.support.control_log import MemoryLog

HALVE = ScaleLr(factor=0.5)
HOUR_S = 3600.0


class Hub:
    """An intake, the commands of an agent called bot and of a person called ann."""

    def __init__(self, **limits: object) -> None:
        self.log = MemoryLog()
        self.config = msgspec.convert(limits, AgentsConfig)
        self.intake = Intake(self.log, agents=self.config)
        self.sent = 0

    def restart(self) -> None:
        self.intake = Intake(self.log, agents=self.config)

    def send(
        self,
        command: AnyCommand,
        *,
        agent: Literal["propose", "act"] | None = None,
        now: float = 0.0,
        take: bool = False,
        id_: str = "",
        state: RunState = RunState.RUNNING,
        free: int | None = None,
    ) -> str:
        """Return why the command was rejected; empty if it was accepted."""
        self.sent += 1
        who = "bot" if agent else "ann"
        message = SubmitCommand(
            ref=1, id=id_ or f"c{self.sent}", command=command, viewer=who, issuer=f"{who}@pc",
            reason="overfits", agent=agent, take=take, one_shot=agent is not None,
        )  # fmt: skip
        answer = self.intake.submit(
            message, state=state, now=ClockReading(1e9 + now, now, "boot"), disk_free_bytes=free
        )
        assert isinstance(answer, Accepted | Rejected)
        return answer.reason if isinstance(answer, Rejected) else ""

    def act(self, command: AnyCommand, now: float = 0.0) -> str:
        return self.send(command, agent="act", now=now)

    def propose(self, command: TrainingCommand, now: float = 0.0) -> str:
        """Return the name of an accepted proposal of the agent."""
        assert not self.send(
            Propose(command=command), agent="propose", now=now, id_=f"p{self.sent}"
        )
        return proposal_name(f"p{self.sent - 1}")

    @property
    def newest(self) -> AnyCommand:
        return self.log.entries[-1].command


def test_a_command_of_an_agent_carries_its_limits_to_the_engine() -> None:
    hub = Hub(lr_low=0.5, lr_high=1.5)
    assert not hub.act(HALVE)
    leash = hub.log.entries[-1].leash
    assert leash is not None
    assert (leash.lr_low, leash.lr_high) == (0.5, 1.5)
    assert not hub.send(HALVE)
    assert hub.log.entries[-1].leash is None


@pytest.mark.parametrize(
    ("allow", "agent", "accepted"),
    [
        ("read", "propose", False), ("read", "act", False),
        ("propose", "propose", True), ("propose", "act", False),
        ("act", "propose", True), ("act", "act", True),
    ],
)  # fmt: skip
def test_the_configuration_bounds_the_mode_of_an_agent(
    allow: str, agent: Literal["propose", "act"], accepted: bool
) -> None:
    hub = Hub(allow=allow)
    assert (hub.send(Propose(command=HALVE), agent=agent) == "") is accepted


def test_an_agent_that_may_only_propose_sends_nothing_else() -> None:
    assert "propose lr scale 0.5" in Hub().send(HALVE, agent="propose")


@pytest.mark.parametrize("text", ["resume", "run 5", "policy autopilot act"])
def test_what_a_person_decides_can_only_be_proposed(text: str) -> None:
    hub, command = Hub(), parse_command(text)
    assert f"propose {text}" in hub.act(command)
    assert isinstance(command, TrainingCommand)
    hub.propose(command)


@pytest.mark.parametrize("mode", ["skip", ""])
def test_no_command_does_more_than_its_text_says(mode: str) -> None:
    hidden = SetPolicy(nonfinite=mode, autopilot="act")
    hub = Hub()
    assert "expected nonfinite" in hub.send(Propose(command=hidden), agent="propose")
    assert "expected nonfinite" in hub.send(hidden)


@pytest.mark.parametrize("mode", ["propose", "act"])
def test_no_agent_confirms_declines_or_takes_control(mode: Literal["propose", "act"]) -> None:
    hub = Hub()
    name = hub.propose(HALVE)
    assert "only a person" in hub.send(Confirm(proposal=name), agent=mode)
    assert "only a person" in hub.send(Decline(proposal=name), agent=mode)
    assert "control" in hub.send(Propose(command=HALVE), agent=mode, take=True)
    assert hub.intake.controller is None


def test_no_agent_stops_a_run_without_a_checkpoint() -> None:
    hub = Hub()
    assert "checkpoint" in hub.act(Stop(save=False))
    assert "checkpoint" in hub.send(Propose(command=Stop(save=False)), agent="propose")
    assert not hub.act(Stop())


def test_a_stop_of_an_agent_on_a_full_disk_is_refused() -> None:
    hub = Hub()
    assert "disk" in hub.send(Stop(), agent="act", free=10)
    hub.log.broken = True
    assert "disk" in hub.send(Stop(), agent="act")


def test_the_budget_of_an_hour_holds_over_connections_hubs_and_kinds() -> None:
    hub = Hub(per_hour=3)
    assert not hub.act(HALVE, now=0)
    hub.propose(HALVE, now=1800)
    assert not hub.act(HALVE, now=1900)
    hub.restart()
    refusal = hub.act(HALVE, now=2000)
    assert "agents.per_hour" in refusal
    assert "27 min" in refusal
    assert "agents.per_hour" in hub.act(HALVE, now=-9000), "a clock set back frees no budget"
    assert not hub.send(HALVE, now=2000), "people have no budget"
    hub.intake.release("ann")
    assert not hub.act(HALVE, now=HOUR_S + 1)


def test_rejected_commands_cost_no_budget() -> None:
    hub = Hub(per_hour=1)
    assert hub.act(Resume())
    assert not hub.act(HALVE)


def test_rollbacks_are_counted_for_the_whole_run() -> None:
    hub = Hub(rollbacks=2)
    assert not hub.act(Rollback(checkpoint="last"))
    assert not hub.act(Recover(), now=9 * HOUR_S)
    assert "agents.rollbacks" in hub.act(Rollback(checkpoint="last"), now=99 * HOUR_S)
    assert not hub.send(Rollback(checkpoint="last")), "a person's are not limited"


def test_an_agent_only_proposes_while_a_person_has_control() -> None:
    hub = Hub()
    assert not hub.send(HALVE)
    assert "ann@pc has control" in hub.act(HALVE)
    hub.propose(HALVE)
    assert hub.intake.controller is not None
    assert hub.intake.controller.viewer == "ann"


def test_a_confirmed_proposal_is_the_command_of_the_person() -> None:
    hub = Hub(rollbacks=0)
    name = hub.propose(Rollback(checkpoint="last", lr_scale=0.5))
    assert not hub.send(Confirm(proposal=name), id_="yes")
    entry = hub.log.entries[-1]
    assert entry.command == Rollback(checkpoint="last", lr_scale=0.5)
    assert (entry.issuer, entry.leash, entry.proposal) == ("ann@pc", None, name)
    assert "proposed by bot@pc: overfits" in entry.reason
    assert not hub.send(Confirm(proposal=name), id_="yes"), "a repeated id gets the same answer"
    assert len(hub.log.entries) == 2


def test_a_proposal_is_answered_once_even_by_another_hub() -> None:
    hub = Hub()
    first, second = hub.propose(HALVE), hub.propose(HALVE)
    assert not hub.send(Confirm(proposal=first))
    assert not hub.send(Decline(proposal=second))
    hub.restart()
    assert f"{first} was confirmed by ann@pc" in hub.send(Decline(proposal=first))
    assert f"{second} was declined by ann@pc" in hub.send(Confirm(proposal=second))
    assert "no proposal" in hub.send(Confirm(proposal="p00000"))


def test_a_proposal_expires_by_the_time_since_the_machine_started() -> None:
    hub = Hub(proposal_minutes=10)
    name = hub.propose(HALVE, now=0)
    assert hub.log.entries[-1].expires_at == 1e9 + 600
    assert "expired" in hub.send(Confirm(proposal=name), now=601)
    assert not hub.send(Confirm(proposal=name), now=599)


def test_a_refused_confirmation_leaves_the_proposal_open() -> None:
    hub = Hub()
    name = hub.propose(HALVE)
    assert "halted" in hub.send(Confirm(proposal=name), state=RunState.HALTED)
    assert not hub.send(Confirm(proposal=name))


def test_a_confirmed_change_of_settings_counts_as_one() -> None:
    hub = Hub()
    name = hub.propose(SetPolicy(autopilot="act"))
    before = hub.intake.generation
    assert not hub.send(Confirm(proposal=name))
    assert hub.intake.generation == before + 1
    assert hub.newest == SetPolicy(autopilot="act")
