"""Chats as text: folded from events, side by side or below, without control characters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked, ChatContinued, ChatEvent
from fttui.engine.protocol.command_kinds import Chat, ChatTurn, KeepPrompt
from fttui.engine.protocol.events import AnyEvent, Record
from fttui.tui.dialogs.chat_input import read_chat, with_setting
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.chat.draft import ChatDraft, unused_name
from fttui.tui.view_model.chat.exchange import Exchange, folded
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from fttui.tui.widgets.chat_text import chat_rows
from tests.support.session_double import eventful

ASKED = ChatAsked(conversation="c1", prompt="how?", answerers=("base", "adapter"))
BASE = ChatAnswered(answerer="base", text="by base", tokens=2, ending="limit")
ADAPTER = ChatAnswered(answerer="adapter", text="bad \x1b[2J text", tokens=3, ending="end")


def chats(*events: ChatEvent) -> tuple[Exchange, ...]:
    known: tuple[Exchange, ...] = ()
    for number, event in enumerate(events):
        at = Record(seq=number, time=0.0, step=40, timeline=1, event=event)  # type: ignore[arg-type]  # one of the union
        known = folded(known, at, event)
    return known


def shown(known: tuple[Exchange, ...], width: int = 100, *, answering: bool = False) -> list[str]:
    return [row.plain.rstrip() for row in chat_rows(known, width, answering=answering)]


def test_answers_grow_and_are_replaced_by_the_whole_text() -> None:
    grown = (
        ChatContinued(answerer="base", start=0, text="by bose"),
        ChatContinued(answerer="base", start=4, text="ase"),
    )
    assert chats(ASKED, *grown)[0].answers[0].text == "by base"
    assert not chats(ASKED, *grown, BASE)[0].answered
    assert chats(ASKED, *grown, BASE, ADAPTER)[0].answered
    assert chats(*grown, ADAPTER) == (), "the prompt was in a part of the journal not read"


def test_the_answers_are_side_by_side_and_safe_to_show() -> None:
    rows = shown(chats(ASKED, BASE, ADAPTER))
    (names,) = [row for row in rows if row.startswith("base ")]
    assert names.split(" │ ")[1] == "adapter at step 40"
    (texts,) = [row for row in rows if row.startswith("by base")]
    assert "\\x1b[2J" in texts
    assert "cut at the token limit" in " ".join(rows)
    assert all(len(row) <= 100 for row in rows)


def test_with_little_room_an_answer_is_below_the_other() -> None:
    rows = shown(chats(ASKED, BASE, ADAPTER), 60)
    assert rows.index("base") < rows.index("adapter at step 40")
    assert not any("│" in row for row in rows)


def test_an_answer_that_is_missing_is_not_passed_over() -> None:
    assert any("…" in row for row in shown(chats(ASKED, BASE), answering=True))
    assert any("no answer" in row for row in shown(chats(ASKED, BASE)))


def test_why_no_base_answers_is_shown() -> None:
    asked = ChatAsked(conversation="", prompt="a", answerers=("model",), notes=("no base: why",))
    rows = shown(chats(asked, ChatAnswered(answerer="model", text="x\ty", ending="end")))
    assert "no base: why" in rows
    assert rows[0].startswith("── single prompt")


def test_the_next_prompt_carries_the_turns_of_its_conversation() -> None:
    other = ChatAsked(conversation="c2", prompt="b", answerers=("base", "adapter"))
    known = chats(ASKED, BASE, ADAPTER, other, BASE, ADAPTER, ASKED, BASE)
    command = ChatDraft(conversation="c1", system="s").command("next", known)
    assert command.turns == (ChatTurn(prompt="how?", base="by base", now=ADAPTER.text),)
    assert ChatDraft().command("next", known[:2]).conversation == "c2", "the newest one"
    assert (unused_name(known), unused_name(())) == ("c3", "c1")


def test_the_view_folds_chats_from_the_journal() -> None:
    events: list[AnyEvent] = [ASKED, BASE, ADAPTER]
    records = [
        Record(seq=n, time=1.0 * n, step=40, timeline=1, event=event)
        for n, event in enumerate(events, 1)
    ]
    assert [a.text for a in apply_many(RunView(), records).chats[0].answers] == [
        "by base",
        ADAPTER.text,
    ]


@pytest.mark.parametrize(
    ("typed", "fault"),
    [
        ("/temperature hot", "must be a number"),
        ("/temperature inf", "the temperature must be ≤ 10, got inf"),
        ("/tokens 0", "≥ 1"),
        ("/speed 3", "expected /sys"),
        ("/checkpoint", "expected /sys"),
        ("/checkpoint 7", "no checkpoint '7'; existing checkpoints: none yet"),
        ("/keep", "there is no prompt yet"),
    ],
)
def test_a_wrong_setting_of_a_chat_says_what_is_expected(typed: str, fault: str) -> None:
    assert fault in read_chat(typed, AppState()).error


def test_settings_of_a_chat_are_told_before_they_are_kept() -> None:
    read = read_chat("/temperature 0.7", AppState())
    assert read.text == "/temperature 0.7"
    assert "temperature 0.7" in read.preview
    assert "conversation c1, 0 turns" in read_chat("/new", AppState()).preview
    assert read_chat(" ", AppState()).needs


def test_a_prompt_may_begin_with_a_slash() -> None:
    command = read_chat("//etc/hosts is", AppState()).command
    assert isinstance(command, Chat)
    assert command.prompt == "/etc/hosts is"


def test_a_checkpoint_answers_until_now_is_chosen_again_and_a_prompt_is_kept() -> None:
    run = apply_many(RunView(), eventful().records)
    state = AppState(run=run)
    name = run.checkpoints[0].name
    read = read_chat(f"/checkpoint {name}", state)
    assert f"answers: {name}" in read.preview
    draft = with_setting(state.chat, f"/checkpoint {name}", ())
    assert draft.command("hi", ()).checkpoint == name
    assert with_setting(draft, "/checkpoint now", ()).command("hi", ()).checkpoint == ""
    asked = Exchange(3, ASKED, ())
    kept = read_chat("/keep", replace(state, run=replace(run, chats=(asked,)))).command
    assert kept == KeepPrompt(prompt=ASKED.prompt)
