"""The handler of benchmarks: asks for tasks and measures them in a process beside the training."""

from __future__ import annotations

from shlex import quote

from fttui.engine.errors import FttuiError
from fttui.engine.run.run_dir import RunDirectory

from ...app_base import AppBase
from ...connection.race.race_process import (
    StartedBench,
    already_measuring,
    bench_command,
    running_bench,
    start_bench,
)
from ...dialogs.bench_prompt import FORMS, bench_arguments, read_bench
from ...dialogs.prompts import ParsedInput
from ..bench_page import BenchPage
from ..modals.prompt import PromptScreen
from .races import chosen_checkpoint

_TITLE = "benchmarks"


def ask_bench(app: AppBase) -> None:
    """Ask for tasks, and measure them on the checkpoint under the cursor, or the last one.

    While a measurement runs that this or another app has started, no other one is started: its
    page is shown with a message.
    """
    if app.run_directory is None:
        command = f"fttui bench {quote(app.state.run_id)} --tasks NAMES"
        app.tell(f"measure on the machine of the run, with: {command}", title=_TITLE)
        return
    if (running := _running(app, app.run_directory)) is not None:
        app.push_screen(BenchPage(running))
        app.tell(already_measuring(running.command), title=_TITLE)
        return
    if not app.state.run.checkpoints:
        app.tell("the run has no checkpoint to measure", title=_TITLE)
        return
    checkpoint = chosen_checkpoint(app)

    def answer(found: ParsedInput | None) -> None:
        if found is not None and found.text is not None:
            _measure(app, checkpoint, bench_arguments(found.text))

    title = f"benchmarks on {checkpoint or 'the last checkpoint'}: tasks and options"
    app.push_screen(PromptScreen(title, FORMS, read_bench), answer)


def _measure(app: AppBase, checkpoint: str | None, arguments: list[str]) -> None:
    run = app.run_directory
    if run is None:
        return
    try:
        process = start_bench(run, checkpoint, arguments)
    except (FttuiError, OSError) as error:
        app.tell(str(error), title=_TITLE)
        return
    command, earlier = bench_command(run, checkpoint, arguments), len(app.state.run.benchmarks)
    app.started_bench = StartedBench(run, command, earlier, process)
    app.push_screen(BenchPage(app.started_bench))


def _running(app: AppBase, run: RunDirectory) -> StartedBench | None:
    """Return the measurement of a run that still runs; None without one."""
    known = app.started_bench
    if known is not None and known.run.path == run.path and known.runs:
        return known
    command = running_bench(run)
    if command is None:
        return None
    return StartedBench(run, command, len(app.state.run.benchmarks))
