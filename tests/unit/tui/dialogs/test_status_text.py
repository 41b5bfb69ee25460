"""The status line carries results with their values, and only while they are news."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fttui.engine.protocol.event_parts import ModuleFlow
from fttui.engine.protocol.events import (
    AnomalyResolved,
    AutopilotDecided,
    CommandFailed,
    GradientsMeasured,
    LogEmitted,
    SampleGenerated,
)
from fttui.tui.dialogs.status_text import FAULT_LIFETIME_S, LIFETIME_S, Status, status_of
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.connection_port import Link
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script, spike


def status(script: Script, after_s: float = 1.0) -> Status | None:
    state = AppState(run=apply_many(RunView(), script.records))
    state = replace(state, link=replace(state.link, link=Link.LIVE))
    return status_of(state, script.now + after_s)


def text(script: Script, after_s: float = 1.0) -> str:
    found = status(script, after_s)
    return "" if found is None else found.text


def test_an_evaluation_shows_its_value_and_the_one_before() -> None:
    script = Script().start().run().train(5).evaluate(6.58).train(5).evaluate(6.18)
    assert text(script.command("eval")) == "eval: 6.180, was 6.580"
    first = Script().start().run().train(5).evaluate(6.58).command("eval")
    assert text(first) == "eval: 6.580"


def test_a_sample_shows_its_first_words_and_where_the_rest_is() -> None:
    script = Script().start().run().train(5)
    script.add(SampleGenerated(prompt="hi", text="Gradients descend\nslowly {run.stop}"))
    found = status(script.command("sample hi"))
    assert found is not None
    assert found.text == "sample: Gradients descend slowly {run.stop}"
    assert found.shown_by == "go.samples"


def test_gradients_show_their_figures_and_where_the_rest_is() -> None:
    script = Script().start().run().train(5).command("gradients").train(1)
    flow = [
        ModuleFlow(module=f"layers.{n}.q_proj", grad_norm=1.0 + n, update_norm=0.1, weight_norm=2.0)
        for n in range(3)
    ]
    script.add(GradientsMeasured(modules=flow, dead=["layers.0.q_proj"], reason="asked"))
    found = status(script)
    assert found is not None
    assert found.text == (
        "gradients at step 6: 3 modules, largest layers.2.q_proj 3.000, 1 dead, 0 exploding"
    )
    assert found.shown_by == "go.gradients"


def test_a_failure_is_shown_longer_than_news() -> None:
    script = Script().start().run().train(5).command("clip 0.5", "1", "0.5")
    assert text(script) == "clip 0.5: applied from 6 (1 → 0.5)"
    assert text(script, LIFETIME_S - 1)
    assert text(script, LIFETIME_S + 1) == ""
    script.add(CommandFailed(id="x", command="rollback 5", reason="no such checkpoint"))
    assert text(script, LIFETIME_S + 1) == "rollback 5: failed: no such checkpoint"
    assert text(script, FAULT_LIFETIME_S + 1) == ""


def test_the_newest_of_result_and_event_is_shown() -> None:
    script = Script().start().run().train(5).command("clip 0.5").train(1)
    assert text(script.add(LogEmitted(level="info", text="epoch {data.x}"))) == "epoch {data.x}"
    assert text(script.train(1).command("lr scale 0.5")).startswith("lr scale 0.5: ")


@pytest.mark.parametrize("end", ["recovered", "rolled back"])
def test_what_belongs_to_an_incident_ends_with_it(end: str) -> None:
    script = Script().start().run().train(20)
    alarm = spike(script)
    script.add(alarm).add(AutopilotDecided(anomaly=alarm.id, decision="propose", command="pause"))
    assert text(script) == "autopilot: propose pause"
    script.add(AnomalyResolved(id=alarm.id, verdict=end))
    assert "autopilot" not in text(script)
