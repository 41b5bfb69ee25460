"""How many microseconds of the host a watched step takes more than a bare one, on a CPU.

    python -m tests.bench.watch_host [--kind SFT] [--clock thread|process|wall] [--parts]

One `train()` of a tiny model alternates between blocks of watched steps and of bare ones, as
`watch_gpu` does, whose intervals these are. The clock is the processor time of the training thread,
so that other processes of the machine do not count; `process` adds the threads of fttui, and `wall`
is what a user would wait. A GPU hides this time where it is the slower side. `--parts` trains once
more, with all steps watched, and prints the time of each part of the watch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from tests.bench.watch_gpu import Overhead, Size, measure, print_parts
from tests.support.foreign import Rows, common, language_model, texts, with_adapter, word_tokenizer

CLOCKS: dict[str, Callable[[], float]] = {
    "thread": time.thread_time,
    "process": time.process_time,
    "wall": time.perf_counter,
}


def _args(kind: type[Any], folder: Path, size: Size, accumulate: int, **own: Any) -> Any:
    given = common(folder, gradient_accumulation_steps=accumulate, logging_steps=50, **own)
    return kind(**given | {"max_steps": len(size.ways), "num_train_epochs": 1})


def host_trainer(folder: Path, size: Size, device: str, accumulate: int = 1) -> Any:
    """A stock trainer of all weights of a tiny model."""
    from transformers import Trainer, TrainingArguments

    rows = [{**row, "labels": row["input_ids"]} for row in _rows(size, accumulate)]
    args = _args(TrainingArguments, folder, size, accumulate)
    return Trainer(model=language_model(), args=args, train_dataset=rows)


def _rows(size: Size, accumulate: int) -> list[dict[str, Any]]:
    rows = Rows(2 * accumulate * len(size.ways))
    return [rows[index] for index in range(len(rows))]


def accumulating_trainer(folder: Path, size: Size, device: str) -> Any:
    """The same trainer with eight micro-batches per step."""
    return host_trainer(folder, size, device, accumulate=8)


def host_sft(folder: Path, size: Size, device: str) -> Any:
    """TRL's supervised trainer of an adapter."""
    from trl import SFTConfig, SFTTrainer

    rows = [{"text": text} for text in texts(8, 2 * len(size.ways))]
    return SFTTrainer(
        model=with_adapter(language_model()),
        args=_args(SFTConfig, folder, size, 1, max_length=16, bf16=False),
        train_dataset=Dataset.from_list(rows),
        processing_class=word_tokenizer(),
    )


KINDS: dict[str, Callable[[Path, Size, str], Any]] = {
    "Trainer": host_trainer,
    "Trainer, 8 micro-batches": accumulating_trainer,
    "SFT, LoRA": host_sft,
}


def row_of(name: str, found: Overhead) -> str:
    """Return a line of the table."""
    share, error = found.more_s / found.bare_s, found.half_width_s / found.bare_s
    watched = found.bare_s + found.more_s
    longer = f"{1e6 * found.more_s:+7.0f} ± {1e6 * found.half_width_s:.0f} µs"
    return (
        f"{name:26} {1e6 * found.bare_s:8.0f} µs {1e6 * watched:8.0f} µs {longer:>20} "
        f"({share:+.1%} ± {error:.1%})"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="", help="only trainers with this in their name")
    parser.add_argument("--clock", choices=list(CLOCKS), default="thread")
    parser.add_argument("--parts", action="store_true", help="what the time is spent on")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--block", type=int, default=11)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    size = Size("", "", 2, 0, options.rounds, options.block)
    print(f"{'per step':26} {'bare':>11} {'watched':>11} {'watched takes more':>20}")
    for name, build in KINDS.items():
        if options.kind in name:
            clock = CLOCKS[options.clock]
            print(row_of(name, measure(build, size, "cpu", clock)), flush=True)
            if options.parts:
                print_parts(build, size, "cpu", clock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
