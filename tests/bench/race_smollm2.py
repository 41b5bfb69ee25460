"""A race on SmolLM2-135M that looks for a better learning rate than the default, with pictures.

    python -m tests.bench.race_smollm2 --record FOLDER   # trains; minutes to an hour of CPU
    python -m tests.bench.race_smollm2 --run FOLDER/RUN [--out docs/screens]

The first trains the demo shortened, with the default learning rate, up to step 12, where `E` in the
app races three rates; it goes on with the winner to the end. Then it trains the same run without a
race, and tells what each took and reached. The page while the race goes on is drawn into the folder
of the raced run. The second draws the verdict, and the curves with the other variants dimmed, from
that folder. Pictures need `rsvg-convert`; without it they stay SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from fttui.engine.config.schema import TrainConfig
from fttui.engine.protocol.codec import decode_readable
from fttui.engine.protocol.events import EvalFinished, Record, StepFinished
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.connection.factory import open_session
from fttui.tui.connection.offline import OfflineSession
from fttui.tui.connection.race.race_file import read_race
from fttui.tui.connection.race.race_source import LocalRace
from fttui.tui.dialogs.race_text import table_lines, verdict_lines
from fttui.tui.screens.race_page import RacePage
from tests.bench.screens import SIZES, _picture, _save, _svg

STEPS, BEGIN, TRIED = 160, 12, 40
"""Steps of a whole run, step at which the race begins, and steps of a variant that stays."""
WORDS = f"lr=now,x5,x20 --steps {TRIED}"
SHORTENED = (f"train.lr={TrainConfig().lr:g}", f"train.steps={STEPS}", "train.warmup=5",
             "eval.every=40", "data.eval_limit=16", "data.max_length=12", "model.quantize=none",
             "train.batch=2", "checkpoint.every=40")  # fmt: skip
UNDER_WAY = "race.svg"
"""File in the folder of the run with the page while the race goes on."""


async def _until(pilot: Pilot[int], condition: Callable[[], bool]) -> None:
    while not condition():
        await pilot.pause(0.5)


async def _race(run: RunDirectory) -> float:
    """Race in the app, and return the seconds that the race took."""
    app = FttuiApp(open_session(run), run=run)
    async with app.run_test(size=SIZES["120x40"]) as pilot:
        await _until(pilot, lambda: app.state.run.step >= BEGIN)
        started = time.monotonic()
        await pilot.press("E")
        await pilot.pause(2.0)
        await pilot.press(*WORDS.split(" ")[0])
        for word in WORDS.split(" ")[1:]:
            await pilot.press("space", *word)
        await pilot.press("enter")
        await pilot.pause(3.0)
        await pilot.press("y")

        def raced(rounds: int) -> bool:
            state = read_race(run)
            return (
                state is not None
                and bool(state.variants)
                and (state.ended or sum(one.rounds for one in state.variants) >= rounds)
            )

        await _until(pilot, lambda: raced(3))
        await pilot.pause(15.0)
        (run.path / UNDER_WAY).write_text(_svg(app))
        await _until(pilot, lambda: bool((state := read_race(run)) and state.ended))
        return time.monotonic() - started


def _train(folder: Path, name: str) -> tuple[subprocess.Popen[bytes], RunDirectory]:
    command = [sys.executable, "-m", "fttui.tui", "run", "configs/demo.yaml", "--headless"]
    options = [word for setting in (*SHORTENED, f"name={name}") for word in ("--set", setting)]
    training = subprocess.Popen([*command, *options], env={**os.environ, "FTTUI_RUNS": str(folder)})
    while not (found := list(folder.glob(f"{name}-*/journal.log"))) and training.poll() is None:
        time.sleep(1)
    return training, RunDirectory(found[0].parent)


def record(folder: Path) -> None:
    """Train with the default, then race and train with the winner; tell what was found."""
    training, raced = _train(folder, "raced")
    seconds = asyncio.run(_race(raced))
    print(f"the race took {seconds:,.0f} s", flush=True)
    training.wait()
    training, whole = _train(folder, "default")
    training.wait()
    print(f"a whole run took {_trained_s(whole):,.0f} s")
    tell(raced, whole)


def _trained_s(run: RunDirectory) -> float:
    times = [r.time for r in _records(run) if isinstance(r.event, StepFinished | EvalFinished)]
    return times[-1] - times[0]


def tell(raced: RunDirectory, whole: RunDirectory | None) -> None:
    """Print table and verdict of the race, and the last evaluations of both runs."""
    state = read_race(raced)
    assert state is not None, "the run has a race"
    for line in (*table_lines(state), *verdict_lines(state)):
        print(line)
    for run in (raced, *([whole] if whole else [])):
        found = [
            f"step {one.step}: {one.event.metrics['loss']:.4f}"
            for one in _records(run)
            if isinstance(one.event, EvalFinished)
        ]
        print(run.id, *found[-1:])


def _records(run: RunDirectory) -> list[Record]:
    reader, found = FrameReader(run.journal), []
    while frames := reader.read(1 << 20):
        found += [decode_readable(payload) for _, payload in frames]
    return [entry for entry in found if entry is not None]


def draw(run: RunDirectory, out: Path) -> None:
    """Draw the page under way, the verdict, and the losses with the other variants dimmed."""
    _save((run.path / UNDER_WAY).read_text(), out / "race-page.png")
    _save(asyncio.run(_verdict(run)), out / "race-verdict.png")
    size = SIZES["120x40"]
    svg = asyncio.run(_picture(OfflineSession(run), ("enter",), size, run))
    _save(svg, out / "race-loss.png")


async def _verdict(run: RunDirectory) -> str:
    """The page of a race that has ended, as SVG."""
    app = FttuiApp(OfflineSession(run), run=run)
    async with app.run_test(size=(120, 20)) as pilot:
        await app.push_screen(RacePage(LocalRace(run)))
        await pilot.pause(3.0)
        return _svg(app)


def main() -> None:
    """Record the runs, or draw the raced one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/screens"))
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, help="folder of runs to train in")
    what.add_argument("--run", type=Path, help="folder of the raced run")
    arguments = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    if arguments.record:
        arguments.record.mkdir(parents=True, exist_ok=True)
        record(arguments.record)
    else:
        draw(RunDirectory(arguments.run), arguments.out)
        tell(RunDirectory(arguments.run), None)


if __name__ == "__main__":
    main()
