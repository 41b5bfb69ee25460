"""Weights of several sources that change: equal weights at equal places give equal runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import CommandApplied, CommandFailed, RunStarted
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records, write_texts

pytestmark = pytest.mark.timeout(300)
TYPED = "mix long=3 short=1"


def new(folder: Path, *, weighted: bool = True, **sets: Any) -> RunDirectory:
    """A run of two sources; with `weighted` False, phases of its own are in `sets`."""
    folder.mkdir(parents=True)
    sources = [write_texts(folder / f"{name}.jsonl", 30, n) for n, name in enumerate(NAMES)]
    weight = ", weight: 1" if weighted else ""
    train = ", ".join(f"{{path: {one}{weight}}}" for one in sources)
    return new_run(folder, "sft", data__train=f"[{train}]", **sets)


NAMES = ("short", "long")


def weights(run: RunDirectory) -> dict[str, str]:
    """Hashes of the weights, the optimizer and the generators of the last checkpoint."""
    files = CheckpointStore(run).all()[-1].files
    aside = ("state.msgpack", "adapter_config.json")
    return {name: file.sha256 for name, file in files.items() if name not in aside}


def losses(run: RunDirectory) -> dict[int, float]:
    """The loss of every step, on the newest timeline that has it."""
    return Played(run, None, read_records(run)).losses()  # type: ignore[arg-type]  # it has ended


PHASES = "[{at: 0, weights: {short: 1, long: 1}}, {at: 0.5, weights: {short: 1, long: 3}}]"


def test_a_command_a_rollback_and_a_resume_train_as_a_schedule(tmp_path: Path) -> None:
    planned = new(tmp_path / "planned", weighted=False, data__mix=PHASES)
    shown = play(planned).events(RunStarted)[-1]
    assert shown.sources == list(NAMES)
    assert shown.facts["mix by phases"] == (
        "steps 1 to 4: short 50%, long 50%; steps 5 to 8: short 25%, long 75%"
    )
    typed = new(tmp_path / "typed")
    play(typed, Script(commands={4: [TYPED], 6: ["rollback 4"], 7: ["stop"]}))
    play(typed, resume="last")
    assert losses(typed) == losses(planned)
    assert weights(typed) == weights(planned)
    resumed = new(tmp_path / "resumed", weighted=False, data__mix=PHASES)
    play(resumed, Script(commands={6: ["stop"]}))
    play(resumed, resume="last")
    assert losses(resumed) == losses(planned)
    plain = play(new(tmp_path / "plain"))
    assert plain.losses()[4] == losses(planned)[4]
    assert plain.losses()[5] != losses(planned)[5]


def test_the_mix_in_force_holds_after_a_rollback_to_before_it(tmp_path: Path) -> None:
    """As with the learning rate: steps that are trained again have the weights in force."""
    at_start: dict[str, Any] = {"checkpoint__at_start": "true"}
    first = new(tmp_path / "first", **at_start)
    play(first, Script(early=[TYPED]))
    later = new(tmp_path / "later", **at_start)
    played = play(later, Script(commands={2: [TYPED], 4: ["rollback 0"]}))
    assert losses(later) == losses(first)
    assert weights(later) == weights(first)
    (applied,) = [one for one in played.events(CommandApplied) if one.command.startswith("mix")]
    assert (applied.old, applied.new) == ("as configured", "long 3, short 1")


def test_a_reset_returns_to_the_schedule_and_unknown_sources_are_refused(tmp_path: Path) -> None:
    planned = new(tmp_path / "planned", weighted=False, data__mix=PHASES)
    script = Script(early=["mix short=0 long=1", "mix reset", "mix code=1", "mix short=1"])
    played = play(planned, script)
    other = play(new(tmp_path / "other", weighted=False, data__mix=PHASES))
    assert played.losses() == other.losses()
    refused = [one.reason for one in played.events(CommandFailed)]
    assert refused == [
        "no source is named 'code'; the sources are short, long",
        "the weight of long is missing; name every source, 0 leaves one out",
    ]


def _both(place: RankPlace, runs: list[RunDirectory]) -> None:
    play(runs[0], Script(commands={4: [TYPED], 6: ["rollback 4"]}), place=place)
    play(runs[1], place=place)


@pytest.mark.long
def test_two_ranks_follow_a_command_as_a_schedule(tmp_path: Path) -> None:
    two: dict[str, Any] = {"train__devices": 2, "train__batch": 2}
    planned = new(tmp_path / "planned", weighted=False, data__mix=PHASES, **two)
    typed = new(tmp_path / "typed", **two)
    assert in_ranks(2, _both, [typed, planned]) == [0, 0]
    assert losses(typed) == losses(planned)
    assert weights(typed) == weights(planned)


@pytest.mark.long
def test_streamed_sources_follow_a_command_as_a_schedule(tmp_path: Path) -> None:
    streamed: dict[str, Any] = {"data__streaming": "true", "data__eval_fraction": 0}
    planned = new(tmp_path / "planned", weighted=False, data__mix=PHASES, **streamed)
    play(planned)
    typed = new(tmp_path / "typed", **streamed)
    play(typed, Script(commands={4: [TYPED], 6: ["rollback 4"], 7: ["stop"]}))
    play(typed, resume="last")
    assert losses(typed) == losses(planned)
    assert weights(typed) == weights(planned)
