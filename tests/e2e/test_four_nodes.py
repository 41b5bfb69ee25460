"""Four nodes in network namespaces behind one switch: commands, a killed rank, a lost node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.test_nodes import PATIENCE_S, _config, _ip, _node, _trained
from tests.support.cli import events, fttui, only_run
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.long]
NODES = 4
NAMES = [f"fttui-four-{number}" for number in range(NODES)]
SWITCH = "fttui-four-switch"
ENDPOINT = "10.220.0.1:29548"
NAMED_S = 30.0


@pytest.fixture
def switched() -> Iterator[list[list[str]]]:
    """Four network namespaces, each with an interface behind a switch in a fifth."""
    if os.geteuid() != 0 or _ip("netns", "add", SWITCH).returncode != 0:
        pytest.skip("network namespaces need root")
    try:
        if _ip("-n", SWITCH, "link", "add", "hub", "type", "bridge").returncode != 0:
            pytest.skip("the kernel has no bridge")
        _ip("-n", SWITCH, "link", "set", "hub", "up")
        for number, name in enumerate(NAMES):
            _ip("netns", "add", name)
            peer = ["peer", "name", f"port{number}", "netns", SWITCH]
            _ip("link", "add", f"four{number}", "netns", name, "type", "veth", *peer)
            _ip("-n", SWITCH, "link", "set", f"port{number}", "master", "hub", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", f"four{number}", "up")
            _ip("-n", name, "addr", "add", f"10.220.0.{number + 1}/24", "dev", f"four{number}")
        yield [["ip", "netns", "exec", name] for name in NAMES]
    finally:
        for name in (*NAMES, SWITCH):
            _ip("netns", "del", name)


def test_four_nodes_obey_lose_a_rank_and_go_on_and_lose_a_node_and_end(
    tmp_path: Path, switched: list[list[str]]
) -> None:
    words = _config(
        tmp_path,
        train__steps=100_000,
        train__restarts=2,
        train__collective_timeout_s=60,
        checkpoint__every=25,
    )
    nodes = [_node(tmp_path, n, words, ENDPOINT, switched[n], NODES) for n in range(NODES)]
    runs = tmp_path / "node-0"
    try:
        until(lambda: _trained(runs) >= 5, PATIENCE_S)
        run = only_run(runs)
        _obey(run, runs)
        os.kill(_processes(tmp_path, 2)[-1].pid, signal.SIGKILL)
        _named(run, runs, "rank 2 on node 2")
        until(lambda: _steps_of_last_start(run, runs), PATIENCE_S)
        assert _steps_of_last_start(run, runs)[-1]["lr_scale"] == 0.5
        _obey(run, runs, "0.25")
        for lost in _processes(tmp_path, 3):
            lost.kill()
        _named(run, runs, "rank 3 on node 3")
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    finally:
        for process in nodes:
            process.kill()
    codes = [process.returncode for process in nodes]
    assert codes[:3] == [11, 11, 11], "\n".join(outputs)
    assert "3" in events(run, runs)[-1]["error"], events(run, runs)[-1]


def _obey(run: str, runs: Path, scale: str = "0.5") -> None:
    """Set the learning rate and save: the checkpoint is refused unless all ranks are the same."""
    saved = sum(e["type"] == "CheckpointSaved" for e in events(run, runs))
    fttui("ctl", run, "lr", "scale", scale, runs=runs)
    until(lambda: _steps(run, runs)[-1]["lr_scale"] == float(scale), PATIENCE_S)
    at = _steps(run, runs)[-1]["step"]
    until(lambda: _steps(run, runs)[-1]["step"] >= at + 2, PATIENCE_S)
    fttui("ctl", run, "checkpoint", runs=runs)
    until(
        lambda: sum(e["type"] == "CheckpointSaved" for e in events(run, runs)) > saved, PATIENCE_S
    )
    assert not [e for e in events(run, runs) if e["type"] == "CommandFailed"]


def _steps(run: str, runs: Path) -> list[dict[str, Any]]:
    return [e for e in events(run, runs) if e["type"] == "StepFinished"]


def _steps_of_last_start(run: str, runs: Path) -> list[dict[str, Any]]:
    """The steps since the last restart; none before one."""
    found = events(run, runs)
    starts = [number for number, e in enumerate(found) if e["type"] == "RunStarted"]
    again = [n for n in starts if found[n]["incarnation"] > 1]
    return [e for e in found[again[-1] :] if e["type"] == "StepFinished"] if again else []


def _named(run: str, runs: Path, rank: str) -> None:
    """Wait until a line of the log or the end of the run names a lost rank, within 30 s."""
    begun = time.monotonic()
    until(
        lambda: any(rank in f"{e.get('text', '')}{e.get('error', '')}" for e in events(run, runs)),
        NAMED_S,
    )
    print(f"{rank}: named after {time.monotonic() - begun:.1f} s")


def _processes(folder: Path, node: int) -> list[psutil.Process]:
    """The processes of a node, its rank last."""
    own, found = str(folder / f"node-{node}"), []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "fttui.engine" in line and own in " ".join(line):
            found.append(process)
    return sorted(found, key=lambda one: "torch.distributed.run" not in one.cmdline())


def test_four_nodes_go_on_after_a_minute_without_one_of_them(
    tmp_path: Path, switched: list[list[str]]
) -> None:
    words = _config(tmp_path, train__steps=60, train__restarts=1)
    nodes = [_node(tmp_path, n, words, ENDPOINT, switched[n], NODES) for n in range(NODES)]
    runs = tmp_path / "node-0"
    try:
        until(lambda: _trained(runs) >= 5, PATIENCE_S)
        run = only_run(runs)
        _ip("-n", SWITCH, "link", "set", "port3", "down")
        cut = time.monotonic()
        _named(run, runs, "rank 3 on node 3")
        time.sleep(max(0.0, 60 - (time.monotonic() - cut)))
        _ip("-n", SWITCH, "link", "set", "port3", "up")
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    finally:
        for process in nodes:
            process.kill()
    assert [process.returncode for process in nodes] == [0] * NODES, "\n".join(outputs)
    kept = {e["step"]: e["loss"] for e in _steps(run, runs)}
    assert sorted(kept) == list(range(1, 61))
    endpoint, other = f"127.0.0.1:{free_port()}", tmp_path / "undisturbed"
    nodes = [_node(other, n, words, endpoint, [], NODES) for n in range(NODES)]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0] * NODES, "\n".join(outputs)
    same = _steps(only_run(other / "node-0"), other / "node-0")
    assert [kept[step] for step in sorted(kept)] == [e["loss"] for e in same]
