"""Samples in quarantine: equal sets give equal runs, however the sets came into force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.errors import DataError
from fttui.engine.protocol.events import CommandApplied, CommandFailed
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records

pytestmark = pytest.mark.timeout(300)
PACKED = {"data__packing": "true", "data__max_length": 96, "train__batch": 2}
IDS = [f"texts:{number}" for number in (1, 5, 8, 13, 20, 34, 40)]
TYPED = "quarantine " + " ".join(IDS)


def new(folder: Path, **sets: Any) -> RunDirectory:
    folder.mkdir(parents=True)
    return new_run(folder, "sft", **sets)


def weights(run: RunDirectory) -> dict[str, str]:
    """Hashes of the weights, the optimizer and the generators of the last checkpoint."""
    files = CheckpointStore(run).all()[-1].files
    aside = ("state.msgpack", "adapter_config.json")
    return {name: file.sha256 for name, file in files.items() if name not in aside}


def losses(run: RunDirectory) -> dict[int, float]:
    """The loss of every step, on the newest timeline that has it."""
    return Played(run, None, read_records(run)).losses()  # type: ignore[arg-type]  # it has ended


@pytest.mark.parametrize(
    "sets",
    [pytest.param({}, id="sft"), pytest.param(PACKED, id="packed", marks=pytest.mark.long)],
)
def test_a_command_a_rollback_and_a_resume_train_as_a_configured_quarantine(
    tmp_path: Path, sets: dict[str, Any]
) -> None:
    plain = play(new(tmp_path / "plain", **sets))
    ids = "[" + ", ".join(f"'{one}'" for one in IDS) + "]"
    configured = new(tmp_path / "configured", **sets, data__quarantine=ids)
    play(configured)
    typed = new(tmp_path / "typed", **sets)
    play(typed, Script(early=[TYPED], commands={6: ["rollback 4"], 7: ["stop"]}))
    play(typed, resume="last")
    assert losses(typed) == losses(configured)
    assert weights(typed) == weights(configured)
    assert losses(plain.run) != losses(configured)
    assert CheckpointStore(typed).all()[-1].kept_out == IDS


def test_the_set_in_force_holds_after_a_rollback_to_before_it(tmp_path: Path) -> None:
    """Steps trained before the command are trained again without the samples."""
    at_start = {"checkpoint__at_start": "true"}
    first = new(tmp_path / "first", **at_start)
    play(first, Script(commands={3: ["rollback 0"]}, early=[TYPED]))
    later = new(tmp_path / "later", **at_start)
    played = play(later, Script(commands={2: [TYPED], 4: ["rollback 0"]}))
    assert losses(later) == losses(first)
    assert weights(later) == weights(first)
    (applied,) = [(n, e) for n, e in played.at(CommandApplied) if e.command.startswith("quar")]
    assert applied[0] == 2
    assert applied[1].settings is not None
    assert list(applied[1].settings.quarantine) == IDS
    assert (applied[1].old, applied[1].new) == ("0 in quarantine", "7 in quarantine")


def test_lifting_it_ends_it_and_an_unknown_sample_is_refused(tmp_path: Path) -> None:
    plain = play(new(tmp_path / "plain"))
    script = Script(early=[f"quarantine {IDS[0]}", "quarantine lift", "quarantine nobody:1"])
    played = play(new(tmp_path / "lifted"), script)
    assert losses(played.run) == losses(plain.run)
    (refused,) = played.events(CommandFailed)
    assert "no training sample has the id 'nobody:1'" in refused.reason


def test_an_unknown_sample_in_the_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.quarantine: no training sample has the id 'x:1'"):
        play(new(tmp_path / "run", data__quarantine="['x:1']"))


def _both(place: RankPlace, runs: list[RunDirectory]) -> None:
    play(runs[0], Script(commands={2: [TYPED], 6: ["rollback 4"]}), place=place)
    play(runs[1], Script(commands={2: [TYPED]}), place=place)


@pytest.mark.long
def test_two_ranks_keep_the_same_samples_out(tmp_path: Path) -> None:
    two = {"train__devices": 2, "train__batch": 2}
    runs = [new(tmp_path / name, **two) for name in ("rolled back", "straight")]
    assert in_ranks(2, _both, runs) == [0, 0]
    back, straight = runs
    assert losses(back) == losses(straight)
    assert weights(back) == weights(straight)
    assert CheckpointStore(back).all()[-1].kept_out == IDS
