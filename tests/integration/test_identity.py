"""Resume, rollback and export with another model or other data are refused until accepted."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.errors import CheckpointError, ContentChanged
from fttui.engine.export.__main__ import main as export
from fttui.engine.protocol.events import CommandFailed, LogEmitted, NoteAdded, RunStarted
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.run.identity import run_identity
from fttui.engine.run.identity.comparison import content_identity
from fttui.engine.run.identity.content import ContentIdentity
from fttui.engine.run.identity.recorded import read_recorded
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace
from fttui.tui.cli.main import main as fttui
from tests.support.ranks import in_ranks
from tests.support.training import Script, new_run, play


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at steps 4 and 8, its model and its data."""
    folder = tmp_path_factory.mktemp("trained")
    play(new_run(folder, "sft"))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunDirectory:
    """A copy, of which configuration, model and data may be changed."""
    home = tmp_path / "home"
    shutil.copytree(trained, home)
    (run,) = (home / "runs").iterdir()
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(trained), str(home)))
    return RunDirectory(run)


def model_of(run: RunDirectory) -> Path:
    (found,) = run.path.parents[1].glob("tiny-llama*")
    return found


def play_in_rank(place: RankPlace, run: RunDirectory) -> None:
    play(run, place=place)


def _weight(run: RunDirectory) -> None:
    file = model_of(run) / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _tokenizer(run: RunDirectory) -> None:
    file = model_of(run) / "tokenizer.json"
    file.write_text(file.read_text() + "\n")


def _template(run: RunDirectory) -> None:
    file = model_of(run) / "chat_template.jinja"
    file.write_text(file.read_text().replace("assistant", "model"))


def _data(run: RunDirectory) -> None:
    file = run.path.parents[1] / "texts.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-1], lines[-1].replace("say", "tell")]) + "\n")


CHANGES: dict[str, tuple[Callable[[RunDirectory], None], str]] = {
    "base": (_weight, "base model: model.safetensors was"),
    "tokenizer": (_tokenizer, "tokenizer: tokenizer.json was"),
    "template": (_template, "chat template: template default was"),
    "data": (_data, "data: train texts.jsonl was"),
}


def test_every_checkpoint_and_the_run_folder_have_the_identity(run: RunDirectory) -> None:
    identities = [manifest.identity for manifest in CheckpointStore(run).all()]
    (start,) = read_recorded(run).starts
    assert identities == [start.identity] * 3
    assert set(start.identity.base.parts) == {"config.json", "model.safetensors"}
    assert set(start.identity.data.parts) == {"train texts.jsonl"}
    assert not any(start.identity.of(kind).unknown for kind in CHANGES)


def test_the_first_step_does_not_wait_for_the_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before it gets them with the next one."""
    hashed = threading.Event()

    def waiting(*arguments: Any) -> ContentIdentity:
        hashed.wait()
        return content_identity(*arguments)

    monkeypatch.setattr(run_identity, "content_identity", waiting)
    run = new_run(tmp_path, "sft")
    early: list[Manifest] = []

    def at_step_2() -> None:
        early.extend(CheckpointStore(run).all())
        hashed.set()

    play(run, Script(calls={2: at_step_2}))
    (first,) = early
    assert first.identity is None
    found = CheckpointStore(run).all()
    assert [one.step for one in found] == [0, 4, 8]
    assert found[0].identity == found[1].identity == found[2].identity is not None
    assert found[0] == msgspec.structs.replace(first, identity=found[0].identity)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_refused_by_the_command_and_by_the_engine(
    run: RunDirectory, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, text = CHANGES[kind]
    change(run)
    before = run.config.read_text()
    assert fttui(["run", "--headless", "--resume", str(run.path), "--set", "train.lr=0.02"]) == 12
    printed = capsys.readouterr().err
    assert str(run.path.parents[1]) in printed
    assert f"fttui: content changed since checkpoint step-000008: {text}" in printed
    assert f"fttui run --resume {run.path} --accept-changed {kind}" in printed
    assert run.config.read_text() == before
    with pytest.raises(ContentChanged, match=text):
        play(run, resume="step-000004")


def test_an_accepted_change_is_in_the_journal_and_in_the_next_checkpoint(
    run: RunDirectory,
) -> None:
    _data(run)
    played = play(run, resume="step-000004", accept_changed=frozenset({"data"}))
    ((step, note),) = played.at(NoteAdded)
    assert step == 4
    assert note.text.startswith("accepted change: data: train texts.jsonl was")
    assert "data: train" in played.events(RunStarted)[-1].facts["accepted changes"]
    play(run, resume="last")
    (accepted,) = read_recorded(run).accepted
    assert (accepted.kind, accepted.checkpoint) == ("data", "step-000004")


def test_a_live_run_refuses_to_roll_back_to_other_content(run: RunDirectory) -> None:
    """Step 4 was written with the data of before; the change was accepted at step 8 of others."""
    store = CheckpointStore(run)
    file = run.checkpoints / "step-000008" / "MANIFEST.json"
    manifest = json.loads(file.read_text())
    del manifest["identity"]
    file.write_text(json.dumps(manifest | {"incarnation": 99}))
    _data(run)
    config = run.config.read_text()
    run.config.write_text(config.replace("steps: 8", "steps: 12"))
    played = play(run, Script({10: ["rollback 4", "stop no-save"]}), resume="last")
    (failed,) = played.events(CommandFailed)
    assert "content changed since checkpoint step-000004: data: " in failed.reason
    assert "--resume" in failed.reason
    notices = [log.text for log in played.events(LogEmitted) if "earlier version" in log.text]
    assert len(notices) == 1
    assert store.find("4").identity is not None


def test_an_export_onto_a_changed_base_is_refused(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _weight(run)
    _data(run)
    out = tmp_path / "out"
    words = [str(run.path), "last", "--kind", "merged", "--out", str(out)]
    assert export(words) == 12
    printed = capsys.readouterr().err
    assert "content changed since checkpoint step-000008: base model: model.safetensors" in printed
    command = f"fttui export {run.id}@step-000008 --merged --out {out} --accept-changed base"
    assert command in printed
    assert not out.exists()
    assert export([*words, "--accept-changed", "base"]) == 0
    card = (out / "README.md").read_text()
    assert "exported although changed since training: base model: model.safetensors" in card
    assert str(run.path.parents[1]) not in card, "folders are private"
    assert "note: changed since training, but not used by the export: data: " in (
        capsys.readouterr().out
    )


def test_the_same_content_under_another_path_resumes(run: RunDirectory, tmp_path: Path) -> None:
    home, other = run.path.parents[1], tmp_path / "other"
    shutil.copytree(model_of(run), other / "base")
    shutil.copy(home / "texts.jsonl", other / "renamed.jsonl")
    config = run.config.read_text().replace(str(model_of(run)), str(other / "base"))
    config = config.replace(str(home / "texts.jsonl"), str(other / "renamed.jsonl"))
    run.config.write_text(config)
    played = play(run, resume="step-000004")
    assert played.events(RunStarted)[-1].resumed_from == "step-000004"
    assert "accepted changes" not in played.events(RunStarted)[-1].facts


def _resume_refused(place: RankPlace, run: RunDirectory) -> None:
    error = ContentChanged if place.rank == 0 else CheckpointError
    with pytest.raises(error, match="rank 0: content changed since checkpoint step-000004: data"):
        play(run, resume="last", place=place)


@pytest.mark.long
def test_all_ranks_refuse_together(tmp_path: Path) -> None:
    """Only rank 0 hashes; the others must not train on, nor wait for it."""
    run = new_run(tmp_path, "sft", train__steps=4, train__devices=2)
    assert in_ranks(2, play_in_rank, run) == [0, 0]
    _data(run)
    assert in_ranks(2, _resume_refused, run) == [0, 0]


def test_only_kinds_of_content_can_be_accepted(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--headless", "--resume", str(run.path), "--accept-changed", "weights"]
    assert fttui(words) == 2
    assert "got 'weights', expected base, tokenizer, template, data, adapter or all" in (
        capsys.readouterr().err
    )
    config = run.path.parents[1] / "tiny.yaml"
    assert fttui(["run", "--headless", str(config), "--accept-changed", "all"]) == 2
    assert "--accept-changed needs --resume" in capsys.readouterr().err
