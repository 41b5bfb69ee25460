"""Launchers on two nodes, which are network namespaces: one run, whose rendezvous is its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_nodes import PATIENCE_S, link
from tests.support.cli import events, only_run
from tests.support.training import write_config

__all__ = ["link"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.long]
FIRST, PORT = "10.219.0.1", 29570
MPIRUN = """
# Starts one process with the variables of Open MPI, as mpirun does on each node.
import os, subprocess, sys
rank, *command = sys.argv[1:]
own = {"RANK": rank, "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
named = {f"OMPI_COMM_WORLD_{name}": value for name, value in own.items()}
sys.exit(subprocess.run(command, env={**os.environ, **named}).returncode)
"""


def _launcher(name: str, node: int, folder: Path) -> list[str]:
    python = [sys.executable, "-m"]
    if name == "mpi":
        script = folder / "mpirun"
        script.write_text(MPIRUN)
        return [sys.executable, str(script), str(node)]
    if name == "accelerate":
        where = ["--num_machines", "2", "--machine_rank", str(node), "--num_processes", "2"]
        where += ["--main_process_ip", FIRST, "--main_process_port", str(PORT)]
        return [*python, "accelerate.commands.launch", "--multi_gpu", *where, "--no_python"]
    where = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2"]
    where += ["--master-addr", FIRST, "--master-port", str(PORT)]
    return [*python, "torch.distributed.run", *where, "--no-python"]


@pytest.mark.parametrize(("name", "ranks"), [("torchrun", 4), ("accelerate", 2), ("mpi", 2)])
def test_two_nodes_of_a_launcher_are_one_run(
    tmp_path: Path, link: list[list[str]], name: str, ranks: int
) -> None:
    path, sets = write_config(tmp_path, train__batch=1, train__steps=4)
    words = [str(path), *(word for one in sets for word in ("--set", one))]
    command = [sys.executable, "-m", "fttui.tui", "run", *words, "--nodes", name]
    nodes = [
        subprocess.Popen(
            [*link[node], *_launcher(name, node, tmp_path), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "FTTUI_RUNS": str(tmp_path / f"node-{node}"),
                "MASTER_ADDR": FIRST,
                "GLOO_SOCKET_IFNAME": f"fttui{node}",
            },
        )
        for node in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in nodes]
    finally:
        for process in nodes:
            process.kill()
    assert [process.returncode for process in nodes] == [0, 0], "\n".join(outputs)
    runs = tmp_path / "node-0"
    found = events(only_run(runs), runs)
    started = [one for one in found if one["type"] == "RunStarted" and one["devices"]]
    assert len(started[0]["devices"]) == ranks
    numbers = [int(host.split()[0]) for host in started[0]["rank_hosts"]]
    assert numbers == [rank * 2 // ranks for rank in range(ranks)]
    assert [one["step"] for one in found if one["type"] == "StepFinished"] == [1, 2, 3, 4]
