"""Screens beyond the dashboard, the keys that lead a person through them, and a person's own."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from textual.events import Paste
from textual.widgets import DataTable, OptionList

from fttui.engine.protocol.commands import COMMANDS, Rollback, ScaleLr
from fttui.engine.protocol.event_parts import ModuleFlow, ProfilePart
from fttui.engine.protocol.events import (
    AnomalyRaised,
    CheckpointRemoved,
    GradientsMeasured,
    LogEmitted,
    RunEnded,
    RunStarted,
    SampleGenerated,
    StepFinished,
    StepsProfiled,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_index import RunSummary
from fttui.tui.actions import ACTIONS, why_not
from fttui.tui.app import FttuiApp
from fttui.tui.preferences import Preferences, keep_theme, read_preferences, with_file
from fttui.tui.screens.modals.confirm import ConfirmScreen
from fttui.tui.screens.modals.help import HelpScreen
from fttui.tui.screens.modals.modal import Palette
from fttui.tui.screens.modals.prompt import PromptScreen
from fttui.tui.screens.modals.rollback import RollbackScreen
from fttui.tui.screens.tables.checkpoints import _since
from fttui.tui.screens.tables.details import _shown
from fttui.tui.screens.tables.runs import RunsScreen, _distance
from fttui.tui.view_model.config_view import ConfigView, ResolvedKey
from fttui.tui.view_model.connection_port import Link
from fttui.tui.widgets.plot import Plot
from tests.support.matrix import in_part
from tests.support.session_double import FakeSession, Script, eventful, finished, live_spike
from tests.unit.tui.app.driving import driven, text_of, told, until
from tests.unit.tui.app.folders import write_run
from tests.unit.tui.app.scenes import SCENES as STATES


async def test_runs_are_listed_marked_and_compared_over_each_other(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ours = write_run(tmp_path / "runs", "smollm2-pairs-20260101-000000", eventful())
    write_run(tmp_path / "runs", "other-20260102-000000", finished(), lr="5e-5")
    async with driven(FakeSession(eventful()), folder=ours.path) as (app, pilot):
        await until(pilot, lambda: bool(app.state.config.resolved))
        await pilot.press("0")
        await until(pilot, lambda: "other-20260102" in text_of(app))
        assert "finished" in text_of(app)
        torn = write_run(tmp_path / "runs", "torn-20260103-000000", finished())
        torn.identity_file.write_text("{{{")
        assert isinstance(app.screen, RunsScreen)
        app.screen.look()
        await until(pilot, lambda: "torn-20260103-000000: run.json is damaged" in text_of(app))
        await pilot.press("slash", *"other", "enter", "v")
        await until(pilot, lambda: "✱" in text_of(app))
        await pilot.press("C")
        await until(pilot, lambda: app.current_mode == "compare" and bool(app.state.others))
        await until(pilot, lambda: "train.lr" in text_of(app) and "1e-4 → 5e-5" in text_of(app))
        await until(pilot, lambda: any(len(p.picture.layers) == 2 for p in app.screen.query(Plot)))
        assert "other-20260102" in text_of(app)


async def test_another_run_is_opened_by_leaving_for_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ours = write_run(tmp_path / "runs", "smollm2-pairs-20260101-000000", eventful())
    write_run(tmp_path / "runs", "other-20260102-000000", finished())
    session = FakeSession(eventful())
    async with driven(session, folder=ours.path) as (app, pilot):
        await pilot.press("0")
        await until(pilot, lambda: "other-20260102" in text_of(app))
        await pilot.press("slash", *"smollm2", "enter", "C")
        await until(pilot, lambda: "mark some (v)" in told(app))
        await pilot.press("escape", "slash", *"other", "enter", "enter")
        await until(pilot, lambda: app.wanted is not None)
    assert app.wanted is not None
    assert app.wanted.summary.id == "other-20260102-000000"
    assert session.submitted == []


async def test_the_machine_shows_slow_ranks_and_the_link_in_numbers() -> None:
    script = Script().start().run().train(20)
    script.step += 1
    script.add(
        StepFinished(
            loss=1.0,
            step_s=3.0,
            rank_s=[1.0, 1.0, 2.9],
            skew_s=1.9,
            rank_util=[99.0, 98.0, 31.0],
            rank_temp_c=[61.0, 60.0, 91.0],
            rank_power_w=[300.0, 301.0, 120.0],
            pcie_bytes_per_s=3 * 2.0**30,
        )
    )
    async with driven(FakeSession(script)) as (app, pilot):
        await pilot.press("6")
        await until(pilot, lambda: "△ slow in this step" in text_of(app))
        assert "slowest rank 2" in text_of(app)
        assert "31 %  91 °C  120 W" in text_of(app)
        assert "3.0 GiB/s" in text_of(app)
        assert "records refetched" in text_of(app)


async def test_the_plan_is_told_beside_what_is_used_in_a_third_of_a_terminal() -> None:
    script = Script().start()
    started = script.records[0].event
    assert isinstance(started, RunStarted)
    planned = msgspec.structs.replace(
        started, planned_bytes={"base": 5 << 30, "optimizer": 1 << 28}
    )
    script.records[0] = msgspec.structs.replace(script.records[0], event=planned)
    async with driven(FakeSession(script.run().train(20)), size=(120, 40)) as (app, pilot):
        await pilot.press("6")
        await until(pilot, lambda: "/ 5.2 GiB planned (9" in text_of(app))


async def test_a_plot_too_low_to_draw_does_not_claim_to_have_no_values() -> None:
    script = Script().start().run().train(20)
    parts = [ProfilePart(name=f"part {n}", host_s=0.1, device_s=0.1) for n in range(9)]
    script.add(
        StepsProfiled(
            steps=1, step_s=1.0, parts=parts, kinds={}, idle=0.5, launches=10.0, flops=1.0,
            peak_flops_per_s=1.0, advice=["one", "two", "three"],
        )
    )  # fmt: skip
    async with driven(FakeSession(script), size=(120, 40)) as (app, pilot):
        await pilot.press("6")
        await until(pilot, lambda: "part 8" in text_of(app))
        assert "not enough height to draw" in text_of(app)
        assert "no values yet" not in text_of(app)


async def test_metrics_are_chosen_by_words_of_their_names() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("2", "slash", *"cos top", "enter")
        await until(pilot, lambda: "2 of" in text_of(app))
        assert "pos_cos" in text_of(app)
        assert "grad_norm" not in text_of(app)
        await pilot.press("slash", "enter")
        await until(pilot, lambda: app.state.plot.only == "" and "grad_norm" in text_of(app))


@pytest.mark.parametrize(
    ("presses", "label"), in_part([(1, "1 h"), (2, "M"), (3, "0.5")], [(3, "0.5")])
)
async def test_the_x_axis_counts_time_tokens_or_epochs(presses, label) -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press(*["X"] * presses)
        plot = app.screen.query(Plot).first()
        await until(pilot, lambda: label in text_of(app).split("loss  ─")[1])
        assert not plot.picture.empty
        low, high = plot.picture.x
        assert all(low <= span.left < span.right <= high for span in plot.picture.undone)
        await pilot.press("X")
        assert app.state.plot.axis == ("step" if presses == 3 else app.state.plot.axis)


async def test_a_click_puts_the_cursor_there_on_all_plots() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        plots = list(app.screen.query(Plot))
        await pilot.click(plots[0], offset=(30, 5))
        await until(pilot, lambda: app.state.plot.cursor is not None)
        await until(pilot, lambda: text_of(app).count(f"step {app.state.plot.cursor:,}") >= 4)


async def test_a_count_multiplies_the_next_key_and_fills_the_next_prompt() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("left")
        one = app.state.run.step - (app.state.plot.cursor or 0)
        await pilot.press("f", "semicolon", "1", "2")
        await until(pilot, lambda: "× 12" in text_of(app))
        await pilot.press("left")
        assert app.state.run.step - (app.state.plot.cursor or 0) == 12 * one
        await pilot.press("1")
        assert app.current_mode == "dashboard"
        await pilot.press("semicolon", "5", "N", "enter")
        await until(pilot, lambda: bool(session.submitted))
    assert [str(c) for c in session.submitted] == ["RunSteps(steps=5)"]


async def test_j_and_k_move_in_lists_and_do_nothing_to_the_run() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("4", "semicolon", "2", "j", "k", "enter")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("enter")
        await until(pilot, lambda: bool(session.submitted))
    assert session.submitted == [Rollback(checkpoint="step-000800-t1")]


async def test_a_command_can_be_typed_and_a_destructive_one_is_confirmed() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("colon", *"lr scale 0.5", "enter")
        await until(pilot, lambda: session.submitted == [ScaleLr(factor=0.5)])
        await pilot.press("colon", *"rollback step-000800-t1", "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "440 steps" in text_of(app)
        await pilot.press("escape", "colon", *"lr sc", "enter")
        await until(pilot, lambda: isinstance(app.screen, PromptScreen))
        await pilot.press("escape", "colon", *"900", "enter")
        await until(pilot, lambda: app.state.plot.cursor == 900)
    assert len(session.submitted) == 1


async def test_recover_says_in_numbers_what_it_will_do() -> None:
    script = live_spike()
    last = script.records[-1]
    event = type(last.event)(
        **{**{f: getattr(last.event, f) for f in last.event.__struct_fields__},
           "actions": ["recover a1241", "rollback step-000800-t1 lr=0.25 clip=0.3 skip=461"]}
    )  # fmt: skip
    script.records[-1] = type(last)(
        seq=last.seq, time=last.time, step=last.step, timeline=last.timeline, event=event
    )
    async with driven(FakeSession(script)) as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "Back to step 800; the rollback loses 441 steps" in text_of(app)
        assert "timeline 3" in text_of(app)
        assert "×0.25" in text_of(app)
        assert "(max norm) 0.300" in text_of(app)
        assert "801–1,261 is skipped" in text_of(app)


async def test_the_first_time_says_what_to_press_and_only_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    preferences = Preferences(first_time=True)
    async with driven(FakeSession(eventful()), preferences=preferences) as (app, pilot):
        await until(pilot, lambda: (tmp_path / "fttui" / "seen").exists())
        assert "? shows all keys, ctrl+p finds an action by name" in told(app)
        assert len(app.screen_stack) == 1


def test_own_keys_are_read_and_faults_named(tmp_path) -> None:
    file = tmp_path / "app.toml"
    assert with_file(Preferences(), file) == Preferences()
    file.write_text('theme = "light"\n[keys]\n"run.pause" = "f9"\n"app.help" = ["?", "f1"]\n')
    read = with_file(Preferences(), file)
    assert read.keys == {"run.pause": "f9", "app.help": "question_mark,f1"}
    assert read.theme == "fttui-light"
    file.write_text('[keys]\n"run.pause" = "l"\n"run.hold" = "b"\n')
    faults = " ".join(with_file(Preferences(), file).faults)
    assert "l is assigned to run.pause and lr.change" in faults
    assert "there is no action 'run.hold'" in faults
    assert "the app uses its own keys" in faults
    file.write_text("keys = [")
    assert with_file(Preferences(), file).faults


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('theme = "solarized"', "theme: got 'solarized', expected dark, light or one of atom-one"),
        ("theme = 5", "theme: got 5, expected dark, light or one of atom-one"),
        ('keys = "p"', "keys: expected a table [keys]"),
        ("dark = true", "unknown key 'dark', expected theme, ascii or a table [keys]"),
    ],
)
def test_no_setting_of_the_own_file_is_ignored_silently(tmp_path, text: str, fault: str) -> None:
    file = tmp_path / "app.toml"
    file.write_text(text)
    read = with_file(Preferences(theme="fttui-16"), file)
    assert read.faults[0].startswith(f"{file}: {fault}")
    assert (read.keys, read.theme) == ({}, "fttui-16")


def test_an_unknown_theme_of_the_environment_is_told(tmp_path) -> None:
    read = read_preferences({"FTTUI_THEME": "blue", "COLORTERM": "truecolor"}, "UTF-8")
    assert read.theme == "fttui-dark"
    (fault,) = read.faults
    assert fault.startswith("FTTUI_THEME: got 'blue', expected dark, light or one of atom-one-dark")
    (tmp_path / "app.toml").write_text('theme = "light"')
    assert with_file(read, tmp_path / "app.toml").faults == read.faults
    assert with_file(read, tmp_path / "app.toml").theme == "fttui-light"
    forced = read_preferences({"FTTUI_THEME": "nord"}, "UTF-8")
    assert with_file(forced, tmp_path / "app.toml").theme == "nord"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, 'theme = "nord"\n'),
        ("", 'theme = "nord"\n'),
        ("# mine\ntheme = 'light'  # bright\n", '# mine\ntheme = "nord"\n'),
        ('[keys]\n"run.pause" = "b"\n', 'theme = "nord"\n[keys]\n"run.pause" = "b"\n'),
        ('[keys]\n"theme" = "b"\n', 'theme = "nord"\n[keys]\n"theme" = "b"\n'),
    ],
)
def test_a_chosen_theme_is_written_and_the_rest_of_the_file_stays(tmp_path, before, after) -> None:
    file = tmp_path / "fttui" / "app.toml"
    if before is not None:
        file.parent.mkdir()
        file.write_text(before)
    keep_theme(file, "nord")
    assert file.read_text() == after


def test_a_file_that_is_no_toml_is_left_as_it_is(tmp_path) -> None:
    file = tmp_path / "app.toml"
    file.write_text("theme = [")
    with pytest.raises(ValueError, match="end of document"):
        keep_theme(file, "nord")
    assert file.read_text() == "theme = ["


async def test_a_theme_chosen_in_the_app_is_kept(tmp_path) -> None:
    preferences = Preferences(file=tmp_path / "app.toml")
    async with driven(FakeSession(eventful()), preferences=preferences) as (app, pilot):
        await pilot.press("ctrl+t")
        await until(pilot, lambda: isinstance(app.screen, Palette))
        await pilot.press(*"gruvbox")
        await until(pilot, lambda: "gruvbox" in text_of(app))
        await pilot.pause(0.3)
        await pilot.press("enter")
        await until(pilot, lambda: app.theme == "gruvbox")
        await until(pilot, lambda: (tmp_path / "app.toml").exists())
    assert (tmp_path / "app.toml").read_text() == 'theme = "gruvbox"\n'


async def test_a_theme_that_cannot_be_kept_is_used_and_said(tmp_path) -> None:
    (tmp_path / "app.toml").write_text("theme = [")
    preferences = Preferences(file=tmp_path / "app.toml")
    async with driven(FakeSession(eventful()), preferences=preferences) as (app, pilot):
        app.theme = "nord"
        await until(pilot, lambda: "the theme could not be saved" in told(app))


async def test_own_keys_work_and_are_shown_everywhere() -> None:
    session = FakeSession(eventful())
    preferences = Preferences(keys={"run.pause": "b", "run.rollback": "B"})
    async with driven(session, preferences=preferences) as (app, pilot):
        assert "b pause" in text_of(app)
        assert "B rollback" in text_of(app)
        await pilot.press("space")
        await pilot.press("b")
        await until(pilot, lambda: bool(session.submitted))
        await pilot.press("question_mark")
        await until(pilot, lambda: " b       pause before" in text_of(app))
    assert len(session.submitted) == 1


async def test_what_is_wrong_with_own_keys_is_told() -> None:
    preferences = Preferences(faults=("app.toml: there is no action 'run.hold'",))
    async with driven(FakeSession(eventful()), preferences=preferences) as (app, pilot):
        await until(pilot, lambda: "there is no action 'run.hold'" in told(app))


async def test_gradient_flow_that_was_measured_is_kept() -> None:
    script = eventful()
    flow = ModuleFlow(module="layers.0.q_proj", grad_norm=1.0, update_norm=0.1, weight_norm=2.0)
    script.add(GradientsMeasured(modules=[flow], reason="asked"))
    async with driven(FakeSession(script)) as (app, _):
        assert app.state.run.gradients_at == 1240


_SENDERS = [action for action in ACTIONS if action.commands]


@pytest.mark.parametrize("scene", in_part(STATES, ["spike", "read-only"]))
async def test_every_action_does_its_deed_or_says_why_not(scene, monkeypatch) -> None:
    """In every state of run, link and role: never silence, never a crash, never a wrong command."""
    make, tweak, preferences = STATES[scene]
    session = FakeSession(make())
    session.answers = False
    tweak(session)
    async with driven(session, preferences=preferences) as (app, pilot):
        remarks: list[str] = []
        monkeypatch.setattr(app, "tell", lambda text, *_, **__: remarks.append(text))
        for action in _SENDERS:
            before, asked = len(session.submitted), len(app.screen_stack)
            remarks.clear()
            reason = why_not(action, app.state)
            app.action_act(action.id)
            if reason is None:
                await pilot.pause()
            acted = len(session.submitted) > before or len(app.screen_stack) > asked
            if action.id == "run.race" and reason is None:  # only the app knows of no run folder
                acted = "on the machine of its run" in "".join(remarks)
            assert acted is (reason is None), action.id
            if reason is not None:
                assert remarks == [reason], action.id
            while len(app.screen_stack) > asked:
                app.pop_screen()
                await pilot.pause()
            for command in session.submitted[before:]:
                verb = next(spec.verb for spec in COMMANDS if spec.command is type(command))
                assert verb in action.verbs, action.id


async def test_a_dialog_closes_once_however_fast_keys_follow() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("4", "ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, Palette))
        palette = app.screen
        palette.dismiss()
        palette.dismiss()
        assert app.current_mode == "checkpoints"
        await pilot.press("ctrl+p", "escape", "enter", "r")
        await until(pilot, lambda: isinstance(app.screen, RollbackScreen))
        dialog = app.screen
        dialog.dismiss()
        dialog.dismiss()
        assert len(app.screen_stack) == 1


async def test_a_checkpoint_removed_while_its_rollback_is_asked_for_is_not_sent() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, RollbackScreen))
        name = app.state.run.good_checkpoints[0].name
        session.script.add(CheckpointRemoved(name=name))
        session.push()
        await until(pilot, lambda: name not in [c.name for c in app.state.run.checkpoints])
        await pilot.press("enter")
        await until(pilot, lambda: "has been removed by retention" in told(app))
        assert session.submitted == []


async def test_news_that_comes_while_the_app_is_left_is_dropped_in_silence() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, _):
        known = app.state.run
    session.script.train(1)
    session.push()
    app.fold_waiting()
    assert app.state.run is known


async def test_a_full_disk_is_told_on_every_screen_and_gives_way_when_there_is_room() -> None:
    session = FakeSession(eventful())
    async with driven(session, size=(80, 24)) as (app, pilot):
        session.disk_free_bytes = 1 << 20
        session.beat()
        await until(pilot, lambda: "▲ disk full" in text_of(app))
        assert "Free disk space" in text_of(app)
        await pilot.press("8")
        await until(pilot, lambda: app.current_mode == "log" and "▲ disk full" in text_of(app))
        session.disk_free_bytes = 1 << 40
        session.beat()
        await until(pilot, lambda: "disk full" not in text_of(app))


async def test_the_palettes_first_entry_does_no_harm() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, Palette))
        await until(pilot, lambda: app.screen.query_one(OptionList).option_count > 0)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))


async def test_nothing_is_lost_before_it_was_met() -> None:
    session = FakeSession(eventful())
    session.link = Link.CONNECTING
    session.beat = lambda: None  # type: ignore[method-assign]  # nothing is heard
    async with driven(session) as (app, _):
        assert "◌ CONNECTING" in text_of(app)
        assert "LOST" not in text_of(app)


def _reads(app: FttuiApp, words: tuple[str, ...]) -> bool:
    beside = [line[line.rfind("│", 0, -2) :] for line in text_of(app).splitlines()]
    return all(any(word in line for line in beside) for word in words)


async def test_a_wide_terminal_tells_more_of_the_row_under_the_cursor() -> None:
    told = {
        "anomalies": ("8.338", "a rollback to step-000800-t1 loses 441 steps"),
        "checkpoints": ("then", "step-001200-t2   ✓ verified · good"),
        "interventions": ("before", "done at 800"),
    }
    async with driven(FakeSession(live_spike()), size=(200, 50)) as (app, pilot):
        for key, seen in told.items():
            app.go(key)
            await until(pilot, partial(_reads, app, seen))
            await pilot.press("down")
            await until(pilot, lambda: not _reads(app, told[app.current_mode]))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: not app.screen.query_one("#detail").display)


async def test_whole_steps_are_written_along_the_axis_of_a_young_run() -> None:
    async with driven(FakeSession(Script().start().run().train(1))) as (app, _):
        axis = next(line for line in text_of(app).splitlines() if re.search(r"\b0 +.*\b1\b", line))
        assert axis.split().count("0") == 2  # once on each of the two plots


@pytest.mark.parametrize("keys", in_part(["r", "x", "l"], ["r"]))
async def test_a_question_that_cannot_be_read_is_not_agreed_to(keys: str) -> None:
    session = FakeSession(eventful())
    async with driven(session, size=(60, 16)) as (app, pilot):
        await pilot.press(keys)
        await until(pilot, lambda: len(app.screen_stack) == 2)
        assert "too small" not in text_of(app)
        if keys == "r":
            await until(pilot, lambda: "rollback loses" in text_of(app))
        if keys == "l":
            await pilot.press(*"x0.5")
        await pilot.resize_terminal(59, 16)
        await until(pilot, lambda: "too small" in text_of(app))
        assert "roll back" not in text_of(app)
        await pilot.press("enter", "y", "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert session.submitted == []


@pytest.mark.parametrize(
    ("make", "offered"), [(eventful, ("enter roll back", "s checkpoint")), (finished, ())]
)
async def test_a_list_offers_only_keys_that_do_something_now(make, offered) -> None:
    session = FakeSession(make())
    async with driven(session) as (app, pilot):
        await pilot.press("4")
        await until(pilot, lambda: "/ filter" in text_of(app))
        assert text_of(app).count("/ filter") == 1
        keys = text_of(app).splitlines()[-1]
        assert "/ filter" in keys
        assert all(way in keys for way in offered)
        assert offered or "enter" not in keys
        assert offered or "checkpoint" not in keys


async def test_a_narrow_header_has_two_lines_on_every_screen() -> None:
    session = FakeSession(eventful())
    async with driven(session, size=(80, 24)) as (app, pilot):
        for key in "234567890DM*1":
            await pilot.press(key)
            await until(pilot, lambda: "RUNNING" in text_of(app).splitlines()[1])


@pytest.mark.parametrize("key", "3457890D")
async def test_a_narrow_table_hides_nothing_beyond_its_right_edge(key: str) -> None:
    long = "word " * 60
    script = eventful().add(LogEmitted(level="info", text=long))
    script.add(SampleGenerated(prompt=long, text=f"the end {long}"))
    session = FakeSession(script)
    async with driven(session, size=(80, 24)) as (app, pilot):
        shown = ConfigView(resolved=(ResolvedKey("train.lr", long, "file"),))
        app.state = replace(app.state, config=shown)
        await pilot.press(key)
        await until(pilot, lambda: bool(app.screen.query(DataTable)))
        table = app.screen.query_one(DataTable)
        await until(pilot, lambda: table.row_count > 0 or key == "0")
        await pilot.pause()
        assert table.virtual_size.width <= table.size.width
        told = {"9": "word", "7": "the end", "D": "truncated to data.max_length"}
        assert told.get(key, "") in text_of(app)


async def test_a_long_incident_gives_way_to_how_it_ended(monkeypatch) -> None:
    words = "fttui.tui.screens.tables.anomalies.short"
    monkeypatch.setattr(words, lambda run, incident: "a long headline " * 9)
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("3")
        await until(pilot, lambda: bool(app.screen.query(DataTable)))
        await until(pilot, lambda: "recovered after clip 0.5 by ann" in text_of(app))
        table = app.screen.query_one(DataTable)
        assert table.virtual_size.width <= table.size.width


@pytest.mark.parametrize(
    ("size", "row", "part", "who"),
    [
        ((80, 24), 1, "elapsed", "a-colleague@workstation"),
        ((120, 40), 0, "best eval", "bob@lab-17"),
    ],
)
async def test_a_narrow_header_drops_a_part_before_it_cuts_a_number(size, row, part, who) -> None:
    session = FakeSession(eventful())
    async with driven(session, size=size) as (app, pilot):
        assert part in text_of(app)
        session.controller = None
        session.beat()
        await until(pilot, lambda: "t takes control" in text_of(app))
        session.controller = ("other", who)
        session.beat()
        await until(pilot, lambda: who in text_of(app))
        line = text_of(app).splitlines()[row]
        assert "ETA 5 h 0 m " in line
        assert part not in line


async def test_a_long_error_keeps_to_its_line() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("N")
        await until(pilot, lambda: isinstance(app.screen, PromptScreen))
        app.post_message(Paste("abcdefgh" * 14))
        await until(pilot, lambda: "got 'abcdefgh" in text_of(app))
        assert "…" in text_of(app)


@pytest.mark.parametrize(
    ("then", "words"), [(5.5, "▾ 0.500"), (4.5, "▴ 0.500"), (5.0 + 1e-15, "–"), (None, "–")]
)
def test_a_loss_that_is_the_same_but_for_rounding_has_not_changed(then, words) -> None:
    assert _since(then, 5.0) == words


@pytest.mark.parametrize(
    ("state", "brief", "words"),
    [
        (RunState.FINISHED, True, "137 100 %"),
        (RunState.FINISHED, False, "137"),
        (RunState.STOPPED, False, "137 / 3  100 %"),
    ],
)
def test_a_run_that_was_given_fewer_steps_than_it_has_made_is_done(state, brief, words) -> None:
    run = RunSummary(id="a", name="a", path="a", created=0, state=state, step=137, total_steps=3)
    assert _distance(run, brief=brief).strip() == words


async def test_the_current_incident_is_the_first_row_and_the_one_that_enter_opens() -> None:
    script = live_spike()
    script.train(2).add(
        AnomalyRaised(
            id="p1243", kind="plateau", severity="info", headline="loss is flat", incident="p1243"
        )
    )
    async with driven(FakeSession(script)) as (app, pilot):
        await pilot.press("3")
        await until(pilot, lambda: bool(app.screen.query(DataTable)))
        table = app.screen.query_one(DataTable)
        await until(pilot, lambda: table.row_count > 2)
        assert [str(row.value) for row in table.rows][:2] == ["a1241", "p1243"]


async def test_a_narrow_footer_says_how_to_leave_every_screen_but_the_dashboard() -> None:
    async with driven(FakeSession(eventful()), size=(80, 24)) as (app, pilot):
        for key in "234567890DMWI*":
            await pilot.press(key)
            await until(pilot, lambda: "esc back" in text_of(app).splitlines()[-1])
        await pilot.press("1")
        await until(pilot, lambda: "esc back" not in text_of(app).splitlines()[-1])


async def test_the_first_key_ends_the_words_of_welcome(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    preferences = Preferences(first_time=True)
    async with driven(FakeSession(eventful()), preferences=preferences) as (app, pilot):
        await until(pilot, lambda: "? shows all keys" in told(app))
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert told(app) == ""


@pytest.mark.parametrize("ended", [False, True])
async def test_an_ended_run_offers_no_advice_that_no_key_can_send(ended: bool) -> None:
    script = live_spike()
    if ended:
        script.add(RunEnded(state=RunState.STOPPED, exit_code=0))
    async with driven(FakeSession(script)) as (app, _):
        assert ("R rollback step-000800-t1" in text_of(app)) is not ended
        assert "3 report" in text_of(app)


async def test_nothing_to_compare_leaves_no_empty_panel() -> None:
    async with driven(FakeSession(eventful()), size=(80, 24)) as (app, pilot):
        await pilot.press("*")
        await until(pilot, lambda: "no runs to compare" in text_of(app))
        assert "configuration differences" not in text_of(app)


def test_a_rate_in_bytes_has_its_unit() -> None:
    assert _shown("pcie_bytes_per_s", 2.5 * 2**30) == "2.5 GiB/s"
    assert _shown("pcie_bytes_per_s", 2.0**30, sign=True) == "+1.0 GiB/s"
