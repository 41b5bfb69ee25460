"""The command table: every row can be typed, explained and gated."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.core.settings import (
    Inapplicable,
    SettingsContext,
    after_rollback,
    apply_setting,
    clip_now,
)
from fttui.engine.protocol.command_args import CommandError
from fttui.engine.protocol.command_kinds import ChatTurn
from fttui.engine.protocol.commands import (
    COMMANDS,
    AddNote,
    AnyCommand,
    AverageCheckpoints,
    Chat,
    CommandSpec,
    Confirm,
    Decline,
    Evaluate,
    FindCulprits,
    GenerateSample,
    KeepPrompt,
    MeasureGradients,
    OneShotCommand,
    Pause,
    ProfileSteps,
    Propose,
    Quarantine,
    Recover,
    ResetLr,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    ScaleLr,
    SetClip,
    SetDropout,
    SetLr,
    SetMix,
    SetPolicy,
    SetSchedule,
    SettingCommand,
    SetWeightDecay,
    SkipBatches,
    Stop,
    command_words,
    describe_command,
    parse_command,
    recorded_command,
    spec_of,
    why_illegal,
)
from fttui.engine.protocol.settings import SCHEDULE_SHAPES, RestOfSchedule, RunSettings
from fttui.engine.protocol.states import RunState

EXAMPLES: list[AnyCommand] = [
    ScaleLr(factor=0.5),
    SetLr(value=1e-4),
    ResetLr(),
    SetClip(),
    SetClip(value=0.5),
    SetClip(percentile=90),
    Pause(),
    Resume(),
    RunSteps(steps=20),
    SaveCheckpoint(),
    SaveCheckpoint(pin=True),
    SaveCheckpoint(pin=True, note="before the new data"),
    SaveCheckpoint(note="a note"),
    Rollback(checkpoint="last"),
    Rollback(checkpoint="step-000120", lr_scale=0.5, clip=0.3, skip=4),
    Evaluate(),
    AverageCheckpoints(last=3),
    AverageCheckpoints(checkpoints=("step-000120", "200")),
    GenerateSample(prompt="Once upon a time"),
    Chat(prompt="what is it?"),
    Chat(prompt="-- tokens=3", system="be brief", temperature=0.5, tokens=9, seed=2),
    Chat(prompt="and then?", checkpoint="step-000120"),
    KeepPrompt(prompt="what is it?"),
    KeepPrompt(prompt="drop the ball"),
    KeepPrompt(prompt="kept", drop=True),
    KeepPrompt(drop=True),
    SkipBatches(steps=3),
    AddNote(text="new data from here on"),
    SetPolicy(nonfinite="rollback"),
    SetPolicy(autopilot="act"),
    Recover(),
    Recover(anomaly="spike-120-t2"),
    FindCulprits(),
    FindCulprits(anomaly="spike-120-t2"),
    MeasureGradients(),
    ProfileSteps(),
    ProfileSteps(steps=5),
    Quarantine(ids=("train.jsonl:7",)),
    Quarantine(ids=("a b", "it's", "lift")),
    Quarantine(ids=("lift", "x")),
    Quarantine(ids=("--",)),
    Quarantine(ids=("kept",), lift=True),
    Quarantine(ids=(), lift=True),
    SetMix(weights={"a b": 2, "it's=": 0.5}),
    SetMix(weights={"a b": 1, "it's=": 0}),
    SetMix(weights={}),
    SetWeightDecay(value=0.01),
    SetWeightDecay(value=0.0),
    SetWeightDecay(),
    SetDropout(rate=0.05),
    SetDropout(),
    SetSchedule(shape="cosine"),
    SetSchedule(shape="linear", start=0, lr=1.2345678901234567e-4),
    SetSchedule(shape=""),
    Stop(),
    Stop(save=False),
    Propose(command=Rollback(checkpoint="last", lr_scale=0.5)),
    Confirm(proposal="p0a1b2"),
    Decline(proposal="p0a1b2"),
]


def test_the_examples_cover_every_command_and_every_row() -> None:
    assert {type(command) for command in EXAMPLES} == set(get_args(AnyCommand))
    assert {spec.command for spec in COMMANDS} == set(get_args(AnyCommand))
    assert len({spec.verb for spec in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("command", EXAMPLES, ids=describe_command)
def test_what_is_described_can_be_typed(command: AnyCommand) -> None:
    assert parse_command(describe_command(command)) == command


UNQUOTED = [
    AddNote(text='it\'s  "x" \\ -- 3'),
    GenerateSample(prompt="say: 'a"),
    SaveCheckpoint(note="it's"),
    Chat(prompt="tokens=3", conversation="c1", turns=(ChatTurn(prompt="a", base="b", now="'c"),)),
    Chat(prompt="--"),
    Propose(command=SetMix(weights={"a b": 1, "it's=": 0})),
    Propose(command=AddNote(text="it's")),
]


@pytest.mark.parametrize("command", [*EXAMPLES, *UNQUOTED], ids=describe_command)
def test_the_words_of_every_command_are_read_back(command: AnyCommand) -> None:
    assert parse_command(command_words(command)) == command


@pytest.mark.parametrize("verb", ["note", "sample", "chat"])
def test_a_blank_text_is_no_text(verb: str) -> None:
    with pytest.raises(CommandError, match="needs a"):
        parse_command([verb, "  "])


@pytest.mark.parametrize("spec", COMMANDS, ids=lambda spec: spec.verb)
def test_every_row_explains_itself(spec: CommandSpec) -> None:
    assert spec.usage.startswith(spec.verb)
    assert spec.help
    assert spec.legal
    assert not any(state.ended for state in spec.legal)


@pytest.mark.parametrize("command", EXAMPLES, ids=describe_command)
@pytest.mark.parametrize("state", list(RunState))
def test_an_illegal_command_says_why(command: AnyCommand, state: RunState) -> None:
    why = why_illegal(command, state)
    assert (why is None) == (state in spec_of(command).legal)
    assert why is None or state.value in why


BEFORE = RunSettings(
    lr_scale=0.7, clip=0.9, clip_percentile=95, paused=True, release=True, pause_at_step=3,
    nonfinite="rollback", autopilot="off", quarantine=("kept",), samples=("kept",),
    mix={"a b": 3, "it's=": 1},
    weight_decay=0.2, dropout=0.2, schedule=RestOfSchedule(shape="linear", start=3, lr=1e-3),
)  # fmt: skip
VALUES = {"lr_scale", "clip", "clip_percentile", "nonfinite", "autopilot", "quarantine", "mix"}
VALUES |= {"weight_decay", "dropout", "schedule"}
CONTEXT = SettingsContext(
    step=10, lr_schedule=2e-4, norm_percentile=lambda p: p / 100, sources=("a b", "it's=")
)


def _changed(command: SettingCommand) -> set[str]:
    after = apply_setting(BEFORE, command, CONTEXT).settings
    return {f for f in BEFORE.__struct_fields__ if getattr(after, f) != getattr(BEFORE, f)}


@pytest.mark.parametrize("spec", COMMANDS, ids=lambda spec: spec.verb)
def test_a_type_is_told_apart_as_its_row_says(spec: CommandSpec) -> None:
    assert issubclass(spec.command, SettingCommand) == (spec.kind == "setting")
    assert issubclass(spec.command, OneShotCommand) == (spec.kind == "one_shot")


@pytest.mark.parametrize(
    "command", [c for c in EXAMPLES if isinstance(c, SettingCommand)], ids=describe_command
)
def test_the_row_of_a_setting_says_what_it_changes(command: SettingCommand) -> None:
    spec, changed = spec_of(command), _changed(command)
    assert changed or command in (Resume(), RunSteps(steps=20), SetPolicy(nonfinite="rollback"))
    assert changed <= VALUES if spec.versioned else changed.isdisjoint(VALUES)
    assert (spec.undo is not None) == spec.versioned


@pytest.mark.parametrize("spec", COMMANDS, ids=lambda spec: spec.verb)
def test_a_row_is_consistent(spec: CommandSpec) -> None:
    assert spec.name
    assert spec.in_lineage or not spec.versioned
    assert spec.undo is None or spec.kind == "setting"
    assert not (spec.resumes and spec.kind == "one_shot")
    assert not spec.urgent or spec.kind == "one_shot" or spec.effect == "before"
    assert not (spec.urgent and spec.effect == "next"), "a step in progress would be dropped"


def test_who_drops_a_step_resumes_and_counts_as_a_change() -> None:
    def verbs(having: Callable[[CommandSpec], object]) -> list[str]:
        return [spec.verb for spec in COMMANDS if having(spec)]

    assert verbs(lambda s: s.urgent) == ["pause", "rollback", "recover"]
    assert verbs(lambda s: s.effect == "before") == ["pause"]
    assert verbs(lambda s: s.resumes) == ["resume", "run"]
    assert verbs(lambda s: s.versioned and s.kind == "one_shot") == ["rollback", "recover"]
    assert verbs(lambda s: s.in_lineage and not s.versioned) == ["skip"]


def test_a_recovery_changes_the_settings_as_its_row_says() -> None:
    after = after_rollback(BEFORE, Rollback(checkpoint="last", lr_scale=0.35, clip=0.3))
    assert (after.lr_scale, after.clip, after.clip_percentile) == (0.35, 0.3, None)
    assert after_rollback(BEFORE, Rollback(checkpoint="last")) == BEFORE


def test_a_recorded_command_that_is_unknown_is_none() -> None:
    assert recorded_command("lr scale 0.5") == ScaleLr(factor=0.5)
    assert recorded_command("warmup again") is None
    assert recorded_command("note it's new") is None


POSITIVE = st.floats(1e-6, 1e6)
IDS = st.lists(st.sampled_from("abcd"), unique=True).map(tuple)
WEIGHTS: st.SearchStrategy[dict[str, float]] = st.just({}) | st.builds(
    lambda a, b: {"a b": a, "it's=": b}, POSITIVE, POSITIVE
)
SHAPES = st.sampled_from(SCHEDULE_SHAPES)
STEPS = st.integers(0, 1000)
SETTINGS = st.builds(
    RunSettings,
    lr_scale=POSITIVE,
    clip=st.none() | POSITIVE,
    clip_percentile=st.none(),
    nonfinite=st.sampled_from(["skip", "halt", "rollback"]),
    autopilot=st.sampled_from(["off", "propose", "act"]),
    quarantine=IDS,
    mix=WEIGHTS,
    weight_decay=st.none() | POSITIVE,
    dropout=st.none() | st.floats(0, 0.9),
    schedule=st.none() | st.builds(RestOfSchedule, shape=SHAPES, start=STEPS, lr=POSITIVE),
) | st.builds(RunSettings, clip=POSITIVE, clip_percentile=st.floats(1, 100))
CHANGES = st.one_of(
    st.builds(ScaleLr, factor=POSITIVE),
    st.builds(SetLr, value=POSITIVE),
    st.just(ResetLr()),
    st.builds(SetClip, value=st.none() | POSITIVE),
    st.builds(SetClip, percentile=st.floats(1, 100)),
    st.builds(SetPolicy, nonfinite=st.sampled_from(["skip", "halt", "rollback"])),
    st.builds(SetPolicy, autopilot=st.sampled_from(["off", "propose", "act"])),
    st.builds(Quarantine, ids=IDS.filter(bool)),
    st.builds(Quarantine, ids=IDS, lift=st.just(True)),
    st.builds(SetMix, weights=WEIGHTS),
    st.builds(SetWeightDecay, value=st.none() | POSITIVE),
    st.builds(SetDropout, rate=st.none() | st.floats(0, 0.9)),
    st.builds(SetSchedule, shape=SHAPES | st.just("")),
)


@given(SETTINGS, CHANGES)
def test_undo_restores_the_settings_before(before: RunSettings, command: SettingCommand) -> None:
    try:
        after = apply_setting(before, command, CONTEXT).settings
    except Inapplicable:
        assert isinstance(command, Quarantine)  # it would change nothing
        return
    undo = spec_of(command).undo
    assert undo is not None
    undoing = undo(command, before)
    assert isinstance(undoing, SettingCommand)
    restored = apply_setting(after, undoing, CONTEXT).settings
    if before.clip_percentile is not None and isinstance(command, SetClip):
        # A percentile follows the norms of now; where it began does not matter any more.
        restored = msgspec.structs.replace(restored, clip=before.clip)
        assert clip_now(restored, CONTEXT.norm_percentile) == before.clip_percentile / 100
    assert sorted(restored.quarantine) == sorted(before.quarantine)
    assert msgspec.structs.replace(restored, quarantine=before.quarantine) == before


def test_every_change_is_tried_by_the_test_of_undo() -> None:
    tried = {ScaleLr, SetLr, ResetLr, SetClip, SetPolicy, Quarantine, SetMix}
    tried |= {SetWeightDecay, SetDropout, SetSchedule}
    assert {spec.command for spec in COMMANDS if spec.undo} == tried
