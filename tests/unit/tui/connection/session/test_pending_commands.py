"""Which commands are sent again, and when."""

from __future__ import annotations

from fttui.engine.protocol.commands import Pause
from fttui.engine.protocol.requests import SubmitCommand
from fttui.tui.connection.session.pending_commands import PendingCommands


def command(id_: str) -> SubmitCommand:
    return SubmitCommand(ref=0, id=id_, command=Pause(), viewer="v", issuer="i")


def test_a_command_is_repeated_only_when_its_answer_is_overdue() -> None:
    pending, message = PendingCommands(), command("a")
    pending.add(message)
    assert list(pending.due(5.0, 2.0)) == [message]
    assert list(pending.due(6.9, 2.0)) == []
    assert list(pending.due(7.0, 2.0)) == [message]
    assert list(pending.due(8.9, 2.0)) == [], "sent again at 7.0"
    assert list(pending.due(8.9, 0.0)) == [message]


def test_only_commands_that_were_never_sent_are_unsent() -> None:
    pending = PendingCommands()
    pending.add(command("a"))
    assert [m.id for m in pending.unsent(0.0)] == ["a"]
    pending.add(command("b"))
    assert [m.id for m in pending.unsent(0.0)] == ["b"]
    assert list(pending.unsent(99.0)) == []
    assert [m.id for m in pending.due(2.0, 2.0)] == ["a", "b"]


def test_an_answered_command_is_forgotten_once() -> None:
    pending = PendingCommands()
    pending.add(command("a"))
    pending.add(command("b"))
    assert pending.ids() == ["a", "b"]
    assert pending.answered("a")
    assert not pending.answered("a")
    assert not pending.answered("never sent")
    assert [m.id for m in pending.due(0.0, 0.0)] == ["b"]
