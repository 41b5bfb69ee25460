from __future__ import annotations

import socket
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.followers import prometheus
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.races.variant_step import VariantStep
from fttui.tui.cli.main import main
from tests.support.journaled import new_run, records, write_journal

pytest.importorskip("prometheus_client")


def scraped(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def test_each_scrape_has_the_newest_figures(tmp_path: Path) -> None:
    run, every = new_run(tmp_path), records()
    port = prometheus.start_server(run, 0)
    named = f'{{run="{run.id}"}}'
    write_journal(run, every[:4])
    assert scraped(port)[f"fttui_step{named}"] == 3
    write_journal(run, every[4:])
    figures = scraped(port)
    assert figures[f"fttui_step{named}"] == 8
    assert figures[f"fttui_timeline{named}"] == 2
    assert figures[f"fttui_loss{named}"] == 1 / 8
    assert figures[f"fttui_eval_loss{named}"] == 0.5
    assert figures[f"fttui_alarms_total{named}"] == 1
    assert figures[f"fttui_rollbacks_total{named}"] == 1
    assert figures[f"fttui_last_step_timestamp_seconds{named}"] == every[-2].time
    states = {name: value for name, value in figures.items() if name.startswith("fttui_state")}
    assert [name for name, value in states.items() if value] == [
        f'fttui_state{{run="{run.id}",state="finished"}}'
    ]


def test_a_variant_that_trained_beside_the_run_does_not_change_its_figures(tmp_path: Path) -> None:
    run, every = new_run(tmp_path), records()
    step = VariantStep(variant="lr 2e-4", at=9, loss=77.0)
    newest = every[-1].seq + 1
    write_journal(run, [*every, Record(seq=newest, time=0.0, step=8, timeline=2, event=step)])
    port = prometheus.start_server(run, 0)
    assert scraped(port)[f'fttui_loss{{run="{run.id}"}}'] == 1 / 8


def test_only_this_machine_can_connect(tmp_path: Path) -> None:
    port = prometheus.start_server(new_run(tmp_path), 0)
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    port = prometheus.start_server(run, 0)
    assert main(["prometheus", str(run.path), "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} cannot be used" in capsys.readouterr().err
    assert main(["prometheus", str(run.path), "--port", "99999"]) == 2


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(FttuiError, match=r"pip install 'fttui\[prometheus\]'"):
        prometheus.start_server(new_run(tmp_path), 0)
