"""The app on a long run and over a long day.

`python -m tests.bench.app [--steps 1000000] [--long]` writes a journal of that many steps with 20
metrics and more, opens it, then feeds a live run. `--steps 10000000` needs 7 GB of disk; `--only
open` leaves out the rest. The baseline of the same run is the
straightforward path: every record decoded to an object and folded one batch after the other, and,
where plotext is installed, the same curve drawn by it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from fttui.engine.protocol.codec import decode_record, encode
from fttui.engine.protocol.events import (
    AnyEvent,
    Record,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import MAGIC, FrameReader, frame
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import SETTLED_S, FttuiApp
from fttui.tui.connection.offline import OfflineSession
from fttui.tui.plot import raster
from fttui.tui.plot.layers import Curve, picture
from fttui.tui.view_model.branches import Branch
from fttui.tui.view_model.connection_port import Link
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from fttui.tui.view_model.series import Series
from fttui.tui.widgets.plot import Plot
from tests.support.session_double import FakeSession, eventful

HOUR = 360_000
"""Steps of an hour with 100 a second."""
_SAMPLE = 50_000
"""Steps that the baseline is measured on."""


def _event(number: int, steps: int) -> StepFinished:
    wave = math.sin(number * 12.9898) * 43758.5453 % 1
    loss = 1.2 + 2.5 * math.exp(-8 * number / steps) + 0.1 * wave + (number % 97_003 == 0) * 6
    return StepFinished(
        loss=math.nan if number == steps // 3 else loss,
        parts={"ce": loss * 0.8, "contrastive": loss * 0.4},
        grad_norm=0.5 + 0.1 * wave, clip=1.0, lr=1e-4, lr_schedule=1e-4, epoch=number / 9000,
        tokens=9000 + int(100 * wave), samples=16, step_s=0.5, data_s=0.01 * wave,
        compute_s=0.4, optimizer_s=0.05, tokens_per_s=18_000 + 100 * wave, samples_per_s=32.0,
        mem_allocated_bytes=4 << 30, mem_reserved_bytes=5 << 30, mem_total_bytes=6 << 30,
        rss_bytes=2 << 30, gpu_util=97.0, gpu_temp_c=68.0, gpu_power_w=90 + wave,
        extra={"pos_cos": 0.7 + 0.01 * wave, "neg_cos": 0.1, "top1": 0.6},
    )  # fmt: skip


def write_run(folder: Path, steps: int) -> RunDirectory:
    """A finished run of that many steps."""
    started = time.time() - steps * 0.5
    opening: list[AnyEvent] = [
        RunStarted(
            name="long", incarnation=1, pid=1, host="h", world_size=1, task="contrastive",
            model="m", total_steps=steps, micro_batch_size=1, accumulation=1,
        ),
        StateChanged(state=RunState.RUNNING),
    ]  # fmt: skip
    run = RunDirectory(folder)
    with open(run.journal, "wb") as file:
        file.write(MAGIC)
        for seq in range(1, steps + 4):
            step = max(0, seq - 2)
            event = opening[seq - 1] if seq <= 2 else _event(step, steps)
            if seq == steps + 3:
                event, step = RunEnded(state=RunState.FINISHED, exit_code=0), steps
            record = Record(seq=seq, time=started + step / 2, step=step, timeline=1, event=event)
            file.write(frame(encode(record)))
    return run


def _commands() -> None:
    """What every command costs before it does anything, and what the app adds."""
    for what, words in (
        ("fttui --help", ["-m", "fttui.tui", "--help"]),
        ("loading the app", ["-c", "import gc; gc.disable(); import fttui.tui.app"]),
    ):
        spans = []
        for _ in range(5):
            before = os.times()
            subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
            after = os.times()
            spent = after.children_user - before.children_user
            spans.append(spent + after.children_system - before.children_system)
        _tell(
            f"{what}, processor time, least of 5", f"{min(spans):.2f} s", "≤ 0.3 s" * ("--" in what)
        )


async def _until(condition: Callable[[], bool]) -> float:
    start = time.perf_counter()
    while not condition():
        await asyncio.sleep(0.002)
    return time.perf_counter() - start


async def _open(run: RunDirectory) -> None:
    gc.disable()  # as the command does
    start, cpu = time.perf_counter(), time.process_time()
    app = FttuiApp(OfflineSession(run), run=run)
    async with app.run_test(size=(120, 40)):
        await _until(lambda: any(not plot.picture.empty for plot in app.screen.query(Plot)))
        first = time.perf_counter() - start
        _tell("first picture, from the start of the app", f"{first:.2f} s", "≤ 0.5 s")
        _tell("  of it processor time", f"{time.process_time() - cpu:.2f} s")
        others, used, look_at = 0.0, os.times(), 0.0
        while app.state.link.link is not Link.ENDED:
            await asyncio.sleep(0.02)
            if time.perf_counter() >= look_at:  # to look costs milliseconds
                look_at = time.perf_counter() + 1.0
                others = max(others, _others_bytes())
        _tell("complete", f"{time.perf_counter() - start:.2f} s", "≤ 10 s")
        _tell("  of it processor time of the app", f"{time.process_time() - cpu:.2f} s")
        children = os.times().children_user - used.children_user
        children += os.times().children_system - used.children_system
        _tell("  processor time of what reads for it", f"{children:.2f} s")
        steps = app.state.run.steps_seen
        _tell("steps seen", f"{steps:,}")
        _tell("resident", f"{psutil.Process().memory_info().rss / 1e6:.0f} MB", "≤ 300 MB")
        _tell("  and while it reads, its readers", f"{others / 1e6:.0f} MB")


def _others_bytes() -> float:
    """Return the resident memory of the processes that this one has started."""
    total = 0.0
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            total += child.memory_info().rss
    return total


def _baseline(run: RunDirectory, steps: int) -> None:
    """The straightforward path over a sample, scaled to the whole."""
    start, view, done = time.perf_counter(), RunView(), 0
    reader = FrameReader(run.journal)
    while done < min(steps, _SAMPLE):
        records = [decode_record(payload) for _, payload in reader.read(1 << 20)]
        view = apply_many(view, [record for record in records if record is not None])
        done += len(records)
    whole = (time.perf_counter() - start) * steps / done
    _tell("straightforward path, complete (scaled)", f"{whole:.1f} s")


async def _live(rate: float, seconds: float) -> None:
    """What one update costs the UI thread while records keep coming.

    On a busy machine a turn also waits for the processor: its own time is told beside it.
    """
    gc.disable()  # as the command does; the app begins to collect when it has settled
    session = FakeSession(eventful())
    app = FttuiApp(session, clock=lambda: session.script.now)
    spent: list[tuple[float, float]] = []
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        start, own = time.perf_counter(), time.thread_time()
        run(handle)
        spent.append((1000 * (time.perf_counter() - start), 1000 * (time.thread_time() - own)))

    sent = 0
    async with app.run_test(size=(120, 40)):
        await asyncio.sleep(SETTLED_S + 0.5)
        asyncio.events.Handle._run = timed  # type: ignore[method-assign,assignment]  # to time all
        begun, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() < begun + seconds:
            session.script.train(1)
            session.push()
            sent += 1
            await asyncio.sleep(max(0.0, sent / rate - (time.perf_counter() - begun)))
        used = (time.process_time() - cpu) / seconds
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
    for what, column in (("turns of the UI thread", 0), ("  their processor time", 1)):
        busy = sorted(turn[column] for turn in spent if turn[1] > 0.2)
        figure = f"p95 {busy[int(0.95 * len(busy))]:.1f} ms, max {busy[-1]:.0f}"
        _tell(f"at {rate:g} records/s: {what}", figure, "≤ 16 ms")
    share, target = (
        f"{100 * used:.1f} %, {sent / seconds:.0f} came",
        "≤ 3 %" if rate <= 1 else "≤ 10 %",
    )
    _tell(f"at {rate:g} records/s: share of a core", share, target)


def _drawing() -> None:
    """One curve of noise at 110 × 30 cells."""
    noise = Series().extend(range(2000), [math.sin(i * 12.9898) * 43758.5 % 1 for i in range(2000)])
    drawn = picture([Branch(curves={"loss": noise})], [Curve("loss", "raw")], (0, 2000), 110)
    ours = _best(lambda: raster.draw(drawn, 110, 30))
    _tell("a plot of noise, 110 × 30", f"{ours:.2f} ms")
    if importlib.util.find_spec("plotext"):
        theirs = _best(lambda: _plotext(drawn.layers[0].runs[0], 110, 30))
        _tell("the same with plotext", f"{theirs:.2f} ms, ×{theirs / ours:.1f}")


def _plotext(points: tuple[tuple[float, float], ...], width: int, height: int) -> str:
    import plotext

    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear.data()
    figure.plot_size(width, height)
    figure.axes(False)
    marker = plotext.marker("braille", plotext.pixel(foreground=1))
    signal = figure.signal([x for x, _ in points], [y for _, y in points], marker=marker)
    signal.lines(True)
    figure.draw(signal)
    return str(figure.build().string())


def _best(work: Callable[[], object]) -> float:
    work()
    spans = []
    for _ in range(9):
        start = time.perf_counter()
        work()
        spans.append(1000 * (time.perf_counter() - start))
    return statistics.median(spans)


async def _long() -> None:
    """A live run of 360,000 steps, an hour at 100 a second, as fast as it goes: does it grow?"""
    session = FakeSession(eventful())
    app = FttuiApp(session, clock=lambda: session.script.now)
    sizes = {}
    async with app.run_test(size=(120, 40)) as pilot:
        for fed in range(500, HOUR + 1, 500):
            session.script.train(500)
            session.push()
            session.script.records[:-1] = [None] * (len(session.script.records) - 1)  # type: ignore[list-item]  # the double must not grow
            await pilot.pause(0.01)
            gc.collect()
            sizes[fed] = psutil.Process().memory_info().rss / 1e6
    steps = (HOUR // 12, HOUR // 4, HOUR)
    told = ", ".join(f"{sizes[at]:.0f} MB" for at in steps)
    _tell(f"resident after {', '.join(f'{at:,}' for at in steps)} steps", told, "≤ 250 MB")
    _tell(
        "growth after the first twelfth",
        f"{100 * (sizes[HOUR] / sizes[HOUR // 12] - 1):.0f} %",
        "≤ 10 %",
    )


def _tell(what: str, figure: str, target: str = "") -> None:
    print(f"{what:<48} {figure:<26} {target}".rstrip(), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--long", action="store_true", help="also feed 360,000 steps")
    parser.add_argument("--only", choices=["open", "live", "long"], help="measure only this")
    options = parser.parse_args()
    print(
        f"{options.steps:,} steps, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
    )
    if options.only in ("live", "long"):
        asyncio.run(_long() if options.only == "long" else _live(100.0, 12.0))
        return
    _commands()
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), options.steps)
        asyncio.run(_open(run))
        if options.only:
            return
        _baseline(run, options.steps)
    _drawing()
    for rate in (1.0, 100.0):
        asyncio.run(_live(rate, 12.0))
    if options.long:
        asyncio.run(_long())


if __name__ == "__main__":
    main()
