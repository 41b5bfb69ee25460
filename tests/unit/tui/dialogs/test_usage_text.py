"""What a run uses, in words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fttui.engine.protocol.commands import Rollback
from fttui.engine.protocol.events import RunStarted, StepFinished
from fttui.engine.protocol.usage.amounts import Budget, Price, Usage
from fttui.tui.cli.control import rollback_cost
from fttui.tui.dialogs.command_cost import consequence, given_up, meant
from fttui.tui.dialogs.usage_text import at_end, nearest_limit, usage_rows
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import STEP_S, Script

EUR = Price(hour=3.0, currency="EUR")


def metered(script: Script, *, watts: float | None, budget: Budget | None = None) -> RunView:
    """The view of a scripted run whose card takes a power, and which has a price."""
    records, begun = [], script.records[0].time
    for record in script.records:
        event, seconds = record.event, record.time - begun
        if isinstance(event, RunStarted):
            event = replace(event, price=EUR, budget=budget)
        elif isinstance(event, StepFinished):
            energy = None if watts is None else watts * seconds
            unread = seconds if watts is None else 0.0
            event = replace(
                event,
                usage=Usage(seconds=seconds, device_s=seconds, energy_j=energy, unmetered_s=unread),
            )
        records.append(replace(record, event=event))
    return apply_many(RunView(), records)


def trained(steps: int) -> Script:
    return Script(total=200).start().run().train(steps)


def test_so_far_and_to_the_end() -> None:
    run = metered(trained(100), watts=100.0)
    then = at_end(run)
    assert then is not None
    assert then.seconds == pytest.approx(run.used.seconds + 100 * STEP_S)
    assert [(row.name, row.text) for row in usage_rows(run)] == [
        ("time", "8 m 1 s   about 16 m 1 s at the end"),
        ("energy", "13.4 Wh   about 26.7 Wh at the end"),
        ("money", "0.40 EUR   about 0.80 EUR at the end"),
    ]


def test_without_a_power_reading_the_energy_is_called_unknown() -> None:
    rows = {row.name: row.text for row in usage_rows(metered(trained(20), watts=None))}
    assert rows["energy"] == "unknown: no power reading"


def test_a_budget_is_shown_and_warns_when_most_of_it_is_used() -> None:
    run = metered(trained(100), watts=100.0, budget=Budget(hours=0.14, money=9.0))
    rows = {row.name: row for row in usage_rows(run)}
    assert rows["budget.hours"].text == "0.134 of 0.14 h (95 %)"
    assert [row.warns for row in rows.values() if row.name.startswith("budget")] == [True, False]
    nearest = nearest_limit(run)
    assert nearest is not None
    assert nearest.key == "budget.hours"


def test_a_rollback_says_what_the_lost_work_has_taken() -> None:
    script = trained(60).checkpoint().train(40)
    state = AppState(run=metered(script, watts=100.0))
    back = Rollback(checkpoint="last")
    found = meant(state, back)
    assert found is not None
    lost = given_up(state, found)
    assert lost.used is not None
    assert lost.used.seconds == pytest.approx(40 * STEP_S)
    assert consequence(state, back, found)[0] == (
        "Back to step 60; the rollback loses 40 steps, 3 m 12 s, 5.33 Wh, 0.16 EUR of work."
    )


def test_a_rollback_to_an_abandoned_checkpoint_has_the_usage_since_the_fork() -> None:
    script = trained(60).checkpoint().train(20).checkpoint()
    script.rollback("step-000060-t1", 60).train(10)
    state = AppState(run=metered(script, watts=100.0))
    lost = given_up(state, state.run.checkpoints[1])
    assert lost.used is not None
    assert lost.used.seconds == pytest.approx(30 * STEP_S)


def test_ctl_says_what_a_rollback_gives_up_before_it_sends_it() -> None:
    script = trained(60).checkpoint().train(40)
    (line,) = rollback_cost(script.records, Rollback(checkpoint="60"))
    assert line == "the rollback discards 40 steps, 3 m 12 s, 4.85 Wh"
    assert list(rollback_cost(script.records, Rollback(checkpoint="7"))) == []
