"""`fttui.show` in a real kernel: an ended run, a live one, and one that ends meanwhile."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import EngineDouble, make_run

from .conftest import StartRun

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")


async def cells(*sources: str) -> list[list[Any]]:
    """Execute cells in a kernel of this environment; return the outputs of each."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    client = nbclient.NotebookClient(book, timeout=110, kernel_name="python3", allow_errors=True)
    await client.async_execute(env=dict(os.environ))
    return [cell.outputs for cell in book.cells]


def step_of(output: Any) -> int:
    """The step in the picture of an output."""
    (step,) = re.findall(r"step ([\d,]+)", output.data["text/plain"])
    assert "<polyline" in output.data["image/svg+xml"]
    return int(step.replace(",", ""))


@pytest.mark.slow
async def test_a_notebook_shows_ended_and_live_runs(start_run: StartRun, runs: Path) -> None:
    ended = EngineDouble(make_run(runs, name="ended"))
    ended.start()
    ended.train(5)
    ended.end()
    run, engine = start_run("--step-s", "0.05", "--steps", "5000", "--no-hub")
    sockets = Path(os.environ["XDG_RUNTIME_DIR"])
    shown = await cells(
        "import fttui",
        f"fttui.show('{ended.run.id}')",
        f"fttui.show('{run.id}', seconds=0)",
        f"fttui.show('{run.id}', seconds=2, every_s=0.5, theme='dark', metrics=['lr'])",
        "fttui.show('no such run')",
    )
    assert [len(outputs) for outputs in shown] == [0, 1, 1, 1, 1]
    assert "finished" in shown[1][0].data["text/plain"]
    once, followed = step_of(shown[2][0]), step_of(shown[3][0])
    assert followed > once + 10, "the same output is drawn again while the run goes on"
    assert shown[4][0].ename == "NoSuchRun"
    assert engine.poll() is None
    assert list(sockets.iterdir()) == [], "no hub was started"
    assert list(FrameReader(RunDirectory(run.path).control)) == []
