"""A rank of `tests.bench.sharded`: it plays runs, and rank 0 compares or measures them."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import fttui.engine.model.load as load
import fttui.engine.train.session as session
from fttui.engine.config.load import read_resolved
from fttui.engine.config.memory.estimate import GIB, estimate_memory, read_architecture
from fttui.engine.model.host_embedding import make_lean
from fttui.engine.model.precision import compute_dtype
from fttui.engine.model.streaming.weights import make_streamed
from fttui.engine.protocol.events import LogEmitted, Record, RunStarted, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace, leave_place, take_place
from tests.support.shaped_run import Shaped, shaped_run
from tests.support.shapes import random_llama
from tests.support.tiny import byte_tokenizer
from tests.support.training import Script, new_run, play, read_records

from .random_models import shape_of

if TYPE_CHECKING:
    from .sharded import Case

STEPS = 6
WARM_STEPS = 2
PATIENCE_S = 300.0
"""For another rank in a collective; the limit of a row is shorter."""


def compared(case: Case, folder: Path, rank: int) -> dict[str, Any]:
    """Play a run straight, the same with a rollback, and one in fp32; compare them."""
    place = take_place(PATIENCE_S)
    runs = _shared(place, folder, lambda: _tiny_runs(case, folder))
    scripts = {"rolled back": Script({5: ["rollback 2"]})}
    for name, run in runs.items():
        play(run, scripts.get(name), place=place)
    leave_place()
    if rank:
        return {}
    records = {name: read_records(run) for name, run in runs.items()}
    straight, back = (_losses(records[name]) for name in ("straight", "rolled back"))
    started = [r.event for r in records["straight"] if isinstance(r.event, RunStarted)][-1]
    return {
        "losses_same": straight == back and len(straight) == STEPS,
        "weights_same": _same_weights(runs["straight"], runs["rolled back"]),
        "fp32": list(_losses(records["fp32"]).values()),
        "strategy": started.facts.get("strategy", "each rank has all weights"),
    }


def _tiny_runs(case: Case, folder: Path) -> dict[str, RunDirectory]:
    common = {"train__devices": case.ranks, "train__batch": 4 // case.ranks, "train__fast": "off"}
    common |= {"train__steps": STEPS, "checkpoint__every": 2, "train__deterministic": "true"}
    fp32 = {"model__precision": "fp32", "adapter__dropout": 0.0, "train__adapter_precision": "fp32"}
    forms: dict[str, dict[str, Any]] = {"straight": {}, "rolled back": {}, "fp32": fp32}
    runs = {}
    for name, sets in forms.items():
        own = folder / name.replace(" ", "-")
        own.mkdir(parents=True)
        runs[name] = new_run(own, "sft", **common, **case.sets, **sets)
    return runs


def _shared(place: RankPlace, folder: Path, make: Any) -> dict[str, RunDirectory]:
    """Return the runs that rank 0 makes, on every rank."""
    listed = folder / "runs.json"
    if place.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        listed.write_text(json.dumps({name: str(run.path) for name, run in make().items()}))
    if place.world_size > 1:
        dist.barrier()
    return {name: RunDirectory(Path(path)) for name, path in json.loads(listed.read_text()).items()}


def _losses(records: list[Record]) -> dict[int, tuple[float, float]]:
    """Return loss and norm by step, of the last time that a step was trained."""
    return {
        r.step: (r.event.loss_or_nan, r.event.grad_norm or 0.0)
        for r in records
        if isinstance(r.event, StepFinished)
    }


def _same_weights(run: RunDirectory, other: RunDirectory) -> bool:
    import safetensors.torch

    found = []
    for one in (run, other):
        store = CheckpointStore(one)
        (file,) = store.path(store.all()[-1].name).glob("*.safetensors")
        found.append(safetensors.torch.load_file(file))
    first, second = found
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def measured(case: Case, shape: str, folder: Path, rank: int) -> dict[str, Any]:
    """Train a random model and return its speed, and memory against the plan."""
    place = take_place(PATIENCE_S)
    vars(session)["load_model"] = lambda *arguments: _made(shape, *arguments)
    vars(load)["require_head"] = lambda *_: None  # a Llama has one, and a host takes long to try it
    sets = tuple(f"{key.replace('__', '.')}={value}" for key, value in case.sets.items())
    shaped = Shaped(
        shape, case.length, case.accumulate, case.ranks, "off",
        steps=WARM_STEPS + STEPS - 2, nf4="model__quantize" in case.sets, sets=sets,
    )  # fmt: skip
    runs = _shared(place, folder, lambda: {"run": shaped_run(folder / "shaped", shaped)})
    play(runs["run"], place=place)
    leave_place()
    return {} if rank else _figures(runs["run"], shape, place)


def _made(shape: str, config: Any, device: torch.device, progress: Any) -> Any:
    """Make what `load_model` loads, where it loads it."""
    tokenizer, train = byte_tokenizer(), config.train
    hosted = train.shards and not train.streams
    dtype = compute_dtype(config.model.precision, device)
    base = random_llama(
        shape, tokenizer, device, nf4=config.model.quantize == "nf4", dtype=dtype,
        host=hosted or train.streams,
    )  # fmt: skip
    if hosted:
        base.model.rotary_emb.to("cpu")
        config, device = load.on_host(config, device)
    if train.lean:
        make_lean(base, device)
    if train.streams:
        make_streamed(base, base.model.layers, device)
    return load.equip(base, tokenizer, config, device, progress)


def _figures(run: RunDirectory, shape: str, place: RankPlace) -> dict[str, Any]:
    records = read_records(run)
    timed = [(r.time, r.event) for r in records if isinstance(r.event, StepFinished)]
    late = timed[WARM_STEPS - 1 :]
    spans = [after[0] - before[0] for before, after in itertools.pairwise(late)]
    step_s = statistics.median(spans)
    by_rank = [event.rank_mem_bytes for _, event in late[1:] if event.rank_mem_bytes]
    peaks = [max(one) / GIB for one in zip(*by_rank, strict=True)]
    config = read_resolved(run.config)
    arch = read_architecture(shape_of(shape))
    plan = estimate_memory(config, arch, "cuda" if place.device.type == "cuda" else "cpu")
    warned = [r.event.text for r in records if isinstance(r.event, LogEmitted)
              and r.event.level != "info"]  # fmt: skip
    return {
        "step_s": step_s,
        "tokens_per_s": timed[-1][1].tokens / step_s,
        "peaks": peaks if place.device.type == "cuda" else [],
        "planned": plan.allocated / GIB,
        "terms": {name: round(size / GIB, 2) for name, size in plan.terms().items() if size},
        "losses": [round(event.loss_or_nan, 3) for _, event in timed[-2:]],
        "notes": "; ".join(warned) or "no warnings",
    }
