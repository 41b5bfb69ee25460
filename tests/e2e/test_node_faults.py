"""Faults of nodes, with real processes: no rank diverges or waits for ever, and the run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_nodes import (
    NAMESPACES,
    PATIENCE_S,
    _config,
    _ip,
    _losses,
    _node,
    _trained,
    link,
)
from tests.support.cli import events, fttui, only_run, start
from tests.support.ports import free_port
from tests.support.waiting import until

__all__ = ["link"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.long]
STEPS = 80


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The losses of two ranks of one node, which no fault may change."""
    folder = tmp_path_factory.mktemp("alone")
    words = _config(folder, train__steps=STEPS)
    done = fttui(
        "run", *words, "--headless", "--devices", "2", runs=folder / "runs", timeout_s=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout
    return _losses(only_run(folder / "runs"), folder / "runs")


def _end(nodes: list[subprocess.Popen[str]]) -> list[str]:
    try:
        return [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    finally:
        for process in nodes:
            process.kill()


def _outcomes(run: str, runs: Path) -> list[dict[str, Any]]:
    return [e for e in events(run, runs) if e["type"] in ("CommandApplied", "CommandFailed")]


def test_a_slow_link_changes_nothing_but_the_time(
    tmp_path: Path, link: list[list[str]], expected: list[Any]
) -> None:
    words = _config(tmp_path, train__steps=STEPS)
    nodes = [_node(tmp_path, n, words, "10.219.0.1:29545", link[n]) for n in range(2)]
    runs = tmp_path / "node-0"
    until(lambda: _trained(runs) >= 4, PATIENCE_S)
    _slow_down()
    run, at = only_run(runs), _trained(runs)
    assert fttui("ctl", run, "note", "slow", runs=runs).returncode == 0
    until(lambda: _trained(runs) >= at + 6, PATIENCE_S)
    _speed_up()
    outputs = _end(nodes)
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    assert _losses(run, runs) == expected
    times = [e["step_s"] for e in events(run, runs) if e["type"] == "StepFinished"]
    assert max(times[at:]) > 0.15


def test_a_link_that_is_cut_for_a_minute_costs_a_restart_and_no_loss_differs(
    tmp_path: Path, link: list[list[str]], expected: list[Any]
) -> None:
    words = _config(tmp_path, train__steps=STEPS, train__restarts=1)
    nodes = [_node(tmp_path, n, words, "10.219.0.1:29547", link[n]) for n in range(2)]
    runs = tmp_path / "node-0"
    until(lambda: _trained(runs) >= 6, PATIENCE_S)
    run = only_run(runs)
    ends = _ip("-n", NAMESPACES[0], "link", "set", "fttui0", "down")
    cut = time.monotonic()
    assert ends.returncode == 0
    until(lambda: any(_names_node_1(e) for e in events(run, runs)), 30.0)
    time.sleep(max(0.0, 60 - (time.monotonic() - cut)))
    assert _ip("-n", NAMESPACES[0], "link", "set", "fttui0", "up").returncode == 0
    outputs = _end(nodes)
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    assert _kept(run, runs) == expected
    assert any("restart 1 of 1" in e.get("text", "") for e in events(run, runs))


def _names_node_1(event: dict[str, Any]) -> bool:
    return "rank 1 on node 1" in f"{event.get('text', '')}{event.get('error', '')}"


def _slow_down() -> None:
    """Limit the rate, with a queue that adds up to half a second; with netem also a delay."""
    device = ["netns", "exec", NAMESPACES[0], "tc", "qdisc", "add", "dev", "fttui0", "root"]
    netem = ["netem", "delay", "80ms", "20ms", "rate", "400kbit", "loss", "1%"]
    queue = ["tbf", "rate", "400kbit", "burst", "4kb", "latency", "500ms"]
    if _ip(*device, *netem).returncode:  # not every kernel has netem
        assert _ip(*device, *queue).returncode == 0


def _speed_up() -> None:
    words = ["tc", "qdisc", "del", "dev", "fttui0", "root"]
    assert _ip("netns", "exec", NAMESPACES[0], *words).returncode == 0


def test_clocks_that_are_ten_minutes_apart_change_nothing(
    tmp_path: Path, expected: list[Any]
) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    words = _config(tmp_path, train__steps=STEPS)
    endpoint = f"127.0.0.1:{free_port()}"
    ahead = ["faketime", "-f", "+10m"]
    nodes = [_node(tmp_path, n, words, endpoint, [[], ahead][n]) for n in range(2)]
    outputs = _end(nodes)
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    runs = tmp_path / "node-0"
    assert _losses(only_run(runs), runs) == expected


def test_a_node_that_starts_late_is_waited_for(tmp_path: Path, expected: list[Any]) -> None:
    words = _config(tmp_path, train__steps=STEPS)
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [_node(tmp_path, 1, words, endpoint, [])]
    time.sleep(20)
    assert nodes[0].poll() is None
    nodes.append(_node(tmp_path, 0, words, endpoint, []))
    outputs = _end(nodes)
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    runs = tmp_path / "node-0"
    assert _losses(only_run(runs), runs) == expected


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB, where the second node keeps its runs."""
    folder = tmp_path / "node-1"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65536))
        except OSError:
            return


def test_a_full_disk_of_one_node_refuses_a_rollback_on_all_ranks_and_training_goes_on(
    tmp_path: Path, small_disk: Path
) -> None:
    words = _config(tmp_path, train__steps=400)
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [_node(tmp_path, n, words, endpoint, []) for n in range(2)]
    runs = tmp_path / "node-0"
    until(lambda: _trained(runs) >= 5, PATIENCE_S)
    _fill(small_disk)
    run = only_run(runs)
    fttui("ctl", run, "rollback", "step-000004", runs=runs)
    until(lambda: _outcomes(run, runs), PATIENCE_S)
    at = _trained(runs)
    until(lambda: _trained(runs) >= at + 5, PATIENCE_S)
    (small_disk / "filler").unlink()
    back = fttui("ctl", run, "rollback", "step-000004", runs=runs)
    until(lambda: len(_outcomes(run, runs)) == 2, PATIENCE_S)
    fttui("ctl", run, "stop", runs=runs)
    outputs = _end(nodes)
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    first, second = _outcomes(run, runs)[:2]
    assert (first["type"], second["type"]) == ("CommandFailed", "CommandApplied"), back.stdout
    assert "rank 1" in first["reason"]


def test_a_second_job_at_the_same_port_is_refused_and_the_first_goes_on(
    tmp_path: Path, expected: list[Any]
) -> None:
    words = _config(tmp_path, train__steps=STEPS)
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [_node(tmp_path, n, words, endpoint, []) for n in range(2)]
    runs = tmp_path / "node-0"
    until(lambda: _trained(runs) >= 1, PATIENCE_S)
    assert fttui("ctl", only_run(runs), "pause", runs=runs).returncode == 0
    (tmp_path / "other").mkdir()
    others = [_node(tmp_path / "other", n, words, endpoint, []) for n in range(2)]
    refused = _end(others)
    assert fttui("ctl", only_run(runs), "resume", runs=runs).returncode == 0
    outputs = _end(nodes)
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    assert _losses(only_run(runs), runs) == expected
    assert others[0].returncode != 0
    assert "in use" in refused[0]
    assert others[1].returncode != 0, refused[1]


def test_strangers_at_the_rendezvous_that_send_garbage_change_nothing(
    tmp_path: Path, expected: list[Any]
) -> None:
    words = _config(tmp_path, train__steps=STEPS)
    port = free_port()
    nodes = [_node(tmp_path, n, words, f"127.0.0.1:{port}", []) for n in range(2)]
    ended = threading.Event()
    sent = _bother(port, ended)
    outputs = _end(nodes)
    ended.set()
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    runs = tmp_path / "node-0"
    assert _losses(only_run(runs), runs) == expected
    assert len(sent) > 20


def _bother(port: int, ended: threading.Event) -> list[bytes]:
    """Connect again and again, with garbage, a web request, half a message, and silence."""
    sent: list[bytes] = []
    greetings = (
        b"GET / HTTP/1.1\r\n\r\n", os.urandom(512), struct.pack("<BI", 0, 0x3C85F7CE), b"",
        struct.pack("<BQ", 0, 1 << 62),
    )  # fmt: skip

    def act() -> None:
        held: list[socket.socket] = []
        while not ended.wait(0.1):
            try:
                one = socket.create_connection(("127.0.0.1", port), 1.0)
                one.sendall(greetings[len(sent) % len(greetings)])
            except OSError:
                continue
            sent.append(b"")
            held.append(one)
            if len(held) > 40:
                held.pop(0).close()

    threading.Thread(target=act, daemon=True).start()
    return sent


@pytest.mark.parametrize("phase", ["loading", "first step", "saving", "evaluating", "rolling back"])
def test_a_preempted_run_is_saved_and_goes_on_with_the_same_losses(
    tmp_path: Path, phase: str, expected: list[Any]
) -> None:
    words = [*_config(tmp_path, train__steps=STEPS), "--job", "tune"]
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [_node(tmp_path, n, words, endpoint, []) for n in range(2)]
    runs = tmp_path / "node-0"
    _reach(phase, runs)
    for process in nodes:
        process.send_signal(signal.SIGTERM)
    outputs = _end(nodes)
    assert [process.returncode for process in nodes] == [143, 143], "\n".join(outputs)
    endpoint = f"127.0.0.1:{free_port()}"
    again = [_node(tmp_path, n, words, endpoint, []) for n in range(2)]
    outputs = _end(again)
    assert [process.returncode for process in again] == [0, 0], "\n".join(outputs)
    assert _kept(only_run(runs), runs) == expected


def _kept(run: str, runs: Path) -> list[Any]:
    """The losses that the last weights descend from, by step."""
    losses: dict[int, Any] = {}
    for event in events(run, runs):
        if event["type"] == "StepFinished":
            losses[event["step"]] = event["loss"]
    return [losses[step] for step in sorted(losses)]


def _reach(phase: str, runs: Path) -> None:
    """Wait until the run is in a phase."""
    until(lambda: list(runs.glob("*/run.json")), PATIENCE_S)
    if phase == "loading":
        until(lambda: _seen(runs, "RunStarted"), PATIENCE_S)
        return
    if phase == "first step":
        until(lambda: any(e.get("state") == "running" for e in _all(runs)), PATIENCE_S)
        return
    until(lambda: _trained(runs) >= 6, PATIENCE_S)
    run = only_run(runs)
    words = {"saving": "checkpoint", "evaluating": "eval", "rolling back": "rollback step-000004"}
    begun = len(_all(runs))
    start("ctl", run, *words[phase].split(), runs=runs)
    found = ("RolledBack", "CommandAccepted") if phase == "rolling back" else ()
    until(
        lambda: any(e.get("state") == phase or e["type"] in found for e in _all(runs)[begun:]),
        PATIENCE_S,
    )


def _all(runs: Path) -> list[dict[str, Any]]:
    return events(only_run(runs), runs)


def _seen(runs: Path, kind: str) -> bool:
    return any(e["type"] == kind for e in _all(runs))
