"""Any order of submissions, repetitions, restarts and disk failures decides each id once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from fttui.engine.hub.intake import ClockReading, Intake
from fttui.engine.protocol.commands import AnyCommand, Pause, ScaleLr, Stop
from fttui.engine.protocol.requests import Accepted, Rejected, SubmitCommand
from fttui.engine.protocol.states import RunState
from tests.support.control_log import MemoryLog

COMMANDS: list[AnyCommand] = [Pause(), ScaleLr(factor=0.5), ScaleLr(factor=float("nan")), Stop()]


class IntakeMachine(RuleBasedStateMachine):
    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        self.log = MemoryLog()
        self.intake = Intake(self.log)
        self.now = 100.0
        self.state = RunState.RUNNING
        self.made = 0
        self.durable: dict[str, tuple[bool, str]] = {}
        """What was told and journaled: must be repeated for ever."""

    @rule(
        target=messages,
        command=st.sampled_from(COMMANDS),
        viewer=st.sampled_from(["ann", "bob"]),
        patience=st.none() | st.floats(-1, 10),
        behind=st.none() | st.integers(0, 1),
        one_shot=st.booleans(),
    )
    def compose(
        self,
        command: AnyCommand,
        viewer: str,
        patience: float | None,
        behind: int | None,
        one_shot: bool,
    ) -> SubmitCommand:
        self.made += 1
        return SubmitCommand(
            ref=self.made,
            id=f"c{self.made}",
            command=command,
            viewer=viewer,
            issuer=viewer,
            expires_at=None if patience is None else self.now + patience,
            if_generation=None if behind is None else self.intake.generation - behind,
            one_shot=one_shot,
        )

    @rule(message=messages)
    def submit(self, message: SubmitCommand) -> None:
        answer = self.intake.submit(message, state=self.state, now=ClockReading(self.now))
        told = (isinstance(answer, Accepted), answer.reason if isinstance(answer, Rejected) else "")
        assert (answer.id, answer.ref) == (message.id, message.ref)
        if message.id in self.durable:
            assert told == self.durable[message.id]
        if any(entry.id == message.id for entry in self.log.entries):
            self.durable[message.id] = told
        elif told[0]:
            assert isinstance(answer, Accepted)
            assert answer.unjournaled, "accepted, but not in the control journal, and not said"
            assert isinstance(message.command, Stop)

    @rule(message=messages)
    def misuse(self, message: SubmitCommand) -> None:
        if message.id in self.durable:
            other = next(c for c in COMMANDS if type(c) is not type(message.command))
            wrong = SubmitCommand(ref=1, id=message.id, command=other, viewer="ann", issuer="ann")
            assert isinstance(
                self.intake.submit(wrong, state=self.state, now=ClockReading(self.now)), Rejected
            )

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(state=st.sampled_from(list(RunState)))
    def move(self, state: RunState) -> None:
        self.state = state

    @rule(viewer=st.sampled_from(["ann", "bob"]), take=st.booleans())
    def hand_over(self, viewer: str, take: bool) -> None:
        if take:
            self.intake.take(viewer, viewer)
        else:
            self.intake.release(viewer)

    @rule()
    def restart(self) -> None:
        self.intake = Intake(self.log)

    @rule(broken=st.booleans())
    def disk(self, broken: bool) -> None:
        self.log.broken = broken

    @invariant()
    def each_id_is_decided_once_in_order(self) -> None:
        ids = [entry.id for entry in self.log.entries]
        assert len(ids) == len(set(ids))
        assert [entry.seq for entry in self.log.entries] == list(range(1, len(ids) + 1))
        generations = [entry.generation for entry in self.log.entries]
        assert generations == sorted(generations)
        assert not generations or self.intake.generation == generations[-1]


IntakeMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestIntake = IntakeMachine.TestCase
