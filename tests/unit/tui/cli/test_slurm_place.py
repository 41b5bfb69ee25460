"""The place in a SLURM job is taken from variables only inside a step of that job."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.cli.cluster import place as place_module
from fttui.tui.cli.cluster.place import Cluster, cluster_of
from fttui.tui.cli.cluster.slurm_place import SlurmPlace, first_address, slurm_place
from tests.support.engine_double import make_run

STEP = {
    "SLURM_JOB_ID": "12345",
    "SLURM_CLUSTER_NAME": "box",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}


def _place(**changed: str) -> SlurmPlace:
    return slurm_place(STEP | changed, lambda: ["bash", "slurmstepd", "systemd"], lambda _: "gpu03")


def test_the_place_of_a_task_is_that_of_its_node() -> None:
    place = _place(SLURM_RESTART_COUNT="1")
    assert (place.node, place.nodes, place.restarts) == (1, 2, 1)
    assert place.rendezvous == "gpu03:20345"
    assert place.job == "slurm:box:12345"


def test_the_first_node_is_named_by_the_address_that_slurm_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        "#!/bin/sh\n"
        'if [ "$2" = hostnames ]; then echo gpu03; echo gpu04; exit; fi\n'
        'echo "NodeName=$3 Arch=x86_64"; echo "   NodeAddr=10.1.2.3 NodeHostName=$3 Port=0"\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert first_address("gpu[03-04]") == "10.1.2.3"
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ConfigError, match=r"scontrol show hostnames .* failed"):
        first_address("gpu[03-04]")


def test_every_job_number_gives_a_port_that_a_user_may_open() -> None:
    ports = {int(_place(SLURM_JOB_ID=str(n)).rendezvous.split(":")[1]) for n in range(1, 90_000, 7)}
    assert min(ports) >= 1024
    assert max(ports) < 32_768


@pytest.mark.parametrize("missing", [name for name in STEP if name != "SLURM_CLUSTER_NAME"])
def test_without_a_step_there_is_no_place(missing: str) -> None:
    left = {name: value for name, value in STEP.items() if name != missing}
    with pytest.raises(ConfigError, match=f"not a task of a SLURM job .*{missing}"):
        slurm_place(left, lambda: ["slurmstepd"], lambda _: "gpu03")


def test_variables_left_behind_by_a_job_are_not_believed() -> None:
    with pytest.raises(ConfigError, match="slurmstepd did not start this process"):
        slurm_place(STEP, lambda: ["bash", "sshd"], lambda _: "gpu03")


def test_several_tasks_on_a_node_are_refused() -> None:
    with pytest.raises(ConfigError, match="step of 8 tasks on 2 nodes"):
        _place(SLURM_STEP_NUM_TASKS="8")


def _options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{"nodes": None, "node_rank": None, "rendezvous": None, "job": ""} | given
    )


def test_the_job_decides_what_the_command_line_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    alone_on_it = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
    monkeypatch.setattr(place_module, "slurm_place", lambda _: _place(**alone_on_it))
    alone = cluster_of(_options(nodes="slurm"))
    assert (alone.launch, alone.nodes, alone.leads) == (None, None, True)
    assert alone.job == "slurm:box:12345"
    with pytest.raises(ConfigError, match="which the job decides"):
        cluster_of(_options(nodes="slurm", node_rank=0))
    assert cluster_of(_options()) == Cluster()


def test_a_job_that_was_started_again_goes_on_with_its_own_run(tmp_path: Path) -> None:
    place = _place(SLURM_RESTART_COUNT="1")
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    root = tmp_path / "runs"
    root.mkdir()
    for number, (run, job) in enumerate(zip(runs, ("slurm:box:1", place.job), strict=True)):
        text = run.identity_file.read_text()
        assert '"job": ""' in text
        run.identity_file.write_text(text.replace('"job": ""', f'"job": "{job}"'))
        run.path.rename(root / f"run-{number}")
    (root / "run-2").mkdir()
    (root / "run-2" / "run.json").write_text("no json")
    found = Cluster(slurm=place).run_to_go_on(root)
    assert found is not None
    assert found.id == "run-1"
    assert Cluster(slurm=_place()).run_to_go_on(root) is None
    assert Cluster().run_to_go_on(root) is None
