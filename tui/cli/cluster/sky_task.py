"""The task file of a run for SkyPilot, for people to read and change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

_LONGEST_PATH = 1024
"""Characters; longer texts of a configuration are templates."""
PORT = 29500
"""Port of node 0 at which the nodes meet."""
RUNS = "/fttui"
"""Where the bucket is on every node."""


@dataclass(frozen=True)
class SkyRequest:
    """What a run asks SkyPilot for."""

    name: str
    command: Sequence[str]
    """The `fttui run` of one node, without what differs between nodes."""
    nodes: int
    gpus: int
    """GPUs per node; 0 asks for none."""
    accelerator: str = ""
    """Name of the GPU as SkyPilot knows it, such as H100; empty without GPUs."""
    bucket: str = ""
    """Bucket that keeps the run folder; empty keeps it on the disk of node 0."""
    spot: bool = False
    """Whether machines that can be preempted are asked for."""
    version: str = ""
    """Version of fttui that is installed there; empty for the newest."""


def task_file(request: SkyRequest) -> str:
    """Return the text of the task file, whose working directory is the current folder.

    With a bucket, a managed job resumes the same run after a preemption.
    """
    package = f"fttui[train]=={request.version}" if request.version else "fttui[train]"
    return "\n".join(
        [
            f"name: {json.dumps(request.name)}",
            f"num_nodes: {request.nodes}",
            "# This folder is copied to every node.",
            "workdir: .",
            *_resources(request),
            *_mounts(request),
            "setup: |",
            f"  pip install {quote(package)}",
            "run: |",
            *(f"  {line}" for line in _script(request)),
            "",
        ]
    )


def paths_elsewhere(config: str, folder: Path, workdir: Path) -> list[str]:
    """Return the existing local paths in a configuration that are not copied to the nodes.

    Args:
        config: text of the configuration.
        folder: its folder, in which relative paths are looked up, too.
        workdir: the folder that is copied, in which they are looked up first.
    """
    import yaml  # here, so that other commands start without it

    found = []
    for text in _texts(yaml.safe_load(config)):
        path = Path(text).expanduser()
        places = [path] if path.is_absolute() else [workdir / path, folder / path]
        here = next((one for one in places if len(text) < _LONGEST_PATH and one.exists()), None)
        copied = here is not None and here.resolve().is_relative_to(workdir.resolve())
        if here is not None and (path.is_absolute() or not copied):
            found.append(text)
    return list(dict.fromkeys(found))


def _texts(tree: Any) -> Iterator[str]:
    """Yield all texts of a configuration that may be paths."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _texts(value)


def _resources(request: SkyRequest) -> list[str]:
    gpus = f"  accelerators: {json.dumps(f'{request.accelerator}:{request.gpus}')}"
    lines = [gpus] if request.gpus else ["  cpus: 4+"]
    return ["resources:", *lines, *(["  use_spot: true"] if request.spot else [])]


def _mounts(request: SkyRequest) -> list[str]:
    if not request.bucket:
        return []
    return [
        "# The run folder is kept here, also after the machines are gone.",
        "file_mounts:",
        f"  {RUNS}:",
        f"    name: {json.dumps(request.bucket)}",
        "    mode: MOUNT_CACHED",
    ]


def _script(request: SkyRequest) -> list[str]:
    """Return the lines that every node runs; SkyPilot sets the variables."""
    words = "exec " + " ".join(map(quote, [*request.command, "--headless"]))
    before = []
    if request.bucket:
        before = [f"export FTTUI_RUNS={RUNS}/runs"]
        words += ' --job "$SKYPILOT_TASK_ID"'
    if request.nodes == 1:
        return [*before, words]
    return [
        *before,
        "# The first address is that of node 0, where the run and its journal are.",
        'first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
        f"{words} \\",
        '  --nodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" \\',
        f'  --rendezvous "$first:{PORT}"',
    ]
