"""Handlers of actions that take something out of the app: to the clipboard, or into a picture."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from shlex import quote

from textual.widgets import DataTable

from fttui.engine.protocol.command_args import mix_words
from fttui.engine.protocol.commands import (
    AddNote,
    GenerateSample,
    Quarantine,
    SaveCheckpoint,
    SetMix,
    recorded_command,
    spec_of,
)

from ...app_base import AppBase
from ...text import format as fmt
from ..incident_page import IncidentPage
from ..tables.table_screen import TableScreen
from ..text_page import TextPage
from .view_handlers import Handler

CONVERTERS = (
    ("rsvg-convert", ("-o", "{png}", "{svg}")),
    ("inkscape", ("--export-filename={png}", "{svg}")),
)
"""Programs that turn an SVG into a PNG, with their arguments; the library cairosvg comes first."""
_CONVERTED_IN_S = 60


def shared_text(app: AppBase) -> tuple[str, str]:
    """Return the content of the screen in view as plain text, and its name.

    That is the text of a page such as a report, the row under the cursor of a table, else the state
    of the run in one line.
    """
    screen = app.screen
    if isinstance(screen, IncidentPage):
        return screen.text_to_copy(), "report"
    if isinstance(screen, TextPage | IncidentPage):
        return screen.text_to_copy(), "page"
    if isinstance(screen, TableScreen) and (row := screen.row_text()):
        return row, "row"
    run = app.state.run
    parts = [f"{app.state.name} {app.state.state.value}, step {run.step:,}"]
    parts += [f"of {run.total_steps:,}"] if run.total_steps else []
    if run.last is not None:
        parts += [f"loss {fmt.number(run.last.loss)}", f"lr {fmt.learning_rate(run.last.lr)}"]
    return ", ".join(parts).replace(", of", " of"), "state of the run"


def last_command(app: AppBase) -> str | None:
    """Return the newest command of the run as a command line; None if there is none."""
    items = app.state.run.interventions.items
    if not items:
        return None
    host = getattr(app.session, "host", "")
    run = f"{host}:{app.state.run_id}" if host else app.state.run_id
    return " ".join(["fttui", "ctl", quote(run), *words_of(items[-1].text)])


def words_of(text: str) -> list[str]:
    """Return a command as it is recorded in words that a shell reads as the same command.

    Notes, prompts and ids are recorded as they are, and may hold anything.
    """
    command = recorded_command(text)
    verb = spec_of(command).verb if command is not None else text.partition(" ")[0]
    rest = text[len(verb) :].strip()
    match command:
        case AddNote() | GenerateSample() | SaveCheckpoint(pin=False):
            words = [rest] if rest else []
        case SaveCheckpoint(note=note):
            words = ["pin", *([note] if note else [])]
        case Quarantine(ids=ids, lift=lift):
            words = [*(["lift"] if lift else ["--"]), *ids]
        case SetMix(weights=weights):
            words = mix_words(weights)
        case _:
            words = rest.split()
    return [*verb.split(), *map(quote, words)]


def _copy(app: AppBase) -> None:
    text, what = shared_text(app)
    _to_clipboard(app, text, what)


def _copy_command(app: AppBase) -> None:
    text = last_command(app)
    if text is None:
        app.tell("no command has been sent to this run")
    else:
        _to_clipboard(app, text, text)


def _to_clipboard(app: AppBase, text: str, what: str) -> None:
    """Copy by OSC 52, which works over ssh; some terminals must be configured to allow it."""
    app.copy_to_clipboard(text)
    app.tell(f"copied: {what}, {fmt.plural(len(text), 'character')}", "information")


def _screenshot(app: AppBase) -> None:
    """Save the screen in the current folder; conversion to PNG runs beside the app."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(app.clock()))
    svg = Path.cwd() / f"fttui-{Path(app.state.run_id or 'app').name}-{stamp}.svg"
    try:
        svg.write_text(app.export_screenshot(), encoding="utf-8")
    except OSError as error:
        app.tell(f"{svg} cannot be written: {error.strerror}", title="screenshot")
        return

    def convert() -> None:
        told = with_png(svg)
        app.call_from_thread(app.tell, told, "information", title="screenshot")

    app.run_worker(convert, thread=True, group="screenshot")


def with_png(svg: Path) -> str:
    """Convert an SVG to a PNG beside it; return what was saved, and what is missing."""
    png = svg.with_suffix(".png")
    missing = "for a PNG as well, install cairosvg (pip install cairosvg) or rsvg-convert"
    try:
        made = _converted(svg, png)
    except Exception as error:  # noqa: BLE001 -- whatever a converter raises, the SVG is saved
        made, missing = False, f"no PNG: {error}"
    return f"saved {svg}" + (f" and {png.name}" if made else f"; {missing}")


def _converted(svg: Path, png: Path) -> bool:
    """Write the PNG with the first converter that is installed; return whether there is one.

    Errors of the converter pass through.
    """
    try:
        import cairosvg  # type: ignore[import-not-found,import-untyped,unused-ignore]  # optional
    except ImportError:
        pass
    else:
        cairosvg.svg2png(url=str(svg), write_to=str(png))
        return True
    for program, arguments in CONVERTERS:
        if path := shutil.which(program):
            words = [argument.format(svg=svg, png=png) for argument in arguments]
            subprocess.run([path, *words], check=True, capture_output=True, timeout=_CONVERTED_IN_S)
            return True
    return False


def _open_row(app: AppBase) -> None:
    """Open the row under the cursor of a table, as enter does."""
    if isinstance(app.screen, TableScreen):
        app.screen.query_one(DataTable).action_select_cursor()


SHARING_HANDLERS: dict[str, Handler] = {
    "app.copy": _copy,
    "app.copy-command": _copy_command,
    "app.screenshot": _screenshot,
    "list.open": _open_row,
}
