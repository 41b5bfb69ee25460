"""The task file for SkyPilot: what is asked for, and what every node runs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fttui.tui.cli.cluster.sky_task import SkyRequest, paths_elsewhere, task_file
from fttui.tui.cli.main import main
from tests.support.training import write_config

REQUEST = SkyRequest(
    name="fttui-a: b",
    command=["fttui", "run", "a b/my.yaml", "--set", "train.devices=4"],
    nodes=2,
    gpus=4,
    accelerator="H100",
    bucket="tune-runs",
    spot=True,
    version="1.2",
)


def test_the_file_asks_for_nodes_gpus_and_a_bucket() -> None:
    task = yaml.safe_load(task_file(REQUEST))
    assert (task["name"], task["num_nodes"], task["workdir"]) == ("fttui-a: b", 2, ".")
    assert task["resources"] == {"accelerators": "H100:4", "use_spot": True}
    assert task["file_mounts"] == {"/fttui": {"name": "tune-runs", "mode": "MOUNT_CACHED"}}
    assert "fttui[train]==1.2" in task["setup"]
    plain = replace(REQUEST, nodes=1, gpus=0, accelerator="", bucket="", spot=False)
    task = yaml.safe_load(task_file(plain))
    assert task["resources"] == {"cpus": "4+"}
    assert "file_mounts" not in task
    assert "--nodes" not in task["run"]


@pytest.mark.parametrize(("nodes", "bucket"), [(2, "tune-runs"), (1, "tune-runs"), (2, "")])
def test_a_node_starts_its_part_of_one_run(tmp_path: Path, nodes: int, bucket: str) -> None:
    (tmp_path / "fttui").write_text('#!/bin/bash\nprintf "%s|" "$@"; echo "$FTTUI_RUNS"\n')
    (tmp_path / "fttui").chmod(0o755)
    task = yaml.safe_load(task_file(replace(REQUEST, nodes=nodes, bucket=bucket)))
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_TASK_ID": "sky-7",
    }
    done = subprocess.run(
        ["bash", "-eu", "-c", task["run"]], capture_output=True, text=True, env=environment
    )
    expected = ["run", "a b/my.yaml", "--set", "train.devices=4", "--headless"]
    expected += ["--job", "sky-7"] if bucket else []
    if nodes == 2:
        expected += ["--nodes", "2", "--node-rank", "1", "--rendezvous", "10.0.0.5:29500"]
    assert done.stdout.strip().split("|") == [*expected, "/fttui/runs" if bucket else ""]


def test_paths_that_no_node_has_are_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "work", tmp_path / "other"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.jsonl").touch()
    (outside / "b.jsonl").touch()
    text = f"""
model: {{id: org/model}}
data: {{train: [{{path: a.jsonl}}, {{path: ../other/b.jsonl}}], eval: {outside}/b.jsonl}}
"""
    assert paths_elsewhere(text, inside, inside) == ["../other/b.jsonl", f"{outside}/b.jsonl"]


def test_the_command_writes_the_file_and_says_how_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["launch", "skypilot", path.name, "--nodes", "2", "--gpus", "4"]
    assert main(words) == 2
    assert "needs --accelerator" in capsys.readouterr().err
    assert main([*words, "--accelerator", "H100", "--partition", "gpu"]) == 2
    assert "got --partition, which launch skypilot does not have" in capsys.readouterr().err
    assert main([*words, "--accelerator", "H100", "--bucket", "runs"]) == 0
    said = capsys.readouterr().out
    assert "wrote fttui-tiny.sky.yaml" in said
    assert "is only on this machine" in said  # the tiny model has an absolute path
    assert "sky jobs launch fttui-tiny.sky.yaml" in said
    task = yaml.safe_load((tmp_path / "fttui-tiny.sky.yaml").read_text())
    assert "exec fttui run tiny.yaml --set train.devices=4 --headless" in task["run"]
    monkeypatch.chdir(Path("/"))
    assert main(["launch", "skypilot", str(tmp_path / "no" / "x.yaml"), "--gpus", "0"]) != 0
