"""Make the run folders of `tests/data/cb82d2e` and their facts, with the code of commit cb82d2e.

    git worktree add /tmp/fttui cb82d2e     # with a virtual environment that imports this tree
    cp -r tests/compat /tmp/fttui/tests/ && cd /tmp/fttui
    python -m tests.compat.make_runs /tmp/cb82d2e

The module uses names of that commit, so it runs there and nowhere else. Each run has engine
processes of its own:

sft          Two processes (stopped, resumed). LR scale, percentile clip, autopilot, pause,
             evaluation, sample, note, gradients and skipped data; a step refused because of a NaN;
             a pinned checkpoint with a note; a loss that jumps, its alarm and report, and the
             recovery from it (timeline 2). Moving average, AdamW. It ends at step 12 of 24.
contrastive  InfoNCE with a learned temperature and GradCache, Lion. Killed at step 6 of 8, two
             steps after its checkpoint.
dpo          Adafactor. Stopped at step 4 of 8 while paused.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .states import counters, machine, tensor_hashes

CONFIG = """
name: {name}
task: {task}
model: {{id: model, quantize: none}}
adapter: {{r: 2, alpha: 8, dropout: 0.1}}
data: {{train: {data}, max_length: 32, eval_fraction: 0.1}}
contrastive: {{kind: {kind}, weight: 0.5, hard_negatives: 0}}
train: {{batch: 4, accumulate: 2, lr: 0.01, schedule: linear, warmup: 2}}
checkpoint: {{every: 4, keep: 1}}
hub: {{idle_s: 5}}
"""
SETS: dict[str, list[str]] = {
    "sft": ["train.steps=24", "train.ema=0.9", "eval.every=6", "policy.probation=16"],
    "contrastive": ["train.steps=8", "train.optimizer=lion", "train.lr=0.002",
                    "contrastive.learn_temperature=true", "contrastive.cross_accumulation=on"],
    "dpo": ["train.steps=8", "train.optimizer=adafactor"],
}  # fmt: skip
SFT_FIRST: dict[str, Any] = {
    "commands": {
        2: ["lr scale 0.5", "clip p90", "note half the rate from here"],
        3: ["pause"],
        6: ["checkpoint pin before the jump", "gradients"],
        7: ["stop"],
    },
    "states": {"PAUSED": ["eval", "sample say 7", "skip 1", "resume"]},
}
SFT_SECOND: dict[str, Any] = {
    "commands": {8: ["policy autopilot off"], 11: ["recover"], 12: ["clip p90", "stop"]},
}
CONTRASTIVE: dict[str, Any] = {"commands": {2: ["lr set 0.001"]}, "kill": 6}
DPO: dict[str, Any] = {"commands": {3: ["run 1"]}, "states": {"PAUSED": ["stop"]}}


def main() -> None:
    """Make the folder named on the command line and everything in it."""
    root = Path(sys.argv[1])
    root.mkdir(mode=0o755)
    _inputs(root)
    context = get_context("fork")
    for target, options in (
        (_engine, (_new_run(root, "sft"), SFT_FIRST, None, {5: float("nan")})),
        (_engine, (root / "sft", SFT_SECOND, "last", {10: 12.0, 11: 12.0})),
        (_engine, (_new_run(root, "contrastive"), CONTRASTIVE, None, {})),
        (_engine, (_new_run(root, "dpo"), DPO, None, {})),
        (_facts, (root,)),
    ):
        process: Any = context.Process(target=target, args=options)
        process.start()
        process.join()
        print(target.__name__, options[0], "→", process.exitcode)


def _inputs(root: Path) -> None:
    tiny = importlib.import_module("tests.support.tiny")
    training = importlib.import_module("tests.support.training")
    tiny.tiny_llama(root, hidden=16, layers=1).rename(root / "model")
    training.write_texts(root / "texts.jsonl", 320)
    training.write_pairs(root / "pairs.jsonl", 100)
    training.write_preferences(root / "preferences.jsonl", 100)


def _new_run(root: Path, name: str) -> Path:
    load = importlib.import_module("fttui.engine.config.load")
    layout = importlib.import_module("fttui.engine.run.layout")
    data = {"sft": "texts", "contrastive": "pairs", "dpo": "preferences"}[name]
    kind = "infonce" if name == "contrastive" else "off"
    path = root / f"{name}.yaml"
    path.write_text(CONFIG.format(name=name, task=name, data=f"{data}.jsonl", kind=kind))
    loaded = load.load_config(path, SETS[name])
    run = layout.create_run(
        root, name=name, config=path, source=loaded.source, resolved=loaded.resolved,
        overrides=SETS[name], version="0.1.0",
    )  # fmt: skip
    identity = json.loads(run.identity_file.read_text()) | {"id": name}
    run.identity_file.write_text(json.dumps(identity, indent=2))
    run.path.rename(root / name)
    path.unlink()
    return root / name


def _engine(run: Path, wanted: dict[str, Any], resume: str | None, odd: dict[int, float]) -> None:
    """Run the real engine with commands sent at given steps instead of a hub."""
    torch = importlib.import_module("torch")
    training = importlib.import_module("tests.support.training")
    engine: Any = importlib.import_module("fttui.engine.__main__")
    control = importlib.import_module("fttui.engine.run.control")
    layout = importlib.import_module("fttui.engine.run.layout")
    states = importlib.import_module("fttui.engine.protocol.states")
    torch.set_num_threads(1)
    script = training.Script(
        commands=dict(wanted.get("commands", {})),
        states={states.RunState[k]: v for k, v in wanted.get("states", {}).items()},
    )
    if "kill" in wanted:
        script.calls[wanted["kill"]] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    writer = control.ControlWriter(layout.RunDirectory(run))
    engine.Chronicle = lambda publisher: training.ScriptedChronicle(publisher, writer, script)
    engine.launch_hub = lambda run: None
    _odd(odd)
    arguments = [str(run), *(["--from", resume] if resume else [])]
    sys.exit(engine.main(arguments))


def _odd(factors: dict[int, float]) -> None:
    """Multiply the losses of some steps the first time they are trained."""
    trainer = importlib.import_module("fttui.engine.train.trainers").TextTrainer
    compute_loss = trainer.compute_loss
    seen: list[int] = []

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, *args, **kwargs)
        if not self.model.training:
            return loss
        seen.append(self.state.global_step + 1)
        first = seen.count(seen[-1]) <= 2
        return loss * factors.get(seen[-1], 1.0) if first else loss

    trainer.compute_loss = changed


def _facts(root: Path) -> None:
    """Write the state that cb82d2e loads from the folders, and the steps it trains from there."""
    (root / "contrastive" / "journal.reserve").unlink()  # 512 KiB of zeros, set aside for the end
    runs = {name: _facts_of(root, name) for name in SETS}
    facts = {"made_at": str(root), "machine": machine(), "runs": runs}
    (root / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


def _facts_of(root: Path, name: str) -> dict[str, Any]:
    events = importlib.import_module("fttui.engine.protocol.events")
    ledger = importlib.import_module("fttui.engine.run.ledger").Ledger
    layout = importlib.import_module("fttui.engine.run.layout")
    training = importlib.import_module("tests.support.training")
    summary = importlib.import_module("fttui.engine.run.registry").summarize
    run = layout.RunDirectory(root / name)
    kinds = [type(record.event).__name__ for record in training.read_records(run)]
    went_on = training.play(_copy(root, name), resume="last", name=name)
    old = len(kinds)
    steps = [r for r in went_on.records[old:] if isinstance(r.event, events.StepFinished)]
    summarized = summary(run)
    return {
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "summary": {
            key: getattr(summarized, key) for key in ("step", "total_steps", "timeline", "loss")
        } | {"state": str(summarized.state.value)},
        "checkpoints": {
            one.name: _loaded(root, name, one.name) for one in ledger(run).all()
        },
        "continued": [
            {
                "step": r.step, "timeline": r.timeline, "loss": r.event.loss.hex(),
                "grad_norm": r.event.grad_norm.hex(), "lr": r.event.lr.hex(),
                "lr_scale": r.event.lr_scale, "clip": r.event.clip and r.event.clip.hex(),
            }
            for r in steps
        ],
    }  # fmt: skip


def _loaded(root: Path, name: str, checkpoint: str) -> dict[str, Any]:
    """Load a checkpoint, save the live state at once, and check that both are equal."""
    ledger = importlib.import_module("fttui.engine.run.ledger").Ledger
    training = importlib.import_module("tests.support.training")
    copy = _copy(root, name)
    script = training.Script(early=["checkpoint", "stop no-save"])
    training.play(copy, script, resume=checkpoint, name=name)
    again = ledger(copy).all()[-1]
    assert again.name != checkpoint
    live, file = copy.checkpoints / again.name, root / name / "checkpoints" / checkpoint
    hashes, stored = tensor_hashes(live), tensor_hashes(file)
    changed = [key for key in hashes.keys() | stored.keys() if hashes.get(key) != stored.get(key)]
    assert all(key.endswith("/lr") for key in changed), changed  # set anew at every update
    return {"tensors": hashes, "counters": counters(live)}


@functools.cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp())


def _copy(root: Path, name: str) -> Any:
    layout = importlib.import_module("fttui.engine.run.layout")
    to = Path(tempfile.mkdtemp(dir=_scratch())) / name
    shutil.copytree(root / name, to)
    return layout.RunDirectory(to)


if __name__ == "__main__":
    main()
