from __future__ import annotations

from fttui.engine.core.replay.planned_commands import PlannedCommands
from fttui.engine.protocol.commands import describe_command


def planned(*commands: tuple[int, str]) -> PlannedCommands:
    return PlannedCommands(commands)


def due(plan: PlannedCommands, step: int) -> list[str]:
    return [describe_command(command) for command in plan.due(step)]


def test_a_command_is_given_out_once_at_its_step() -> None:
    plan = planned((0, "clip off"), (3, "lr scale 0.5"), (3, "skip 2"))
    assert due(plan, 0) == ["clip off"]
    assert due(plan, 0) == due(plan, 1) == due(plan, 2) == []
    assert due(plan, 3) == ["lr scale 0.5", "skip 2"]
    assert due(plan, 3) == []


def test_a_checkpoint_has_the_commands_of_its_step_in_it() -> None:
    plan = planned((3, "lr scale 0.5"), (5, "skip 2"))
    plan.restored(3)
    assert due(plan, 3) == due(plan, 4) == []
    assert due(plan, 5) == ["skip 2"]


def test_after_a_rollback_later_commands_are_given_out_again() -> None:
    plan = planned((3, "lr scale 0.5"), (5, "skip 2"))
    for step in range(6):
        due(plan, step)
    plan.restored(2)
    assert due(plan, 2) == []
    assert due(plan, 3) == ["lr scale 0.5"]
    assert due(plan, 5) == ["skip 2"]


def test_what_was_not_due_is_left() -> None:
    plan = planned((3, "lr scale 0.5"), (5, "skip 2"), (9, "skip 1"))
    assert plan.left == [3, 5, 9]
    due(plan, 3)
    assert plan.left == [5, 9]
    plan.restored(7)
    assert plan.left == [9]


def test_a_plan_without_commands_is_false() -> None:
    assert not planned()
    assert planned((3, "skip 2"))
