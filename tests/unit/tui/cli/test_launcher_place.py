"""A launcher's variables are used only on demand, in its own processes, and if they agree."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError, TrainingFailed
from fttui.tui.cli.cluster import local_group
from fttui.tui.cli.cluster import place as place_module
from fttui.tui.cli.cluster.launcher_place import (
    Above,
    LauncherPlace,
    launcher_place,
    variables_of_launchers,
)
from fttui.tui.cli.cluster.local_group import in_group
from fttui.tui.cli.cluster.place import Cluster, cluster_of
from tests.support.engine_double import make_run

TORCH = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
COMMANDS = {
    "torchrun": ("/usr/bin/python3", "/opt/bin/torchrun", "--nproc-per-node", "4"),
    "accelerate": ("python", "-m", "accelerate.commands.launch", "train"),
    "mpi": ("orted", "-mca", "ess"),
}
SHELL = Above(7, 1.0, ("bash", "-c", "torchrun"))


def agent(name: str) -> Above:
    return Above(4711, 1234.5, COMMANDS[name])


def found(name: str, variables: dict[str, str], **changed: str) -> LauncherPlace:
    given = {key: value for key, value in {**variables, **changed}.items() if value != "absent"}
    return launcher_place(name, given, lambda: [SHELL, agent(name)])


@pytest.mark.parametrize(
    ("name", "variables"),
    [("torchrun", TORCH), ("accelerate", TORCH), ("mpi", OPEN_MPI), ("mpi", HYDRA)],
)
def test_the_place_follows_from_the_variables(name: str, variables: dict[str, str]) -> None:
    place = found(name, variables)
    assert (place.node, place.nodes, place.local_rank, place.local_size) == (1, 2, 1, 4)
    assert place.devices == 4
    assert place.port == 29501  # the launcher itself listens at 29500
    assert f"{name}: process 1 of 4 on node 1 of 2" in place.described


@pytest.mark.parametrize("name", ["torchrun", "accelerate", "mpi"])
def test_variables_left_behind_are_not_believed(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{name} did not start this process .*RANK=5.* are left from it"
    ):
        launcher_place(name, TORCH, lambda: [SHELL])


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (("/usr/bin/python3.11", "-u", "-X", "dev", "/opt/bin/torchrun", "-h"), "torchrun"),
        (("python", "-um", "x"), "x"),
        (("python", "-m", "torch.distributed.run", "train.py"), "torch.distributed.run"),
        (("python",), ""),
        (("python", "train.py", "torchrun"), "train.py"),
        (("vim", "torchrun"), "vim"),
    ],
)
def test_the_program_of_a_process(command: tuple[str, ...], program: str) -> None:
    assert Above(1, 1.0, command).program == program


def test_another_launcher_is_not_taken_for_the_one_that_is_named() -> None:
    with pytest.raises(ConfigError, match="accelerate did not start this process"):
        launcher_place("accelerate", TORCH, lambda: [agent("torchrun")])


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"])
def test_incomplete_variables_are_refused_by_name(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"the variable {missing} is missing"):
        found("torchrun", TORCH, **{missing: "absent"})


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"RANK": "9"}, "impossible numbers"),
        ({"RANK": "x"}, "RANK is x; expected a number"),
        ({"LOCAL_RANK": "2"}, "numbered node by node"),
        ({"WORLD_SIZE": "7"}, "same number of processes on every node"),
        ({"GROUP_RANK": "0"}, "node should be 1"),
        ({"GROUP_WORLD_SIZE": "3"}, "nodes should be 2"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(
    changed: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        found("torchrun", TORCH, **changed)


@pytest.mark.parametrize("name", ["MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"])
@pytest.mark.parametrize("text", ["x", "-1", "1.5", "99999"])
def test_a_variable_that_is_no_number_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"the variable {name} is '{text}'"):
        found("torchrun", TORCH, **{name: text})


def test_accelerate_sets_no_ranks_for_a_single_process_and_gives_settings() -> None:
    place = launcher_place(
        "accelerate", {"ACCELERATE_MIXED_PRECISION": "fp16"}, lambda: [agent("accelerate")]
    )
    assert (place.local_size, place.nodes, place.devices) == (1, 1, None)
    assert "ACCELERATE_MIXED_PRECISION=fp16" in place.note
    assert found("torchrun", TORCH).note == ""


def _options(**given: object) -> argparse.Namespace:
    usual = {"nodes": None, "node_rank": None, "rendezvous": None, "devices": None, "job": ""}
    return argparse.Namespace(**{**usual, **given})


def test_a_plain_run_says_that_it_ignores_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(place_module, "processes_above", lambda: [SHELL])
    said: list[str] = []
    assert cluster_of(_options(), said.append) == Cluster()
    assert "WORLD_SIZE=8" in said[0]
    assert "not used" in said[0]
    monkeypatch.setattr(place_module, "processes_above", lambda: [SHELL, agent("torchrun")])
    with pytest.raises(ConfigError, match="start a run of its own; add --nodes torchrun"):
        cluster_of(_options(), said.append)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert cluster_of(_options(), said.append) == Cluster()


def test_a_run_without_leftovers_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert variables_of_launchers({}) == []
    assert cluster_of(_options(), pytest.fail) == Cluster()


def test_what_a_launcher_decides_is_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    one = found("torchrun", TORCH, RANK="1", GROUP_RANK="0", WORLD_SIZE="4", GROUP_WORLD_SIZE="1")
    monkeypatch.setattr(place_module, "launcher_place", lambda *_: one)
    assert cluster_of(_options(nodes="torchrun")).devices == 4
    assert cluster_of(_options(nodes="torchrun", devices="4")).devices == 4
    with pytest.raises(ConfigError, match="leave --devices out"):
        cluster_of(_options(nodes="torchrun", devices="2"))
    with pytest.raises(ConfigError, match="with --node-rank"):
        cluster_of(_options(nodes="torchrun", node_rank=0))


def test_mpi_needs_the_address_of_node_0(monkeypatch: pytest.MonkeyPatch) -> None:
    place = found("mpi", HYDRA, PMI_RANK="4", MPI_LOCALRANKID="0")
    monkeypatch.setattr(place_module, "launcher_place", lambda *_: place)
    with pytest.raises(ConfigError, match="no MASTER_ADDR"):
        cluster_of(_options(nodes="mpi"))
    given = cluster_of(_options(nodes="mpi", rendezvous="127.0.0.1:20111"))
    assert given.launch is not None
    assert (given.launch.node, given.launch.nodes, given.launch.port) == (1, 2, 20111)


def test_processes_that_are_started_again_go_on_with_their_run(tmp_path: Path) -> None:
    again = found("torchrun", TORCH, TORCHELASTIC_RESTART_COUNT="1")
    make_run(tmp_path, name="other")
    mine = make_run(tmp_path, name="mine")
    text = mine.identity_file.read_text()
    mine.identity_file.write_text(text.replace('"job": ""', f'"job": "{again.job}"'))
    assert Cluster(launcher=found("torchrun", TORCH)).run_to_go_on(tmp_path) is None
    named = Cluster(named="nightly")
    assert (named.job, named.run_to_go_on(tmp_path)) == ("job:nightly", None)
    went_on = Cluster(launcher=again).run_to_go_on(tmp_path)
    assert went_on is not None
    assert went_on.path == mine.path


def _pair(name: str) -> tuple[LauncherPlace, LauncherPlace]:
    """The two processes of a node; the agent's number keeps tests apart."""
    of_two = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
              "GROUP_WORLD_SIZE": "1"}  # fmt: skip
    above = Above(hash(name) % 10**6, 1.0, COMMANDS["torchrun"])
    first, second = (
        launcher_place("torchrun", {**TORCH, **of_two, "RANK": n, "LOCAL_RANK": n}, lambda: [above])
        for n in ("0", "1")
    )
    return first, second


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting ignores signals of its process, which is that of the tests here."""
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("code", [0, 7])
def test_the_others_end_with_the_exit_code_of_the_first(code: int) -> None:
    first, second = _pair(f"code {code}")
    waited: list[int] = []
    other = threading.Thread(
        target=lambda: waited.append(in_group(second, pytest.fail, lambda _: None))
    )
    other.start()
    assert in_group(first, lambda: code, lambda _: None) == code
    other.join(10)
    assert waited == [code]


@pytest.mark.usefixtures("quiet")
def test_an_error_of_the_first_reaches_the_others() -> None:
    first, second = _pair("error")
    waited: list[int] = []
    other = threading.Thread(
        target=lambda: waited.append(in_group(second, pytest.fail, lambda _: None))
    )
    other.start()

    def fail() -> int:
        error = TrainingFailed("broken")
        error.exit_code = 11
        raise error

    with pytest.raises(TrainingFailed):
        in_group(first, fail, lambda _: None)
    other.join(10)
    assert waited == [11]


@pytest.mark.usefixtures("quiet")
def test_a_connection_that_says_nothing_is_no_process_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_group, "_GREETING_S", 0.05)
    first, second = _pair("silent")
    ended: list[int] = []
    leader = threading.Thread(
        target=lambda: ended.append(in_group(first, lambda: 7, lambda _: None))
    )
    leader.start()
    silent = local_group._connected(first)
    assert in_group(second, pytest.fail, lambda _: None) == 7
    leader.join(10)
    silent.close()
    assert ended == [7]


@pytest.mark.usefixtures("quiet")
def test_a_process_that_does_not_come_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_group, "_GATHER_S", 0.0)
    first, second = _pair("alone")
    with pytest.raises(ConfigError, match="only 1 of 2 processes started"):
        in_group(first, pytest.fail, lambda _: None)
    with pytest.raises(TrainingFailed, match="first process of this node did not start"):
        in_group(second, pytest.fail, lambda _: None)
