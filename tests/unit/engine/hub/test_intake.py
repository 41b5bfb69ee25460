from __future__ import annotations

import msgspec
import pytest

from fttui.engine.hub.intake import ClockReading, Intake
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import (
    AddNote,
    AnyCommand,
    Pause,
    Propose,
    Quarantine,
    Rollback,
    RunSteps,
    ScaleLr,
    SetClip,
    SetMix,
    SetPolicy,
    Stop,
)
from fttui.engine.protocol.events import AnyEvent, CommandApplied, NoteAdded, Record
from fttui.engine.protocol.requests import Accepted, Rejected, SubmitCommand
from fttui.engine.protocol.states import RunState
from tests.support.benchmarks import result
from tests.support.control_log import MemoryLog

HALVE = ScaleLr(factor=0.5)
BOOT = "this start of the machine"


def message(
    id_: str = "c1",
    command: AnyCommand = HALVE,
    *,
    viewer: str = "ann",
    expires_at: float | None = None,
    if_generation: int | None = None,
    one_shot: bool = False,
    take: bool = False,
) -> SubmitCommand:
    return SubmitCommand(
        ref=9,
        id=id_,
        command=command,
        viewer=viewer,
        issuer=f"{viewer}@laptop",
        reason="because",
        expires_at=expires_at,
        if_generation=if_generation,
        one_shot=one_shot,
        take=take,
    )


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def intake(log: MemoryLog) -> Intake:
    return Intake(log)


def submit(
    intake: Intake,
    message: SubmitCommand,
    *,
    state: RunState = RunState.RUNNING,
    now: float = 100.0,
    boot_s: float = 0.0,
) -> Accepted | Rejected:
    return intake.submit(message, state=state, now=ClockReading(now, boot_s, BOOT))


def recorded(event: AnyEvent) -> bytes:
    return encode(Record(seq=1, time=0.0, step=3, timeline=1, event=event))


def holder(intake: Intake) -> str:
    """The viewer that has control; empty if none has."""
    return intake.controller.viewer if intake.controller else ""


def refused(answer: Accepted | Rejected) -> str:
    assert isinstance(answer, Rejected)
    return answer.reason


def test_an_accepted_command_is_journaled_with_who_when_and_why(
    intake: Intake, log: MemoryLog
) -> None:
    assert submit(intake, message()) == Accepted(ref=9, id="c1")
    (entry,) = log.entries
    assert (entry.seq, entry.time, entry.issuer, entry.reason) == (
        1,
        100.0,
        "ann@laptop",
        "because",
    )
    assert entry.command == HALVE
    assert entry.rejected is None


def test_a_repeated_id_gets_the_stored_reply_even_after_a_restart(
    intake: Intake, log: MemoryLog
) -> None:
    first = submit(intake, message())
    again = message(expires_at=101.0)
    assert submit(intake, again, state=RunState.FINISHED, now=1e9) == first
    assert submit(Intake(log), message(), state=RunState.FINISHED, now=1e9) == first
    assert len(log.entries) == 1


def test_a_rejection_is_remembered_too(intake: Intake, log: MemoryLog) -> None:
    reason = refused(submit(intake, message(), state=RunState.HALTED))
    assert "halted" in reason
    assert refused(submit(intake, message())) == reason
    assert refused(submit(Intake(log), message())) == reason


def test_the_same_id_for_another_command_is_refused(intake: Intake, log: MemoryLog) -> None:
    submit(intake, message())
    assert "lr scale 0.5" in refused(submit(intake, message(command=Stop())))
    assert len(log.entries) == 1


def test_an_expired_command_is_refused(intake: Intake) -> None:
    assert isinstance(submit(intake, message("a", expires_at=100.0)), Accepted)
    assert "expired 2.5 s" in refused(submit(intake, message("b", expires_at=97.5)))


@pytest.mark.parametrize(
    ("command", "state", "legal"),
    [
        (Pause(), RunState.RUNNING, True),
        (Pause(), RunState.STARTING, False),
        (AddNote(text="x"), RunState.STARTING, True),
        (Rollback(checkpoint="last"), RunState.HALTED, True),
        (HALVE, RunState.HALTED, False),
        (Stop(), RunState.STOPPING, True),
        (Stop(), RunState.FINISHED, False),
        (AddNote(text="x"), RunState.LOST, False),
    ],
)
def test_a_command_must_be_legal_in_the_present_state(
    intake: Intake, command: AnyCommand, state: RunState, legal: bool
) -> None:
    answer = submit(intake, message(command=command), state=state)
    assert isinstance(answer, Accepted if legal else Rejected)


@pytest.mark.parametrize(
    "command",
    [
        ScaleLr(factor=float("nan")),
        ScaleLr(factor=-1.0),
        SetClip(value=float("inf")),
        RunSteps(steps=0),
        SetPolicy(nonfinite="pray"),
        Rollback(checkpoint="last", skip=-3),
        Quarantine(ids=()),
        Quarantine(ids=("a", "")),
        AddNote(text=" "),
        Rollback(checkpoint=""),
    ],
)
def test_values_that_cannot_be_typed_cannot_be_sent(intake: Intake, command: AnyCommand) -> None:
    assert refused(submit(intake, message(command=command)))


@pytest.mark.parametrize(
    "command",
    [
        RunSteps(steps=9_345_678),
        AddNote(text='it\'s "x" -- 3'),
        SetMix(weights={"math set": 2.0, "it's": 1.0}),
        Propose(command=SetMix(weights={"math set": 2.0})),
        Quarantine(ids=("a b", "it's")),
    ],
)
def test_unusual_but_sound_commands_pass(intake: Intake, command: AnyCommand) -> None:
    assert isinstance(submit(intake, message(command=command)), Accepted)


def test_a_result_that_was_measured_beside_the_training_needs_no_control(intake: Intake) -> None:
    submit(intake, message("a"))
    note = AddNote(text="benchmark", result=result())
    assert isinstance(submit(intake, message("b", note, viewer="bob", one_shot=True)), Accepted)
    refused(submit(intake, message("c", AddNote(text="a note"), viewer="bob")))
    assert holder(intake) == "ann"


def test_the_first_writer_has_control_and_others_are_told_who(intake: Intake) -> None:
    submit(intake, message("a"))
    assert intake.controller is not None
    assert intake.controller.issuer == "ann@laptop"
    refusal = refused(submit(intake, message("b", viewer="bob")))
    assert refusal == "ann@laptop has control; take it over with: fttui ctl --take COMMAND"
    assert isinstance(submit(intake, message("c")), Accepted)


def test_control_can_be_taken_over_and_given_up(intake: Intake) -> None:
    submit(intake, message("a"))
    intake.take("bob", "bob@desk")
    assert "bob@desk" in refused(submit(intake, message("b")))
    intake.release("ann")  # she has none to give
    assert "bob@desk" in refused(submit(intake, message("c")))
    intake.release("bob")
    assert isinstance(submit(intake, message("d")), Accepted)


def test_a_script_is_served_without_becoming_the_controller(intake: Intake) -> None:
    assert isinstance(submit(intake, message("a", viewer="ctl", one_shot=True)), Accepted)
    assert intake.controller is None
    submit(intake, message("b"))
    assert "ann@laptop" in refused(submit(intake, message("c", viewer="ctl", one_shot=True)))


def test_a_command_can_take_control_in_the_same_request(intake: Intake) -> None:
    submit(intake, message("a"))
    taken = message("b", viewer="ctl", one_shot=True, take=True)
    assert isinstance(submit(intake, taken), Accepted)
    assert holder(intake) == ""
    submit(intake, message("c"))
    assert isinstance(submit(intake, message("d", viewer="bob", take=True)), Accepted)
    assert holder(intake) == "bob"


def test_a_rejected_command_takes_no_control(intake: Intake) -> None:
    submit(intake, message("a"))
    nonsense = message("b", SetClip(value=-1.0), viewer="ctl", one_shot=True, take=True)
    assert refused(submit(intake, nonsense))
    assert holder(intake) == "ann"


def test_a_rejected_command_gives_no_control(intake: Intake, log: MemoryLog) -> None:
    submit(intake, message("a"), state=RunState.STARTING)
    log.broken = True
    submit(intake, message("b"))
    assert intake.controller is None


def test_two_viewers_pressing_halve_do_not_quarter(intake: Intake, log: MemoryLog) -> None:
    seen = intake.generation
    answers = [
        submit(intake, message(id_, one_shot=True, if_generation=seen)) for id_ in ("a", "b")
    ]
    assert isinstance(answers[0], Accepted)
    assert f"(generation {seen}, now {seen + 1})" in refused(answers[1])
    assert [e.seq for e in log.entries if e.rejected is None] == [1]


def test_only_settings_move_the_generation_and_it_survives(intake: Intake, log: MemoryLog) -> None:
    submit(intake, message("a", Pause()))
    assert intake.generation == 0
    submit(intake, message("b", SetClip(value=0.5)))
    submit(intake, message("c", SetClip(value=float("nan"))))
    assert intake.generation == 1
    assert Intake(log).generation == 1


def test_a_full_disk_rejects_and_stays_so(intake: Intake, log: MemoryLog) -> None:
    log.broken = True
    assert refused(submit(intake, message())).startswith("disk")
    log.broken = False
    assert refused(submit(intake, message())).startswith("disk")
    assert log.entries == []
    assert intake.generation == 0
    assert isinstance(submit(intake, message("c2")), Accepted)
    assert [e.seq for e in log.entries] == [1]


@pytest.mark.parametrize(
    ("applied", "sent", "counted"),
    [
        (ScaleLr(factor=0.5), True, 0),
        (ScaleLr(factor=0.5), False, 1),
        (SetPolicy(autopilot="off"), False, 1),
        (Rollback(checkpoint="last", lr_scale=0.5), True, 1),
        (Rollback(checkpoint="last", lr_scale=0.5), False, 1),
        (Pause(), True, 0),
        (Pause(), False, 0),
        (AddNote(text="x"), False, 0),
    ],
)
def test_a_record_counts_if_it_shows_settings_that_no_viewer_could_know(
    intake: Intake, applied: AnyCommand, sent: bool, counted: int
) -> None:
    if sent:
        assert isinstance(submit(intake, message(command=applied)), Accepted)
    before = intake.generation
    intake.observe(recorded(CommandApplied(id="c1", command="", old="", new="", applied=applied)))
    assert intake.generation == before + counted


def test_a_record_of_an_unknown_command_counts_and_other_records_do_not(intake: Intake) -> None:
    intake.observe(recorded(NoteAdded(text="CommandApplied", issuer="me")))
    intake.observe(b"no record, but it names CommandApplied")
    assert intake.generation == 0
    intake.observe(recorded(CommandApplied(id="x", command="teleport", old="", new="")))
    assert intake.generation == 1


@pytest.mark.parametrize("step_s", [-86_400.0, -1.0, 1.0, 86_400.0])
def test_a_change_of_the_clock_expires_nothing_and_saves_nothing(
    intake: Intake, step_s: float
) -> None:
    timed = msgspec.structs.replace(message("a", expires_at=130.0), expires_boot_s=40.0, boot=BOOT)
    assert isinstance(submit(intake, timed, now=100.0 + step_s, boot_s=39.0), Accepted)
    late = msgspec.structs.replace(timed, id="b")
    assert "expired 2.5 s" in refused(submit(intake, late, now=100.0 + step_s, boot_s=42.5))


def test_seconds_since_another_start_of_the_machine_do_not_count(intake: Intake) -> None:
    other = msgspec.structs.replace(
        message("a", expires_at=130.0), expires_boot_s=1.0, boot="other"
    )
    assert isinstance(submit(intake, other, now=100.0, boot_s=50.0), Accepted)
    assert "expired 1.0 s" in refused(
        submit(intake, msgspec.structs.replace(other, id="b"), now=131.0, boot_s=0.0)
    )


def test_only_a_stop_is_obeyed_on_a_full_disk_and_its_answer_says_so(
    intake: Intake, log: MemoryLog
) -> None:
    log.broken = True
    first = submit(intake, message("stop", Stop()))
    assert isinstance(first, Accepted)
    assert "not recorded" in first.unjournaled
    assert "No space left" in first.unjournaled
    assert submit(intake, message("stop", Stop())) == first, "a repeated id repeats the answer"
    for other in (HALVE, Pause(), AddNote(text="x")):
        assert refused(submit(intake, message(f"o{other}", other))).startswith("disk")
    refused(submit(intake, message("late", Stop()), state=RunState.FINISHED))
    log.broken = False
    later = submit(intake, message("again", Stop()))
    assert isinstance(later, Accepted)
    assert later.unjournaled == ""


@pytest.mark.parametrize("command", [HALVE, Pause(), AddNote(text="x")])
def test_nothing_but_a_stop_is_accepted_without_room_to_record_what_it_does(
    intake: Intake, log: MemoryLog, command: AnyCommand
) -> None:
    clock = ClockReading(100.0, 0.0, BOOT)

    def sent(id_: str, command: AnyCommand, free: int | None) -> Accepted | Rejected:
        return intake.submit(
            message(id_, command), state=RunState.RUNNING, now=clock, disk_free_bytes=free
        )

    assert refused(sent("a", command, 0)).startswith("disk: 0 bytes are free")
    assert sent("b", Stop(), 0) == Accepted(ref=9, id="b")
    assert isinstance(sent("c", command, None), Accepted)
    assert isinstance(sent("d", command, 2**20), Accepted)
    assert isinstance(sent("a", command, 2**20), Rejected), "a repeated id repeats the answer"
    assert [e.rejected is None for e in log.entries] == [False, True, True, True]


def test_what_the_trainer_cannot_do_is_rejected_with_the_reason(intake: Intake) -> None:
    clock, cannot = ClockReading(100.0, 0.0, BOOT), {"lr scale": "FSDP shards the optimizer"}
    answer = intake.submit(message(), state=RunState.RUNNING, now=clock, refused=cannot)
    assert refused(answer) == "not possible in this run: FSDP shards the optimizer"
    noted = message("c2", AddNote(text="hello"))
    assert intake.submit(noted, state=RunState.RUNNING, now=clock, refused=cannot) == Accepted(
        ref=9, id="c2"
    )


def test_a_command_to_an_ended_run_is_told_what_resumes_that_run(log: MemoryLog) -> None:
    intake = Intake(log, "resume it with: fttui run --resume a-run")
    assert refused(submit(intake, message(), state=RunState.LOST)) == (
        "the run is lost and takes no commands; resume it with: fttui run --resume a-run"
    )
