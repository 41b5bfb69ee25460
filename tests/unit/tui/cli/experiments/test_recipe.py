"""`recipe` and `diff` from run folders alone: no training stack is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from fttui.engine.config.load import load_config
from fttui.engine.config.schema import PlannedCommand
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import AnyEvent, CommandApplied, Record, StepFinished
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.identity.content import Content, ContentIdentity
from fttui.engine.run.identity.recorded import StartedWith, add_start
from fttui.engine.run.journal import FrameWriter
from fttui.engine.run.records.record_feed import read_whole
from fttui.engine.run.run_dir import RunDirectory, RunOrigin, create_run
from fttui.tui.cli.experiments.recipe import (
    fresh_settings,
    readable_config,
    recipe_text,
)
from fttui.tui.cli.main import main
from fttui.tui.view_model.history.surviving import surviving_timeline

HALF = RunSettings(clip=1.0, lr_scale=0.5)


def trained(
    root: Path, name: str, *events: tuple[int, AnyEvent], sets: str = "", script: str = ""
) -> RunDirectory:
    """A run whose steps have the loss 1 / step, with further events after steps."""
    (root / "a.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    config = root / f"{name}.yaml"
    config.write_text(
        f"name: {name}\nmodel: {{id: m}}\ndata: {{train: a.jsonl}}\ntrain: {{steps: 12{sets}}}\n"
    )
    loaded = load_config(config)
    run = create_run(
        root, name=name, config=config, source=loaded.source, resolved=loaded.resolved,
        overrides=[], version="0", origin=RunOrigin(script=script),
    )  # fmt: skip
    every: list[tuple[int, AnyEvent]] = []
    for step in range(1, 13):
        scale = 0.5 if events and step > events[0][0] else 1.0
        every.append((step, StepFinished(loss=1 / step, clip=1.0, lr_scale=scale)))
        every += [one for one in events if one[0] == step]
    journal = FrameWriter(run.journal, run.journal_lock)
    for seq, (step, event) in enumerate(every, 1):
        journal.append(encode(Record(seq=seq, time=1.0, step=step, timeline=1, event=event)))
    journal.close()
    return run


def halved(step: int) -> tuple[int, AnyEvent]:
    return step, CommandApplied(
        id=f"c{step}", command="lr scale 0.5", applied=parse_command("lr scale 0.5"),
        previous=RunSettings(clip=1.0), settings=HALF, issuer="ada",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    both = capsys.readouterr()
    return code, both.out, both.err


def test_a_recipe_is_a_configuration_with_the_interventions_and_no_autopilot(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(root, "mine", halved(5))
    code, out, err = said(capsys, "recipe", run.id, "-o", str(root / "recipe.yaml"))
    assert (code, err) == (0, "")
    assert out.startswith("1 intervention; written to")
    config = load_config(root / "recipe.yaml").config
    assert [(one.step, one.command) for one in config.interventions] == [(5, "lr scale 0.5")]
    assert config.policy.autopilot == "off"
    assert config.train.steps == 12


def test_a_recipe_is_printed_without_a_file_and_never_overwrites_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(root, "mine")
    code, out, _ = said(capsys, "recipe", run.id)
    assert code == 0
    assert "interventions: []" in out
    code, _, err = said(capsys, "recipe", run.id, "-o", str(root / "mine.yaml"))
    assert code == 2
    assert "exists already" in err


def test_what_a_recipe_cannot_repeat_is_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    early = ", early_stop: {patience: 2}}\neval: {every: 4"
    run = trained(root, "mine", (4, StepFinished(loss=1.0)), sets=early)
    (run.path / "config.1.yaml").write_text("name: before\n")
    code, _, err = said(capsys, "recipe", run.id)
    assert code == 0
    assert "the configuration was changed when the run was resumed (config.1.yaml before)" in err
    assert "steps, first 4, had a learning rate factor or clip" in err
    assert "train.early_stop also counts evaluations" in err


def test_damage_and_commands_without_settings_are_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = CommandApplied(id="c", command="lr scale 0.5")
    run = trained(root, "mine", (12, old))
    with run.journal.open("ab") as file:
        file.write(b"damage")
    for words in (["recipe", run.id], ["diff", run.id, run.id]):
        code, _, err = said(capsys, *words)
        assert code == 0
        assert "not read: 6 damaged bytes of the journal; interventions may be missing" in err
        assert "lacks the settings after 1 command, first step 12: lr scale 0.5" in err


def test_planned_interventions_that_a_stopped_run_has_not_reached_stay_in_its_recipe(
    root: Path,
) -> None:
    run = trained(root, "mine", halved(5))
    planned = [PlannedCommand(step=step, command="clip 2") for step in (4, 15)]
    config = msgspec.structs.replace(readable_config(run), interventions=planned)
    records, not_read = read_whole(run)
    timeline = surviving_timeline(records, fresh_settings(config))
    found = yaml.safe_load(recipe_text(run, config, records, timeline))["interventions"]
    assert not_read == []
    assert [(one["step"], one["command"]) for one in found] == [
        (5, "lr scale 0.5"), (15, "clip 2"),
    ]  # fmt: skip


def test_content_whose_hash_is_not_known_is_not_called_equal(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, unknown = Content(hash="a"), Content(unknown="data are streamed")
    identity = ContentIdentity(base=known, tokenizer=known, template=known, data=unknown)
    run = trained(root, "mine")
    add_start(run, StartedWith(incarnation=1, time=0.0, identity=identity))
    _, out, _ = said(capsys, "diff", run.id, run.id)
    assert "not compared: data: data are streamed" in out
    assert "model and data: no difference" not in out


def test_the_run_of_a_script_has_no_recipe(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(root, "mine", script="python train.py")
    code, _, err = said(capsys, "recipe", run.id)
    assert code == 2
    assert "python train.py" in err


def test_two_runs_differ_by_settings_and_interventions_and_not_by_their_losses(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = trained(root, "one", halved(5)), trained(root, "two", sets=", lr: 3.0e-5")
    code, out, _ = said(capsys, "diff", one.id, other.id)
    assert code == 0
    assert "  train.lr  0.0002  3e-05" in out
    assert "only A  step 5: lr scale 0.5" in out
    assert "only B" not in out
    assert f"not recorded for {one.id} and {other.id}" in out
    assert "losses: equal to the last bit in all 12 common steps" in out
    assert "name" not in out.partition("outcome")[0].partition("settings")[2]


def test_a_run_does_not_differ_from_itself(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(root, "one", halved(5))
    _, out, _ = said(capsys, "diff", run.id, run.id)
    assert "settings: no difference" in out
    assert "interventions (1 in both): no difference" in out


def test_a_comparison_is_told_to_programs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = trained(root, "one", halved(5)), trained(root, "two")
    code, out, _ = said(capsys, "diff", one.id, other.id, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["runs"] == [one.id, other.id]
    assert found["only_one"] == ["step 5: lr scale 0.5"]
    assert found["losses"]["first_different"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mine.yaml"], "policy.autopilot is propose, expected off"),
        (["recipe.yaml", "mine.yaml"], "leave out CONFIG and --resume"),
        (["recipe.yaml", "--resume", "x"], "leave out CONFIG and --resume"),
    ],
)
def test_what_is_no_recipe_is_not_repeated(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    trained(root, "mine")
    files = [str(root / word) if word.endswith("yaml") else word for word in words]
    code, _, err = said(capsys, "run", "--headless", "--replay", *files)
    assert code == 2
    assert expected in err
