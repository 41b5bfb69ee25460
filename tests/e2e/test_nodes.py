"""A run on two nodes: two commands, two run folders, one run; on one machine, and cut apart."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cli import FTTUI, events, fttui, only_run
from tests.support.ports import free_port
from tests.support.training import write_config
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.long]
PATIENCE_S = 300.0
NAMESPACES = ("fttui-node-0", "fttui-node-1")


def _config(folder: Path, **overrides: Any) -> list[str]:
    path, sets = write_config(folder, train__batch=2, checkpoint__keep=100_000, **overrides)
    return [str(path), *(word for item in sets for word in ("--set", item))]


def _node(
    folder: Path, node: int, words: list[str], endpoint: str, within: list[str], nodes: int = 2
) -> subprocess.Popen[str]:
    """Start one of several nodes, whose runs folder is `node-N`."""
    where = [
        "--nodes",
        str(nodes),
        "--node-rank",
        str(node),
        "--rendezvous",
        endpoint,
        "--headless",
    ]
    return subprocess.Popen(
        [*within, *FTTUI, "run", *words, *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FTTUI_RUNS": str(folder / f"node-{node}")},
    )


def _losses(run: str, runs: Path) -> list[Any]:
    return [e["loss"] for e in events(run, runs) if e["type"] == "StepFinished"]


def test_two_nodes_train_as_two_ranks_of_one_do_and_roll_back(tmp_path: Path) -> None:
    words = _config(tmp_path, train__steps=12)
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [_node(tmp_path, number, words, endpoint, []) for number in range(2)]
    runs = tmp_path / "node-0"
    until(lambda: _trained(runs) >= 5, PATIENCE_S)
    run = only_run(runs)
    back = fttui("ctl", run, "rollback", "step-000004", runs=runs)
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    assert "node 1 of 2: rank 1" in outputs[1]
    assert only_run(tmp_path / "node-1" / ".nodes")
    assert not list((tmp_path / "node-1" / ".nodes").glob("*/checkpoints/*"))
    alone = fttui(
        "run", *words, "--headless", "--devices", "2", runs=tmp_path / "alone", timeout_s=PATIENCE_S
    )
    assert alone.returncode == 0, alone.stdout
    expected = _losses(only_run(tmp_path / "alone"), tmp_path / "alone")
    assert _losses(run, runs)[-8:] == expected[-8:]
    if back.returncode == 0:  # a fast machine may have ended before the command
        assert any(e["type"] == "RolledBack" for e in events(run, runs))


def test_two_nodes_that_share_one_copy_of_the_model_train_roll_back_and_are_exported(
    tmp_path: Path, link: list[list[str]]
) -> None:
    path, sets = write_config(
        tmp_path, "sft", train__batch=2, train__steps=12, train__activation_checkpointing="true"
    )
    words = [str(path), *(word for item in sets for word in ("--set", item))]
    split = [*words, "--set", "train.strategy=fsdp"]
    nodes = [_node(tmp_path, n, split, "10.219.0.1:29546", link[n]) for n in range(2)]
    runs = tmp_path / "node-0"
    until(lambda: _trained(runs) >= 5, PATIENCE_S)
    run = only_run(runs)
    fttui("ctl", run, "rollback", "step-000004", runs=runs)
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    alone = fttui(
        "run", *words, "--headless", "--devices", "2", runs=tmp_path / "alone", timeout_s=PATIENCE_S
    )
    assert alone.returncode == 0, alone.stdout
    expected = _losses(only_run(tmp_path / "alone"), tmp_path / "alone")
    assert _losses(run, runs)[-8:] == pytest.approx(expected[-8:], rel=0, abs=1e-5)
    done = fttui("export", run, "--adapter", "--out", str(tmp_path / "out"), runs=runs)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


def test_a_node_with_another_configuration_is_refused_by_both(tmp_path: Path) -> None:
    words = _config(tmp_path, train__steps=12)
    endpoint = f"127.0.0.1:{free_port()}"
    other = [*words, "--set", "train.lr=0.5"]
    nodes = [
        _node(tmp_path, number, own, endpoint, []) for number, own in enumerate((words, other))
    ]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [2, 2], "\n".join(outputs)
    assert "another configuration than rank 0" in outputs[0]
    assert "train.lr=0.5" in outputs[0]


def _trained(runs: Path) -> int:
    journals = list(runs.glob("*/journal.log"))
    return len(_losses(only_run(runs), runs)) if journals else 0


@pytest.fixture
def link() -> Iterator[list[list[str]]]:
    """Two network namespaces that only a pair of virtual interfaces connects."""
    if os.geteuid() != 0 or _ip("netns", "add", NAMESPACES[0]).returncode != 0:
        pytest.skip("network namespaces need root")
    try:
        _ip("netns", "add", NAMESPACES[1])
        _ip("link", "add", "fttui0", "type", "veth", "peer", "name", "fttui1")
        for number, name in enumerate(NAMESPACES):
            _ip("link", "set", f"fttui{number}", "netns", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", f"fttui{number}", "up")
            _ip("-n", name, "addr", "add", f"10.219.0.{number + 1}/24", "dev", f"fttui{number}")
        yield [["ip", "netns", "exec", name] for name in NAMESPACES]
    finally:
        for name in NAMESPACES:
            _ip("netns", "del", name)


def _ip(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", *words], capture_output=True, check=False)


def test_a_killed_rank_is_started_again_and_a_cut_link_ends_both_nodes(
    tmp_path: Path, link: list[list[str]]
) -> None:
    words = _config(tmp_path, train__steps=100_000, train__restarts=1)
    nodes = [_node(tmp_path, n, words, "10.219.0.1:29544", link[n]) for n in range(2)]
    runs = tmp_path / "node-0"
    until(lambda: _trained(runs) >= 5, PATIENCE_S)
    run = only_run(runs)
    fttui("ctl", run, "lr", "scale", "0.5", runs=runs)
    os.kill(_rank_of_second_node(tmp_path), signal.SIGKILL)
    until(lambda: _trains_again(run, runs), PATIENCE_S)
    _ip("-n", NAMESPACES[0], "link", "set", "fttui0", "down")
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [11, 11], "\n".join(outputs)
    found = events(run, runs)
    assert any("restart 1 of 1" in e.get("text", "") for e in found)
    assert [e["lr_scale"] for e in found if e["type"] == "StepFinished"][-1] == 0.5
    assert "rank 1 on node 1" in found[-1]["error"]


def _trains_again(run: str, runs: Path) -> bool:
    """Whether a step is finished since the second start, on whichever timeline."""
    kinds = [(e["type"], e.get("incarnation")) for e in events(run, runs)]
    starts = [at for at, kind in enumerate(kinds) if kind == ("RunStarted", 2)]
    return bool(starts) and ("StepFinished", None) in kinds[starts[0] :]


def _rank_of_second_node(folder: Path) -> int:
    own = str(folder / "node-1")
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "fttui.engine" in line and "torch.distributed.run" not in line and own in " ".join(line):
            return int(process.pid)
    raise LookupError("the rank of the second node is not running")
