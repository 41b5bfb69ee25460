from __future__ import annotations

import math

import msgspec
import pytest

from fttui.engine.core.anomaly import Alert
from fttui.engine.core.recovery import MAX_ATTEMPTS, RecoveryAttempt, RecoveryForecast
from fttui.engine.core.reports.advice import ADVICE, CAUSES, AdviceContext, recommend
from fttui.engine.core.reports.anomaly_report import (
    Evidence,
    LrChange,
    Module,
    TrainingSample,
    build_report,
    from_json,
    signs,
    to_json,
    top_modules,
)
from fttui.engine.core.reports.curve_plot import CurvePoint
from fttui.engine.core.reports.page import to_markdown
from fttui.engine.protocol.commands import SetClip, parse_command

KINDS = sorted(CAUSES)
ATTEMPT = RecoveryAttempt(
    anomaly="spike-123", checkpoint="step-000120", step=120, lr_scale=0.5, clip=0.6, skip=23
)
PLANNED = RecoveryForecast(attempt=ATTEMPT)
BY_HAND = "rollback step-000120 lr=0.5 clip=0.6 skip=23"


def alert(kind: str = "spike", severity: str = "alarm", step: int = 123) -> Alert:
    return Alert(
        id=f"{kind}-{step}",
        kind=kind,
        severity=severity,
        step=step,
        headline="loss 6.52 is ×6.5 its usual 1 (z 14)",
        value=6.52,
        baseline=1.0,
        z=14.2,
        ratio=6.52,
    )


def evidence(**changed: object) -> Evidence:
    whole = Evidence(
        time=1_700_000_000.0,
        run="demo",
        epoch=1.31,
        current_loss=6.52,
        previous_loss=1.02,
        grad_norm=8.0,
        grad_normal=(0.4, 1.2),
        lr=1e-4,
        lr_scale=1.0,
        lr_changes=[LrChange(step=90, text="lr scale 0.5")],
        clip=1.0,
        clip_share=0.03,
        mem_used_bytes=3 * 2**30,
        mem_total_bytes=6 * 2**30,
        samples=[
            TrainingSample(
                rank=0, batch="current", id="os.path:join", tokens=120, preview="def `j`\n  x"
            ),
            TrainingSample(rank=0, batch="previous", id="json:loads", tokens=80),
        ],
        tried=["rollback step-000100 lr=0.5 at 118"],
        checkpoint="step-000120",
        checkpoint_step=120,
        recovery=PLANNED,
    )
    return msgspec.structs.replace(whole, **changed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("severity", ["info", "watch", "alarm"])
@pytest.mark.parametrize("recovery", [RecoveryForecast(), PLANNED], ids=["no way back", "planned"])
@pytest.mark.parametrize("rollbacks", [0, 1, 2])
def test_every_recommendation_is_a_command_with_its_reason(
    kind: str, severity: str, recovery: RecoveryForecast, rollbacks: int
) -> None:
    now = AdviceContext(norm_high=1.2, rollbacks=rollbacks, recovery=recovery)
    actions = recommend(alert(kind, severity), now)
    assert actions
    assert all(action.why for action in actions)
    for action in actions:
        parse_command(action.command)


def test_every_kind_has_causes_and_advice() -> None:
    assert set(CAUSES) == set(ADVICE)
    assert all(CAUSES.values())


def test_the_recipe_for_a_spike() -> None:
    report = build_report(alert(), evidence())
    assert report.actions[0].command == "recover spike-123"
    assert report.actions[1].command == BY_HAND


@pytest.mark.parametrize("tried", [{"rollbacks": 2}, {"recovery": RecoveryForecast(tried=2)}])
def test_a_third_try_is_not_recommended(tried: dict[str, object]) -> None:
    assert MAX_ATTEMPTS == 2
    actions = build_report(alert("divergence"), evidence(**tried)).actions
    assert [action.command for action in actions] == ["stop", "pause"]
    assert "2 rollbacks did not help" in actions[0].why
    once = build_report(alert("divergence"), evidence(rollbacks=1)).actions
    assert once[0].command == "recover divergence-123"


def test_without_a_way_back_the_rate_is_lowered() -> None:
    report = build_report(alert(), evidence(recovery=RecoveryForecast()))
    assert [action.command for action in report.actions] == ["lr scale 0.5", "pause"]


def test_a_climbing_gradient_is_clipped_at_its_normal_range() -> None:
    report = build_report(alert("grad_explosion", "watch"), evidence(clip=None))
    assert parse_command(report.actions[0].command) == SetClip(value=1.8)
    assert not any(action.command.startswith("rollback") for action in report.actions)


@pytest.mark.parametrize("kind", ["plateau", "throughput_drop", "straggler"])
def test_the_first_command_changes_nothing_where_nothing_is_in_danger(kind: str) -> None:
    first = recommend(alert(kind, "info"), AdviceContext(lr_scale=3.0))[0]
    assert first.command.split()[0] in {"eval", "profile"}


def test_how_far_out_a_value_is_stands_beside_the_quantity_that_it_is_about() -> None:
    page = to_markdown(build_report(alert("grad_explosion"), evidence()))
    assert "- **Loss:** 6.52, 1.02 in the step before\n" in page
    assert "(normal range 0.4 – 1.2), ×6.52 of its usual value, 14.2 standard deviations" in page
    for kind in ("straggler", "collapse", "throughput_drop"):
        assert "of its usual value" not in to_markdown(build_report(alert(kind), evidence()))


def test_a_clip_is_half_of_what_exploded_where_earlier_ones_widened_what_is_normal() -> None:
    exploded = msgspec.structs.replace(alert("grad_explosion"), value=20.5, baseline=2.8)
    wide = AdviceContext(norm_high=17.8)
    assert parse_command(recommend(exploded, wide)[0].command) == SetClip(value=10.2)


def test_a_clip_in_force_is_never_loosened_by_a_recommendation() -> None:
    report = build_report(alert("grad_explosion", "alarm"), evidence(clip=1.0))
    commands = [parse_command(action.command) for action in report.actions]
    assert not any(isinstance(command, SetClip) for command in commands)
    assert report.actions[0].command == "lr scale 0.7"


def test_markdown_has_what_a_person_needs() -> None:
    text = to_markdown(build_report(alert(), evidence()))
    for line in (
        "# Loss spike at step 123: `recover spike-123`, unless the loss returns to its usual level",
        "- **Time:** 2023-11-14 22:13:20 UTC",
        "- **Step:** 123 (epoch 1.31)",
        "- **Alert:** spike (alarm): loss 6.52 is ×6.5 its usual 1 (z 14)",
        "- **Loss:** 6.52, 1.02 in the step before, ×6.52 of its usual value, 14.2 standard "
        "deviations of the noise",
        "- **Gradient norm:** 8 (normal range 0.4 – 1.2)",
        "- **Learning rate:** 0.0001; changed: lr scale 0.5 at 90",
        "- **Clipping:** 1, 3% of recent steps clipped",
        "- **Memory:** 3.00 / 6.00 GiB",
        "- **Good checkpoint:** step-000120",
        "- current, rank 0: `os.path:join`, 120 tokens: `def 'j' x`",
        "- previous, rank 0: `json:loads`, 80 tokens",
        "- rollback step-000100 lr=0.5 at 118",
    ):
        assert line in text.splitlines()
    assert "1. `recover spike-123`: Rolls back 3 steps to step-000120, skips the data of 23" in text
    assert f"2. `{BY_HAND}`: Does the same at once" in text


def test_the_page_begins_with_what_happened_and_ends_with_the_run() -> None:
    modules = [Module("layers.0.q_proj", 1.0, 0.1)]
    curve = [CurvePoint(122, 1.02, 0.9), CurvePoint(123, 6.52, 8.0)]
    text = to_markdown(build_report(alert(), evidence(modules=modules, curve=curve)))
    lines = text.splitlines()
    assert lines[2] == "The loss jumped to 6.52, 6.52 times its usual 1."
    assert lines[4] == "```text"
    assert max(len(line) for line in lines[5 : lines.index("```", 5)]) <= 72
    heads = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert heads == [
        "Evidence", "Samples", "Recommended commands", "Likely causes", "Tried before", "Modules",
        "Run",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_has_every_likely_cause_and_the_advice(kind: str) -> None:
    report = build_report(alert(kind), evidence())
    lines = to_markdown(report).splitlines()
    assert report.causes
    assert [f"{n}. {cause}" for n, cause in enumerate(report.causes, 1)] == [
        line for line in lines if line[:2] in ("1.", "2.", "3.", "4.") and "`: " not in line
    ]
    assert report.advice in lines


def test_markdown_of_bare_evidence_has_no_empty_fields() -> None:
    text = to_markdown(build_report(alert(), Evidence(time=0.0)))
    assert "None" not in text
    assert "Gradient norm" not in text
    assert "## Samples" not in text


def test_json_keeps_numbers_that_are_none() -> None:
    report = build_report(alert("nonfinite"), evidence(current_loss=math.nan, grad_norm=math.inf))
    data = to_json(report)
    assert b'"current_loss": "nan"' in data
    again = from_json(data)
    assert math.isnan(again.evidence.current_loss or 0.0)
    assert again.evidence.grad_norm == math.inf
    assert again.actions == report.actions
    assert again.evidence.samples == report.evidence.samples


def test_a_report_of_an_older_version_is_read_and_its_keys_are_left_out() -> None:
    old = msgspec.json.decode(to_json(build_report(alert(), evidence())))
    for action in old["actions"]:
        action["key"] = "R"
    del old["evidence"]["recovery"]
    again = from_json(msgspec.json.encode(old))
    assert again.actions[0].command == "recover spike-123"
    assert again.evidence.recovery == RecoveryForecast()
    assert b'"key"' not in to_json(again)


def test_causes_with_evidence_come_first_and_say_what_it_is() -> None:
    raised = evidence(lr_changes=[LrChange(step=115, text="lr scale 3")], lr_scale=3.0)
    causes = build_report(alert(), raised).causes
    assert causes[0].startswith("a learning rate too high")
    assert "changed recently: lr scale 3" in causes[0]
    long = [
        TrainingSample(rank=0, batch="current", id="x", tokens=400),
        TrainingSample(rank=1, batch="current", id="x", tokens=90),
        TrainingSample(rank=0, batch="previous", id="y", tokens=80),
    ]
    causes = build_report(alert(), evidence(samples=long, lr_changes=[])).causes
    assert causes[0].startswith("an outlier batch")
    assert "400 tokens" in causes[0]
    assert "twice or more in the batch: x" in causes[0]


def test_odd_modules_are_shown_beside_the_largest() -> None:
    modules = [Module(f"layers.{n}.q_proj", 0.1 * n, 1e-4 * n) for n in range(12)]
    modules[1] = Module("layers.1.q_proj", 0.0, 0.0, "dead")
    seen = evidence(modules=top_modules(modules), loss_scale=1024.0, checkpoint_why="calm")
    text = to_markdown(build_report(alert("grad_explosion"), seen))
    assert "layers.11.q_proj" in text
    assert "layers.3.q_proj" not in text
    assert "`layers.1.q_proj`: gradient 0, update 0 — dead" in text
    assert "**Loss scale:** 1024" in text
    assert "step-000120: calm" in text


def test_modules_measured_later_say_when() -> None:
    late = evidence(modules=[Module("layers.3.q_proj", 4.0, 0.1, "exploding")], modules_step=124)
    assert "## Modules, measured at step 124" in to_markdown(build_report(alert(), late))


@pytest.mark.parametrize(
    ("level", "current", "shown"),
    [(4.0, 9.0, "4"), (9.0, 9.0, None), (math.inf, 9.0, None), (None, 9.0, None)],
)
def test_the_present_level_is_shown_where_it_is_not_the_loss(
    level: float | None, current: float, shown: str | None
) -> None:
    report = build_report(alert("divergence"), evidence(current_loss=current))
    text = to_markdown(msgspec.structs.replace(report, level_now=level))
    assert ("now around" in text) == (shown is not None)
    assert shown is None or f", now around {shown}," in text


def test_the_whole_page() -> None:
    rich = evidence(
        timeline=2, lr_scale=0.5, loss_scale=1024.0, clip_share=0.6, guard="loss nan",
        rank_mem_bytes=[2**30, 3 * 2**29], rank_s=[0.1234, 2.0], checkpoint_why="calm",
        modules=[Module("layers.0", math.inf, 0.0, "exploding"), Module("layers.1", 1.0, 0.125)],
        modules_step=124,
    )  # fmt: skip
    report = msgspec.structs.replace(
        build_report(alert(), rich), autopilot="propose", initiated="step 123 → 120"
    )
    assert to_markdown(report) == PAGE


PAGE = """\
# Loss spike at step 123: rolled back

The loss jumped to 6.52, 6.52 times its usual 1. The update was refused, so the weights are \
unchanged (loss nan). The autopilot's decision: propose. A rollback was made: step 123 → 120.

## Evidence

- **Loss:** 6.52, 1.02 in the step before, ×6.52 of its usual value, 14.2 standard deviations \
of the noise
- **Gradient norm:** 8 (normal range 0.4 – 1.2)
- **Learning rate:** 0.0001 (schedule × 0.5); changed: lr scale 0.5 at 90
- **Clipping:** 1, 60% of recent steps clipped
- **Good checkpoint:** step-000120: calm
- **Loss scale:** 1024
- **Memory:** 3.00 / 6.00 GiB
- **Memory by rank:** 1.00 GiB, 1.50 GiB
- **Seconds by rank:** 0.123, 2

## Samples

- current, rank 0: `os.path:join`, 120 tokens: `def 'j' x`
- previous, rank 0: `json:loads`, 80 tokens

## Recommended commands

1. `recover spike-123`: Rolls back 3 steps to step-000120, skips the data of 23 steps, and sets \
the learning rate to 0.5 × its schedule and the gradient clip to 0.6. The next steps are a \
probation. Send it if the loss does not return to its usual level.
2. `rollback step-000120 lr=0.5 clip=0.6 skip=23`: Does the same at once, without the probation.
3. `pause`: Pauses training while you look. Most single spikes recover within some steps.

Look at the samples of this and the previous batch before you change anything.

## Likely causes

1. a learning rate too high for this state, if the loss does not return to its usual level \
(changed recently: lr scale 0.5; 60% of recent steps were clipped)
2. an outlier batch: garbled, duplicated or very long samples (the gradient norm of this step is \
×6.67 the upper end of its usual range)

## Tried before

- rollback step-000100 lr=0.5 at 118

## Modules, measured at step 124

- `layers.0`: gradient inf, update 0 — exploding
- `layers.1`: gradient 1, update 0.125

## Run

- **Alert:** spike (alarm): loss 6.52 is ×6.5 its usual 1 (z 14)
- **Step:** 123 (epoch 1.31)
- **Run:** demo (timeline 2)
- **Time:** 2023-11-14 22:13:20 UTC
"""


def test_the_page_of_an_alert_without_evidence() -> None:
    bare = Alert(id="vram_leak-7", kind="vram_leak", severity="watch", step=7, headline="memory")
    assert to_markdown(build_report(bare, Evidence(time=0.0))) == BARE_PAGE


BARE_PAGE = """\
# Memory leak at step 7: `checkpoint pin leak`

Memory.

## Evidence

- **Clipping:** off
- **Good checkpoint:** none

## Recommended commands

1. `checkpoint pin leak`: Saves the run before memory runs out.
2. `stop`: Saves and ends the run. `fttui run --resume` continues in a new process.

A restart from a checkpoint frees the memory.

## Likely causes

1. tensors kept alive from step to step
2. memory fragmentation

## Run

- **Alert:** vram leak (watch): memory
- **Step:** 7
- **Time:** 1970-01-01 00:00:00 UTC
"""


@pytest.mark.parametrize(("step", "recent"), [(73, True), (72, False)])
def test_changes_of_the_rate_count_for_fifty_steps(step: int, recent: bool) -> None:
    changed = evidence(lr_changes=[LrChange(step=step, text="lr scale 3")], grad_norm=None)
    assert signs(alert(), changed).lr_raised == (["lr scale 3"] if recent else [])


def test_the_signs_of_an_alert() -> None:
    assert signs(alert(), evidence()).grad_ratio == 8.0 / 1.2
    assert signs(alert(), evidence(grad_norm=None)).grad_ratio is None
    assert signs(alert(), evidence(grad_normal=None)).grad_ratio is None
    assert signs(alert(), evidence(grad_normal=(0.0, 0.0))).grad_ratio is None
    found = signs(alert(), evidence())
    assert (found.longest, found.longest_before, found.repeated) == (120, 80, [])
    bare = signs(alert(), Evidence(time=0.0))
    assert (bare.lr_scale, bare.longest, bare.longest_before) == (1.0, None, None)


def test_a_report_without_evidence_has_the_values_of_a_new_run() -> None:
    bare = Evidence(time=0.0)
    assert (bare.timeline, bare.lr_scale, bare.rollbacks) == (1, 1.0, 0)
    assert (AdviceContext().lr_scale, AdviceContext().rollbacks) == (1.0, 0)


@pytest.mark.parametrize(("length", "cut"), [(240, False), (241, True)])
def test_a_long_sample_is_cut(length: int, cut: bool) -> None:
    sample = TrainingSample(rank=1, batch="current", id="a", tokens=9, preview="x" * length)
    page = to_markdown(build_report(alert(), evidence(samples=[sample])))
    shown = "x" * 240 + ("…" if cut else "")
    assert f"- current, rank 1: `a`, 9 tokens: `{shown}`\n" in page


def test_the_five_largest_and_the_first_five_odd_modules_are_chosen() -> None:
    quiet = [Module(f"m{n}", 1.0 + n, 20.0 - n) for n in range(14)]
    odd = [Module(f"odd{n}", 0.0, 0.0, "dead") for n in range(7)]
    names = [module.name for module in top_modules([*quiet, *odd])]
    assert names == [f"m{n}" for n in (0, 1, 2, 3, 4, 9, 10, 11, 12, 13)] + [
        f"odd{n}" for n in range(5)
    ]
    loud = Module("nan", math.nan, 0.0)
    assert loud in top_modules([*quiet, loud])


def test_modules_are_signs_only_if_something_is_odd_about_them() -> None:
    modules = [Module("usual", 1.0, 2.0), Module("odd", 0.0, 0.0, "dead")]
    assert signs(alert(), evidence(modules=modules)).odd_modules == ["odd (dead)"]
