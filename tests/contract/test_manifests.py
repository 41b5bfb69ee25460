"""The manifests in docs/kubernetes.md are whole: their parts and their commands fit together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from fttui.tui.cli.cluster.place import STOPPED_CODE
from fttui.tui.cli.main import build_parser

from .links import ROOT
from .pages import blocks

PAGE = ROOT / "docs" / "kubernetes.md"
DOCUMENTS = [
    document
    for language, block in blocks(PAGE)
    if language == "yaml"
    for document in yaml.safe_load_all(block.text)
]
BY_KIND = {document.get("kind", "SkyPilot"): document for document in DOCUMENTS}
VALUES = {
    "JOB_COMPLETION_INDEX": "1",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "MASTER_PORT": "23456",
    "SKYPILOT_TASK_ID": "task",
    "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "first": "10.0.0.1",
}
"""What the cluster sets in the second pod."""


def pods(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the specifications of the pods of a manifest."""
    spec = BY_KIND[kind]["spec"]
    if kind == "Job":
        yield spec["template"]["spec"]
    elif kind == "JobSet":
        yield from (one["template"]["spec"]["template"]["spec"] for one in spec["replicatedJobs"])
    else:
        yield from (one["template"]["spec"] for one in spec["pytorchReplicaSpecs"].values())


def script_of(kind: str) -> str:
    if kind == "SkyPilot":
        return str(BY_KIND[kind]["run"])
    scripts = {pod["containers"][0]["args"][0] for pod in pods(kind)}
    (script,) = scripts  # all pods of a manifest run the same
    return str(script)


def options_of(kind: str) -> Any:
    """The options of `fttui run` in a manifest, as the second pod has them."""
    script = script_of(kind).replace("\\\n", " ")
    command = re.sub(r"\$(\w+)", lambda found: VALUES[found[1]], script[script.index("exec ") :])
    words = shlex.split(command)
    assert words[:2] == ["exec", "fttui"]
    return build_parser().parse_args(words[2:])


def test_there_is_a_manifest_for_each_way() -> None:
    assert set(BY_KIND) == {"Service", "Job", "JobSet", "PyTorchJob", "SkyPilot"}


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob", "SkyPilot"])
def test_the_second_of_two_nodes_joins_the_first(kind: str) -> None:
    options = options_of(kind)
    assert (options.nodes, options.node_rank) == (2, 1)
    host, _, port = options.rendezvous.partition(":")
    assert port.isdecimal()
    hosts = {"Job": "tune-0.tune", "JobSet": "tune-node-0-0.tune", "PyTorchJob": "tune-master-0"}
    assert host == hosts.get(kind, "10.0.0.1")
    assert options.job
    assert options.headless


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob"])
def test_pods_have_a_volume_shared_memory_and_time_to_save(kind: str) -> None:
    for pod in pods(kind):
        (container,) = pod["containers"]
        mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        assert set(mounted) == {"/workspace", "/dev/shm"}
        assert set(mounted.values()) == {volume["name"] for volume in pod["volumes"]}
        assert {"name": "FTTUI_RUNS", "value": "/workspace/runs"} in container["env"]
        assert pod["terminationGracePeriodSeconds"] > 120


def test_the_parts_of_the_indexed_job_fit_together() -> None:
    service, job = BY_KIND["Service"], BY_KIND["Job"]
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"] == options_of("Job").nodes
    port = options_of("Job").rendezvous.rpartition(":")[2]
    assert port == str(service["spec"]["ports"][0]["port"])
    final = spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
    assert not {0, 11, 13, STOPPED_CODE} & set(final)


def test_the_operator_starts_a_stopped_pod_again() -> None:
    roles = BY_KIND["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
    assert {role["restartPolicy"] for role in roles.values()} == {"ExitCode"}
    assert STOPPED_CODE >= 128
    assert sum(role["replicas"] for role in roles.values()) == options_of("PyTorchJob").nodes
    assert BY_KIND["SkyPilot"]["num_nodes"] == options_of("SkyPilot").nodes
