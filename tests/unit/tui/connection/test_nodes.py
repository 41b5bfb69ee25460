"""The options of a run on several nodes, and what torchrun is started with."""

from __future__ import annotations

import socket

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.cli.cluster.place import require_launch
from fttui.tui.connection import nodes
from fttui.tui.connection.engine_process import _launcher
from fttui.tui.connection.nodes import NodeLaunch, node_launch
from tests.support.ports import free_port


def test_without_the_options_there_is_one_node() -> None:
    assert node_launch(None, None, None) is None
    require_launch(1, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((2, None, None), "needs --nodes, --node-rank and --rendezvous"),
        ((None, 1, "h:1"), "needs --nodes, --node-rank and --rendezvous"),
        ((1, 0, "127.0.0.1:9"), "expected at least 2 nodes"),
        ((2, 2, "127.0.0.1:9"), "node ranks from 0 to one less"),
        ((2, -1, "127.0.0.1:9"), "node ranks from 0 to one less"),
        ((2, 0, "127.0.0.1"), "expected the address of node 0 and a free port"),
        ((2, 0, "127.0.0.1:99999"), "expected the address of node 0 and a free port"),
        ((2, 1, "no-such-host.invalid:29500"), "cannot be reached from here"),
    ],
)
def test_impossible_options_are_refused(given: tuple[int, int, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        node_launch(*given)


def test_a_name_that_is_not_known_yet_is_waited_for() -> None:
    slept: list[float] = []
    said: list[str] = []

    def known(host: str, port: int) -> None:
        if len(slept) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")

    nodes._wait_for_name("tune-0.tune", 29500, said.append, known, slept.append)
    assert len(slept) == 3
    assert said == ["waiting until the name tune-0.tune can be resolved: no such name"]


def test_node_0_needs_a_free_port_of_its_own() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}, but the port cannot be used"):
            node_launch(2, 0, f"127.0.0.1:{port}")
        assert node_launch(2, 1, f"127.0.0.1:{port}")


def test_torchrun_meets_at_node_0_through_the_interface_that_leads_there() -> None:
    port = free_port()
    launch = node_launch(2, 1, f"127.0.0.1:{port}")
    assert launch == NodeLaunch(1, 2, "127.0.0.1", port, "lo")
    assert not launch.leads
    assert launch.environment == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    words = " ".join(_launcher(4, 3, launch))
    assert f"--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port {port}" in words
    assert "--nproc-per-node 4 --max-restarts 3" in words
    assert "--standalone" not in words
    assert "--standalone" in _launcher(2, 0, None)


def test_a_part_of_the_nodes_is_not_started() -> None:
    with pytest.raises(ConfigError, match=r"train\.nodes is 2, but this command starts a run on 1"):
        require_launch(2, None)
    require_launch(2, NodeLaunch(0, 2, "h", 1, ""))
