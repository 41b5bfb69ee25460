"""What the engine does on a real GPU: exactness, steps, memory against the estimate, commands.

    python -m tests.bench.gpu [--shape 1b|8b|tiny] [--length 1024]

Needs a CUDA device and nothing else: the model has random weights in a real shape. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
}  # fmt: skip
"""Llama-3.2-1B and Llama-3.1-8B, without their weights."""


def main() -> None:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--length", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--skip-exactness", action="store_true")
    parser.add_argument("--rollbacks", type=int, default=1)
    parser.add_argument("--pause-s", type=float, default=0.0, help="rest before resuming")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of a collective")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.skip_exactness:
            exactness(Path(folder))
        show(steps(Path(folder), options))


def show(rows: dict[str, Any]) -> None:
    """Print rows of a table."""
    for name, value in rows.items():
        print(f"{name:44} {value}", flush=True)


def exactness(folder: Path) -> None:
    """Rollback and resume on the GPU against the straight run, dropout and accumulation on."""
    from tests.support.training import Script, new_run, play

    for task in ("contrastive", "sft"):
        for quantize in ("none", "nf4"):
            sets = {"train__deterministic": "true", "model__quantize": quantize}
            made = [folder / f"{task}-{quantize}-{i}" for i in range(3)]
            for path in made:
                path.mkdir()
            straight = play(new_run(made[0], task, **sets), device="cuda").losses()
            back = play(new_run(made[1], task, **sets), Script({6: ["rollback 4"]}), device="cuda")
            run = new_run(made[2], task, **sets)
            play(run, Script({3: ["stop"]}), device="cuda")
            resumed = play(run, resume="last", device="cuda").losses()
            after = {step: loss for step, loss in straight.items() if step > 4}
            same = back.losses(timeline=2) == after
            show({
                f"exact: rollback, {task}, {quantize}": same,
                f"exact: stop and resume, {task}, {quantize}": resumed == straight,
            })  # fmt: skip


def steps(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A headless run with commands on the way."""
    from tests.support.cli import events, fttui, only_run, start

    runs = folder / "runs"
    config = write_config(folder, options)
    check = fttui("check", str(config), runs=runs).stdout
    print(check, flush=True)
    process = start("run", str(config), "--headless", runs=runs)
    wait_for_step(runs, 5, process)
    run = only_run(runs)
    rows: dict[str, Any] = {}
    for words in (["lr", "scale", "0.5"], ["pause"], ["checkpoint"],
                  *[["rollback", "last"]] * options.rollbacks, ["clip", "p90"], ["eval"],
                  ["pause", "release"], ["resume"]):  # fmt: skip
        if words == ["resume"]:
            time.sleep(options.pause_s)
        started = time.monotonic()
        result = fttui("ctl", run, *words, runs=runs)
        took = time.monotonic() - started
        rows[f"ctl {' '.join(words)}"] = f"exit {result.returncode}, {took:.2f} s"
        if result.returncode:
            print(result.stdout, result.stderr, flush=True)
    output, _ = process.communicate(timeout=500)
    rows["exit code"] = process.returncode
    if process.returncode:
        print(output[-6000:], flush=True)
    return {**rows, **figures(events(run, runs))}


def figures(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the journal says about the steps."""
    done = [event for event in found if event["type"] == "StepFinished"]
    late = sorted(done[5:], key=lambda event: event["step_s"])
    middle = late[len(late) // 2]
    started = [event for event in found if event["type"] == "RunStarted"][-1]
    rollback = [event["seconds"] for event in found if event["type"] == "RolledBack"]
    saves = [event for event in found if event["type"] == "CheckpointSaved"]
    lent = [e["text"] for e in found if e["type"] == "LogEmitted" and "GPU memory" in e["text"]]
    first_back = next((e["seq"] for e in found if e["type"] == "RolledBack"), 0)
    keys = ("step_s", "data_s", "compute_s", "optimizer_s", "tokens_per_s", "skew_s",
            "gpu_util", "gpu_temp_c", "gpu_power_w")  # fmt: skip
    gib = 2**30
    return {
        "devices": started["devices"],
        "loss first 3": [round(event["loss"], 3) for event in done[:3]],
        "loss last 3": [round(event["loss"], 3) for event in done[-3:]],
        **{f"median step: {key}": middle[key] for key in keys},
        "peak allocated GiB": round(max(e["mem_allocated_bytes"] or 0 for e in done) / gib, 3),
        "peak before the rollbacks, bytes": peak(e for e in done if e["seq"] < first_back),
        "peak of them and the steps after, bytes": peak(e for e in done if e["seq"] > first_back),
        "lent": lent,
        "reserved GiB": round(max(e["mem_reserved_bytes"] or 0 for e in done) / gib, 3),
        "rollback s, slowest": max(rollback, default=None),
        "checkpoint s": [round(event["seconds"], 2) for event in saves],
        "checkpoint MiB": saves[-1]["size_bytes"] / 2**20 if saves else None,
        "last events": [event["type"] for event in found[-2:]],
    }


def peak(done: Iterable[dict[str, Any]]) -> int:
    """Most memory allocated at once, from the end of the step before these on."""
    return max((event["mem_allocated_bytes"] or 0 for event in done), default=0)


def wait_for_step(runs: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until a step has been journaled, or show why it never will be."""
    from tests.support.cli import events, only_run
    from tests.support.waiting import until

    def reached() -> bool:
        if process.poll() is not None:
            sys.exit(process.communicate()[0][-4000:])
        if not list(runs.glob("*/journal.log")):
            return False
        return any(e["type"] == "StepFinished" and e["step"] >= step
                   for e in events(only_run(runs), runs))  # fmt: skip

    until(reached, 400)


def write_config(folder: Path, options: argparse.Namespace) -> Path:
    """A config over a random model of the shape and texts of the length."""
    model = folder / "model"
    make = [sys.executable, "-c", "import sys; from tests.bench.gpu import make_model; "
            "make_model(sys.argv[1], sys.argv[2])", str(model), options.shape]  # fmt: skip
    subprocess.run(make, check=True, env={**os.environ})
    rows = [{"text": " ".join(f"{number * 7 + i:04d}" for i in range(options.length))}
            for number in range(64)]  # fmt: skip
    data = folder / "texts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "gpu.yaml"
    config.write_text(
        f"""
name: gpu
task: sft
model: {{id: {model}}}
data: {{train: {data}, max_length: {options.length}, eval_fraction: 0.1}}
train: {{steps: {options.steps}, batch: 1, accumulate: 4, lr: 1e-4, devices: {options.devices},
        collective_timeout_s: {options.timeout_s}}}
checkpoint: {{every: 10}}
"""
    )
    return config


def make_model(path: str, shape: str) -> None:
    """Save a random Llama of a shape in bf16, with a byte-level tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.support.tiny import byte_tokenizer

    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        **SHAPES[shape],
        tie_word_embeddings=shape != "8b",
        max_position_embeddings=8192,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


if __name__ == "__main__":
    main()
