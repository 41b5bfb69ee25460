"""The first picture of the README: a real run diverges, one key, calm.

    python -m tests.bench.one_key --record FOLDER      # trains, diverges, presses R; an hour of CPU
    python -m tests.bench.one_key --run FOLDER/RUN [--out docs/screens]

The first trains the demo shortened into a folder of runs, raises the learning rate to 50 times at
step 57, and presses `R` and `y` in the app 16 steps after the first alarm. The second plays the
journal of that run in the app: an animated SVG of it, and pictures of its end in three sizes, dark
and light. Pictures need `rsvg-convert`; without it they stay SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.pilot import Pilot

from fttui.engine.protocol.codec import decode_readable
from fttui.engine.protocol.commands import ScaleLr
from fttui.engine.protocol.events import CommandApplied, Record, RolledBack, StepFinished
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.connection.factory import open_session
from fttui.tui.preferences import Preferences
from fttui.tui.view_model.connection_port import Link
from tests.bench.animated_svg import Frame, animated, frame_of
from tests.bench.screens import SIZES, _save, _settled, _svg
from tests.support.session_double import FakeSession, Script

RAISED_AT, FACTOR, WAITED = 57, 50.0, 16
"""Step at which the learning rate is raised, by which factor, and steps until the key."""
SHORTENED = ("train.steps=130", "eval.every=15", "data.eval_limit=8", "data.max_length=20",
             "model.quantize=none", "checkpoint.every=15")  # fmt: skip
FIRST, LAST = 36, 115
"""Steps of the first and of the last frame."""
SIZE = SIZES["120x40"]


# the run


async def _diverge(run: RunDirectory) -> None:
    app = FttuiApp(open_session(run), run=run)
    async with app.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: app.state.run.step >= RAISED_AT)
        app.send(ScaleLr(factor=FACTOR))
        await _until(pilot, lambda: app.state.run.current_incident is not None)
        last = app.state.run.step + WAITED
        await _until(pilot, lambda: app.state.run.step >= last)
        for key in ("R", "y"):
            await pilot.press(key)
            await pilot.pause(1.0)
        await _until(pilot, lambda: app.state.state.ended)


async def _until(pilot: Pilot[int], condition: Callable[[], bool]) -> None:
    while not condition():
        await pilot.pause(0.5)


def record(folder: Path) -> None:
    """Train a run that diverges and is recovered with one key."""
    os.environ["FTTUI_RUNS"] = str(folder)
    options = [word for setting in SHORTENED for word in ("--set", setting)]
    command = [sys.executable, "-m", "fttui.tui", "run", "configs/demo.yaml", "--headless"]
    with subprocess.Popen([*command, *options]) as training:
        while not (found := list(folder.glob("*/journal.log"))) and training.poll() is None:
            time.sleep(1)
        asyncio.run(_diverge(RunDirectory(found[0].parent)))


# the pictures


@dataclass(frozen=True)
class Scene:
    """A picture of the animation: the records it has read, the keys pressed, and how long it is."""

    records: int
    seconds: float
    keys: tuple[str, ...] = ()


def scenes(records: Sequence[Record]) -> Iterator[Scene]:
    """Yield the scenes of a run: calm, divergence, the key, calm."""
    back = next(n for n, r in enumerate(records) if isinstance(r.event, RolledBack))
    asked = next(
        n for n, r in enumerate(records)
        if isinstance(r.event, CommandApplied) and r.event.command.startswith("lr scale")
    )  # fmt: skip
    newest = {}
    for number, entry in enumerate(records):
        newest[number > back, entry.step] = number + 1
    before = [step for after, step in newest if not after and step >= FIRST]
    for step in before:
        wild = newest[False, step] > asked
        if step % (2 if wild else 5) == 0:
            yield Scene(newest[False, step], 0.4 if wild else 0.25)
    yield Scene(back - 1, 2.2, ("R",))
    yield Scene(back + 1, 1.2, ("escape",))
    after = [step for late, step in newest if late]
    for step in after[3::4]:
        yield Scene(newest[True, step], 0.3)
    yield Scene(len(records), 4.0)


def read(run: RunDirectory) -> list[Record]:
    """The records of a run up to the last step that is drawn."""
    reader, found = FrameReader(run.journal), []
    while frames := reader.read(1 << 20):
        found += [decode_readable(payload) for _, payload in frames]
    known = [entry for entry in found if entry is not None]
    steps = (n for n, e in enumerate(known) if isinstance(e.event, StepFinished) and e.step <= LAST)
    last = max(steps)
    return known[: last + 1]


class Player:
    """Plays the records of a run in the app."""

    def __init__(self, records: Sequence[Record], theme: str) -> None:
        self._records = records
        self._session = FakeSession(Script())
        self.app = FttuiApp(
            self._session,
            preferences=Preferences(theme=theme),
            clock=lambda: self._session.script.now + 0.2,
        )

    async def show(self, pilot: Pilot[int], scene: Scene) -> None:
        """Read up to a scene, then press its keys."""
        script = self._session.script
        script.records = list(self._records[: scene.records])
        script.now = script.records[-1].time
        self._session.push()
        self._session.beat()
        seq = script.records[-1].seq
        ready = lambda: self.app.state.run.seq >= seq and self.app.state.link.link is Link.LIVE  # noqa: E731
        await _settled(pilot, self.app, ready)
        for key in scene.keys:
            await pilot.press(key)
            await _settled(pilot, self.app, lambda: True)


async def animate(records: Sequence[Record], theme: str) -> str:
    """The animated SVG of a run."""
    player = Player(records, theme)
    frames: list[Frame] = []
    async with player.app.run_test(size=SIZE) as pilot:
        for scene in scenes(records):
            await player.show(pilot, scene)
            ground = player.app.theme_variables["background"]
            strips = player.app.screen._compositor.render_strips()
            frames.append(frame_of(strips, ground, scene.seconds))
    return animated(frames, SIZE, ground)


async def _still(records: Sequence[Record], theme: str, size: tuple[int, int]) -> str:
    player = Player(records, theme)
    async with player.app.run_test(size=size) as pilot:
        await player.show(pilot, Scene(len(records), 0.0))
        return _svg(player.app)


def draw(run: RunDirectory, out: Path) -> None:
    """Draw the animation and the pictures of a recorded run."""
    records = read(run)
    file = out / "one-key.svg"
    file.write_text(asyncio.run(animate(records, "fttui-dark")))
    print(f"{file}  {file.stat().st_size / 1000:.0f} kB", flush=True)
    for theme in ("dark", "light"):
        for name, size in SIZES.items():
            svg = asyncio.run(_still(records, f"fttui-{theme}", size))
            _save(svg, out / f"one-key-{name}-{theme}.png")


def main() -> None:
    """Record the run, or draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/screens"))
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, help="folder of runs to train one in")
    what.add_argument("--run", type=Path, help="folder of the recorded run")
    arguments = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    if arguments.record:
        record(arguments.record)
    else:
        arguments.out.mkdir(parents=True, exist_ok=True)
        draw(RunDirectory(arguments.run), arguments.out)


if __name__ == "__main__":
    main()
