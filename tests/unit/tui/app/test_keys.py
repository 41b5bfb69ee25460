from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from fttui.engine.errors import EngineGone, FttuiError
from fttui.engine.protocol.commands import (
    AddNote,
    AnyCommand,
    Chat,
    Evaluate,
    GenerateSample,
    MeasureGradients,
    Pause,
    ProfileSteps,
    ResetLr,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    ScaleLr,
    SetClip,
    SetLr,
    SetPolicy,
    SkipBatches,
    Stop,
)
from fttui.engine.protocol.data.sample import SampleRecord, SampleSpan, SampleText
from fttui.engine.protocol.event_parts import DataFinding
from fttui.engine.protocol.events import DataFindingsChanged, StateChanged
from fttui.engine.protocol.requests import ConfigTexts
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import Identity
from fttui.tui.app import FttuiApp
from fttui.tui.preferences import Preferences
from fttui.tui.screens.incident_page import IncidentPage
from fttui.tui.screens.modals.confirm import ConfirmScreen
from fttui.tui.screens.modals.help import HelpScreen
from fttui.tui.screens.modals.prompt import PromptScreen
from fttui.tui.screens.modals.rollback import RollbackScreen
from fttui.tui.screens.text_page import TextPage
from fttui.tui.view_model.connection_port import Link
from fttui.tui.view_model.interventions import UNDO
from tests.support.matrix import in_part
from tests.support.session_double import FakeSession, eventful, failed, live_spike, loading
from tests.unit.tui.app.driving import driven, text_of, told, until
from tests.unit.tui.app.folders import SAMPLE
from tests.unit.tui.text.test_control_characters import HOSTILE, unsafe

AT_ONCE = [
    (["space"], Pause()),
    (["s"], SaveCheckpoint()),
    (["e"], Evaluate()),
    (["G"], MeasureGradients()),
    (["T"], ProfileSteps()),
    (["l", *"x0.5", "enter"], ScaleLr(factor=0.25)),
    (["l", *"=1e-4", "enter"], SetLr(value=1e-4)),
    (["l", *"reset", "enter"], ResetLr()),
    (["c", *"0.3", "enter"], SetClip(value=0.3)),
    (["c", *"p90", "enter"], SetClip(percentile=90.0)),
    (["S", *"best", "enter"], SaveCheckpoint(pin=True, note="best")),
    (["S", "enter"], SaveCheckpoint(pin=True)),
    (["N", *"50", "enter"], RunSteps(steps=50)),
    (["k", *"12", "enter"], SkipBatches(steps=12)),
    (["n", *"odd", "enter"], AddNote(text="odd")),
    (["g", *"hi", "enter"], GenerateSample(prompt="hi")),
    (["i", *"hi", "enter"], Chat(prompt="hi", conversation="c1")),
    (["i", *"/tokens 7", "enter", *"hi", "enter"], Chat(prompt="hi", tokens=7, conversation="c1")),
    (["P", *"halt", "enter"], SetPolicy(nonfinite="halt")),
    (["P", *"autopilot act", "enter"], SetPolicy(autopilot="act")),
    (["x", "y"], Stop(save=True)),
    (["x", "enter"], Stop(save=True)),
    (["x", "d"], Stop(save=False)),
    (["r", "enter"], Rollback(checkpoint="step-001200-t2")),
    (["r", "down", "enter"], Rollback(checkpoint="step-000800-t1")),
    (
        ["r", "tab", *"0.5", "tab", *"0.4", "tab", *"12", "enter"],
        Rollback(checkpoint="step-001200-t2", lr_scale=0.5, clip=0.4, skip=12),
    ),
    (["4", "down", "enter", "enter"], Rollback(checkpoint="step-000800-t1")),
]


async def _sent_by(
    rows: Iterable[Sequence[str]], app: FttuiApp, pilot: Pilot[int]
) -> list[list[AnyCommand]]:
    """What each row of keys sent to a session that answers nothing, so that all begin alike."""
    session = app.session
    assert isinstance(session, FakeSession)
    found: list[list[AnyCommand]] = []
    for keys in rows:
        before = len(session.submitted)
        await pilot.press(*keys)
        await until(pilot, partial(_sent_more, session, before))
        found.append(session.submitted[before:])
        await pilot.press("1")
        await until(pilot, lambda: app.current_mode == "dashboard")
    return found


def _sent_more(session: FakeSession, before: int) -> bool:
    return len(session.submitted) > before


def _shows(app: FttuiApp, words: str) -> bool:
    return words in text_of(app)


async def test_a_key_sends_its_command() -> None:
    session = FakeSession(eventful())
    session.answers = False
    async with driven(session) as (app, pilot):
        assert await _sent_by([keys for keys, _ in AT_ONCE], app, pilot) == [
            [c] for _, c in AT_ONCE
        ]


async def test_every_question_can_be_left() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        for key, leave in (("l", "escape"), ("x", "escape"), ("x", "n"), ("r", "escape")):
            await pilot.press(key)
            await until(pilot, lambda: len(app.screen_stack) == 2)
            await pilot.press(leave)
            await until(pilot, lambda: len(app.screen_stack) == 1)
    assert session.submitted == []


async def test_a_factor_is_sent_with_the_generation_it_was_seen_at() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (_, pilot):
        await pilot.press("l", *"x2", "enter")
        await pilot.press("l", *"=1e-4", "enter")
        await until(pilot, lambda: len(session.submitted) == 2)
    assert session.guards == [3, None]


@pytest.mark.parametrize("held", in_part([RunState.PAUSED, RunState.HALTED], [RunState.HALTED]))
async def test_space_resumes_what_is_paused_or_halted(held: RunState) -> None:
    session = FakeSession(eventful())
    session.script.add(StateChanged(state=held))
    async with driven(session) as (_, pilot):
        await pilot.press("space")
        await until(pilot, lambda: bool(session.submitted))
    assert session.submitted == [Resume()]


async def test_recovery_shows_what_it_does_and_names_the_anomaly() -> None:
    session = FakeSession(live_spike())
    async with driven(session) as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "441 steps" in text_of(app)
        await pilot.press("y")
        await until(pilot, lambda: bool(session.submitted))
    assert session.submitted == [Rollback(checkpoint="step-000800-t1", lr_scale=0.5, skip=12)]
    assert session.reasons == ["anomaly a1241"]


ADVICE: list[tuple[str, str, AnyCommand]] = [
    ("eval", "evaluate", Evaluate()),
    ("profile 2", "profile", ProfileSteps(steps=2)),
    ("lr scale 0.35", "change the LR", ScaleLr(factor=0.35)),
    ("clip 0.3", "change the clip", SetClip(value=0.3)),
    ("stop no-save", "stop without a checkpoint", Stop(save=False)),
]


@pytest.mark.parametrize(("way", "name", "sent"), in_part(ADVICE, [ADVICE[2]]))
async def test_the_advice_is_asked_for_by_its_own_name(
    way: str, name: str, sent: AnyCommand
) -> None:
    session = FakeSession(live_spike(way, "pause"))
    async with driven(session) as (app, pilot):
        await pilot.press("3")
        await until(pilot, lambda: f"R {name}" in text_of(app))
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        shown = text_of(app)
        assert app.screen.query_one("#dialog").border_title == name
        assert f"y {name}" in shown
        assert "alternatives in the report: pause" in shown
        await pilot.press("y")
        await until(pilot, lambda: bool(session.submitted))
    assert session.submitted == [sent]


async def test_undo_restores_the_value_before_and_then_the_one_before_that() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("l", *"x0.5", "enter")
        await until(pilot, lambda: app.state.run.lr_scale == 0.25)
        await pilot.press("u")
        await until(pilot, lambda: app.state.run.lr_scale == 0.5)
        await pilot.press("u")
        await until(pilot, lambda: len(session.submitted) == 3)
    assert session.submitted[1:] == [ScaleLr(factor=0.5), SetClip(value=1.0)]
    assert session.reasons[1] == f"{UNDO}mine-1"


async def test_a_policy_is_undone_too() -> None:
    script = eventful().command("policy autopilot act", "autopilot propose", "autopilot act")
    session = FakeSession(script)
    async with driven(session) as (_, pilot):
        await pilot.press("u")
        await until(pilot, lambda: bool(session.submitted))
    assert session.submitted == [SetPolicy(autopilot="propose")]


TASKS = {
    "halve the learning rate": ("l", *"x.5", "enter"),
    "pause, or resume": ("space",),
    "write a checkpoint": ("s",),
    "roll back to the checkpoint before the newest": ("r", "down", "enter"),
    "follow the advice on a spike": ("R", "y"),
    "stop, with a checkpoint": ("x", "y"),
}
"""The commonest tasks and the fewest keys for each, from the dashboard; docs/app.md has them."""
DONE = [
    ScaleLr(factor=0.25), Pause(), SaveCheckpoint(), Rollback(checkpoint="step-000800-t1"),
    Rollback(checkpoint="step-000800-t1", lr_scale=0.5, skip=12), Stop(),
]  # fmt: skip


async def test_the_commonest_tasks_take_as_few_keys_as_the_manual_says() -> None:
    session = FakeSession(live_spike())
    session.answers = False
    async with driven(session) as (app, pilot):
        assert await _sent_by(TASKS.values(), app, pilot) == [[command] for command in DONE]
    manual = (Path(__file__).parents[4] / "docs" / "app.md").read_text().splitlines()
    for task, keys in TASKS.items():
        row = next(line for line in manual if line.startswith(f"| {task} |"))
        assert row.split("|")[3].strip() == str(len(keys)), task


async def test_every_act_answers_in_place() -> None:
    session = FakeSession(eventful())
    session.answers = False
    async with driven(session) as (app, pilot):
        await pilot.press("e")
        await until(pilot, lambda: "sent" in text_of(app))
    session = FakeSession(eventful())
    session.refuse = "no eval data"
    async with driven(session) as (app, pilot):
        await pilot.press("e")
        await until(pilot, lambda: "rejected: no eval data" in text_of(app))
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("c", *"0.3", "enter")
        await until(pilot, lambda: "applied from 1,241 (0.5 → 0.3)" in text_of(app))


OUTCOMES = [([], False), (["5"], False), (["2"], True), (["8"], True), (["down", "enter"], True)]


@pytest.mark.parametrize(("way", "toasted"), in_part(OUTCOMES, [OUTCOMES[1], OUTCOMES[4]]))
async def test_an_outcome_is_toasted_where_no_list_shows_it(way, toasted) -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press(*way)
        await pilot.pause()
        await pilot.press("e")
        await until(pilot, lambda: app.state.run.interventions.items[-1].settled)
        await pilot.pause()
        assert ("eval: done at 1,240" in told(app)) is toasted
        session.refuse = "not now"
        await pilot.press("e")
        await until(pilot, lambda: app.state.run.interventions.items[-1].refusal == "not now")
        await pilot.pause()
        assert ("eval: rejected: not now" in told(app)) is toasted


async def test_the_prompt_says_what_it_would_do_and_refuses_nonsense() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("l", *"x0.5")
        await until(pilot, lambda: "schedule × 0.25 scale =" in text_of(app))
        await pilot.press("backspace", "backspace", "backspace", "enter")
        await until(pilot, lambda: "expected a factor > 0" in text_of(app))
        assert isinstance(app.screen, PromptScreen)
    assert session.submitted == []


async def test_a_key_that_is_not_legal_says_why() -> None:
    session = FakeSession(failed(), read_only=True, link=Link.ENDED)
    async with driven(session) as (app, pilot):
        for key in ("space", "l", "c", "s", "r", "e", "x", "N", "u", "R"):
            app.clear_notifications()
            assert "the run is failed" not in told(app)
            await pilot.press(key)
            await until(pilot, lambda: "the run is failed" in told(app))
            assert len(app.screen_stack) == 1, key
    assert session.submitted == []


async def test_control_is_released_taken_and_taken_over() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("t")
        await until(pilot, lambda: session.control_calls == ["release"])
        await until(pilot, lambda: "t takes control" in text_of(app))
        await pilot.press("t")
        await until(pilot, lambda: session.control_calls == ["release", "take"])
        session.controller = ("other", "bob@lab")
        session.beat()
        await until(pilot, lambda: "bob@lab controls" in text_of(app))
        await pilot.press("t", "y")
        await until(pilot, lambda: session.control_calls == ["release", "take", "take"])


async def test_q_detaches_with_zero_and_asks_nothing_of_the_run() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == 0
    assert session.submitted == []
    assert session.control_calls == ["close"]


async def test_a_hang_up_of_the_terminal_leaves_in_order() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        os.kill(os.getpid(), signal.SIGHUP)
        await until(pilot, lambda: app.return_value is not None)
    assert session.control_calls == ["close"]


async def test_ctrl_c_neither_quits_nor_stops() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "does not stop the run" in told(app))
        assert app.is_running
    assert session.submitted == []


SCREENS = {
    "1": "grad norm",
    "2": "loss.ce",
    "3": "gradient climbing",
    "4": "best so far",
    "5": "rollback step-000800-t1",
    "7": "Write a haiku",
    "8": "12 rows dropped",
}


async def test_numbers_lead_to_screens_and_escape_back() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        for key, seen in SCREENS.items():
            await pilot.press(key)
            await until(pilot, partial(_shows, app, seen))
            await pilot.press("escape")
            await until(pilot, lambda: app.current_mode == "dashboard")


async def test_a_filter_narrows_a_list_and_escape_clears_it() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("3", "slash", *"climb", "enter")
        await until(pilot, lambda: "1 of 2" in text_of(app))
        assert "loss spike" not in text_of(app)
        await pilot.press("escape")
        await until(pilot, lambda: "loss spike" in text_of(app))
        assert app.current_mode == "anomalies"


async def test_a_report_opens_and_a_missing_one_is_told() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("3", "enter")
        await until(pilot, lambda: isinstance(app.screen, IncidentPage))
        await until(pilot, lambda: "against a baseline" in text_of(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.current_mode == "anomalies" and len(app.screen_stack) == 1)


async def test_the_configuration_says_where_each_value_comes_from(tmp_path) -> None:
    (tmp_path / "config.yaml").write_text("train:\n  lr: 2e-4\n  batch: 4\n  seed: 7\n")
    (tmp_path / "config.source.yaml").write_text("train: {lr: 1e-4, batch: 4}\n")
    identity = Identity(
        id="r", name="r", created=0.0, host="h", interpreter="p", config="c.yaml",
        overrides=["train.lr=2e-4"],
    )  # fmt: skip
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(identity))
    async with driven(FakeSession(eventful()), folder=tmp_path) as (app, pilot):
        await until(pilot, lambda: bool(app.state.config.resolved))
        origins = {s.key: (s.origin, s.written) for s in app.state.config.resolved}
        assert origins["train.lr"] == ("--set", "1e-4")
        assert (origins["train.batch"][0], origins["train.seed"][0]) == ("file", "default")
        await pilot.press("9", "slash", *"default", "enter")
        await until(pilot, lambda: "1 of 3" in text_of(app))
        assert "train.seed" in text_of(app)
        assert "train.batch" not in text_of(app)


class FarAway(FakeSession):
    """A run whose folder is on another machine, which is slow to answer at first."""

    asked = 0

    async def fetch_configs(self) -> ConfigTexts:
        self.asked += 1
        if self.asked == 1:
            raise EngineGone("no connection yet")
        resolved = "train: {lr: 0.0003, batch: 4}\n"
        return ConfigTexts(
            ref=0, resolved=resolved, source="train: {batch: 4}\n", overrides=["train.lr=3e-4"]
        )


async def test_the_configuration_of_a_run_elsewhere_is_fetched(monkeypatch) -> None:
    monkeypatch.setattr("fttui.tui.screens.handlers.background.CONFIG_RETRY_S", 0.0)
    session = FarAway(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("9")
        await until(pilot, lambda: "train.batch" in text_of(app))
        rows = {s.key: (s.value, s.origin) for s in app.state.config.resolved}
    assert rows == {"train.lr": ("0.0003", "--set"), "train.batch": ("4", "file")}
    assert session.asked == 2


class FarData(FakeSession):
    """A run on another machine that keeps a sample of its data."""

    async def fetch_data_sample(self) -> list[SampleRecord]:
        return SAMPLE


async def test_the_data_screen_shows_findings_and_records_of_a_remote_run() -> None:
    async with driven(FarData(eventful()), size=(120, 40)) as (app, pilot):
        await pilot.press("D")
        await until(pilot, lambda: "chat.jsonl:2" in text_of(app))
        shown = text_of(app)
        assert "31 of 2,007 records (1.5 %)" in shown
        assert "truncated to data.max_length; first: pairs.jsonl:17" in shown
        assert "dropped: no target token is left" in shown
        await pilot.press("enter")
        await until(pilot, lambda: "to avoid it: raise data.max_length" in text_of(app))
        await pilot.press("escape", "slash", *"chat.jsonl:1", "enter", "enter")
        await until(pilot, lambda: "What is 2 + 2?" in text_of(app))


async def test_hostile_text_of_a_record_does_not_reach_the_terminal() -> None:
    text = SampleText(name="text", spans=[SampleSpan(HOSTILE, True)], tokens=1, learned=1)
    found = DataFinding(
        reason="cut", text="cut", unit="records", count=1, total=2, place=HOSTILE, detail=HOSTILE
    )

    class Hostile(FakeSession):
        async def fetch_data_sample(self) -> list[SampleRecord]:
            return [SampleRecord(id=HOSTILE, place=HOSTILE, texts=[text], notes=[])]

    session = Hostile(eventful())
    session.script.add(DataFindingsChanged(findings=[found]))
    async with driven(session, size=(160, 40)) as (app, pilot):
        await pilot.press("D")
        await until(pilot, lambda: text_of(app).count(r"\x1b]52;c") >= 2)
        assert not unsafe(text_of(app))
        await pilot.press("slash", *"record", "enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, TextPage))
        await until(pilot, lambda: r"\x1b]52;c" in text_of(app))
        assert not unsafe(text_of(app))


async def test_without_a_sample_the_data_screen_shows_the_findings() -> None:
    async with driven(FakeSession(eventful()), size=(120, 40)) as (app, pilot):
        await pilot.press("D")
        await until(pilot, lambda: "31 of 2,007 records" in text_of(app))
        assert "chat.jsonl" not in text_of(app)


async def test_help_shows_all_groups() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert "pause before the next micro-batch" in text_of(app)
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_the_palette_holds_every_action() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("ctrl+p")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press(*"evaluate now")
        await until(pilot, lambda: "evaluate on the held-out data" in text_of(app))
        await pilot.press("enter", "enter")
        await until(pilot, lambda: bool(session.submitted))
    assert session.submitted == [Evaluate()]


async def test_plot_keys_change_the_view_only() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("z", "y", "m", "p")
        plot = app.state.plot
        assert (plot.span, plot.log_y, plot.smoothing, plot.part) == (620, True, 1, 1)
        await pilot.press("left_square_bracket")
        plot = app.state.plot
        assert plot.cursor == 1200
        await pilot.press("left")
        await until(pilot, lambda: "step 1,1" in text_of(app))
        await pilot.press("f")
        assert app.state.plot.cursor is None
        await pilot.press("Z")
        assert app.state.plot.span is None
    assert session.submitted == []


async def test_a_plot_is_maximised_and_the_next_one_takes_its_place() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: "grad norm" not in text_of(app))
        await pilot.press("down")
        await until(pilot, lambda: "grad norm" in text_of(app) and "loss  ─" not in text_of(app))
        await pilot.press("escape")
        await until(pilot, lambda: "throughput" in text_of(app) and "loss  ─" in text_of(app))


async def test_1_restores_a_maximised_plot() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.screen.has_class("-maximised"))
        await pilot.press("1")
        await until(pilot, lambda: not app.screen.has_class("-maximised"))


async def test_enter_on_nothing_says_what_is_needed() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        for key, need in (("N", "type a number of steps"), ("g", "type a text")):
            await pilot.press(key, "enter")
            await until(pilot, partial(_shows, app, need))
            assert isinstance(app.screen, PromptScreen)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
    assert session.submitted == []


async def test_the_reason_of_an_undo_names_the_command() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("c", *"p90", "enter", "u", "5")
        await until(pilot, lambda: "undo clip p90" in text_of(app))


async def test_a_rollback_can_be_chosen_while_steps_go_on() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, RollbackScreen))
        session.script.train(5)
        session.push()
        await until(pilot, lambda: app.state.run.step == 1245)
        await pilot.press("enter")
        await until(pilot, lambda: bool(session.submitted))


async def test_loading_shows_its_progress_and_then_the_curves() -> None:
    session = FakeSession(loading())
    async with driven(session) as (app, pilot):
        shown = text_of(app)
        assert "▸ weights" in shown
        assert "78 %" in shown
        assert "▸ first step" in shown
        session.script.run().train(30)
        session.push()
        await until(pilot, lambda: "grad norm" in text_of(app))


async def test_a_fault_of_the_session_is_a_panel_and_not_the_end() -> None:
    session = FakeSession(eventful())
    session.fault = FttuiError("the hub speaks protocol 2.0, this is 1.0; update fttui")
    async with driven(session) as (app, pilot):
        await until(pilot, lambda: "update fttui" in text_of(app))
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == 0


async def test_an_unexpected_fault_is_told_too() -> None:
    session = FakeSession(eventful())
    session.fault = RuntimeError("odd")
    async with driven(session) as (app, pilot):
        await until(pilot, lambda: "RuntimeError: odd" in text_of(app))


async def test_nothing_flows_into_a_too_small_terminal_and_it_recovers() -> None:
    async with driven(FakeSession(eventful()), size=(50, 14)) as (app, pilot):
        assert "50×14" in text_of(app)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "grad norm" in text_of(app))
        assert "too small" not in text_of(app)


FAR_ABOVE = [
    ["l", *"x5"],
    ["l", *"=0.5"],
    ["colon", *"lr scale 40"],
    ["colon", *"lr set 5e-3"],
    ["r", "tab", *"9"],
]


@pytest.mark.parametrize(
    "keys",
    in_part(FAR_ABOVE, [FAR_ABOVE[0], FAR_ABOVE[-1]]),
)
async def test_a_rate_far_above_the_present_one_is_asked_about_wherever_it_is_typed(keys) -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press(*keys, "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "the present" in text_of(app)
        await pilot.press("n")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert session.submitted == []
        await pilot.press(*keys, "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: bool(session.submitted))


async def test_tab_completes_the_name_of_a_checkpoint() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("colon", *"roll", "tab", *"step-0008", "tab")
        await until(pilot, lambda: "rollback step-000800-t1" in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))


async def test_the_metrics_scroll_by_page_before_a_plot_is_chosen() -> None:
    async with driven(FakeSession(eventful()), size=(80, 24)) as (app, pilot):
        await pilot.press("2")
        grid = app.screen.query_one("#grid")
        await until(pilot, lambda: grid.max_scroll_y > 0)
        await pilot.press("end")
        await until(pilot, lambda: grid.scroll_y == grid.max_scroll_y)
        await pilot.press("home")
        await until(pilot, lambda: grid.scroll_y == 0)


async def test_panels_and_tables_show_the_keys_of_their_screens() -> None:
    async with driven(FakeSession(eventful()), preferences=Preferences(keys={"go.log": "b"})) as (
        app,
        pilot,
    ):
        await until(pilot, lambda: "[5] interventions" in text_of(app))
        assert "[3] " in text_of(app)
        await pilot.press("b")
        await until(pilot, lambda: "[b] " in text_of(app))


async def test_a_click_on_a_panel_opens_its_screen() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.click("InterventionPanel")
        await until(pilot, lambda: app.current_mode == "interventions")


async def test_what_is_copied_is_what_is_shown() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("Y")
        await until(pilot, lambda: "step 1,240 of 5,000" in app.clipboard)
        await pilot.press("4")
        await pilot.press("Y")
        await until(pilot, lambda: "step-001200-t2" in app.clipboard)
        await pilot.press("ctrl+y")
        await until(pilot, lambda: app.clipboard.startswith("fttui ctl smollm2-pairs"))


async def test_the_report_of_an_incident_is_copied_as_markdown() -> None:
    async with driven(FakeSession(live_spike())) as (app, pilot):
        await pilot.press("3", "enter")
        await until(pilot, lambda: isinstance(app.screen, IncidentPage))
        await pilot.press("Y")
        await until(pilot, lambda: app.clipboard.startswith("# "))


async def test_the_list_of_themes_marks_the_one_in_use() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        app.theme = "nord"
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "Search for themes" in text_of(app))
        await until(pilot, lambda: "● nord   in use" in text_of(app))
        await pilot.press(*"drac")
        await until(pilot, lambda: "dracula" in text_of(app) and "nord" not in text_of(app))
        await pilot.press("enter", "enter")
        await until(pilot, lambda: app.theme == "dracula")


@pytest.mark.parametrize(
    ("key", "shown"),
    [("g", "such as: Once upon a time"), ("g", "type a text, or cancel with esc"),
     ("N", "type a number of steps"), ("Q", "type the ID of a sample"), ("V", "type a number")],
)  # fmt: skip
async def test_an_empty_prompt_says_what_to_type(key: str, shown: str) -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: shown in text_of(app))
