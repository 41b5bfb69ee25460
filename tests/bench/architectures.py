"""Train every architecture for three steps, with and without CUDA graphs, beside plain training.

    python -m tests.bench.architectures [--quantize nf4] [ARCHITECTURE...]

A row for each tiny random model: the losses of fttui with `train.fast` auto and off, and those of
a plain loop of transformers and peft over the same batches, or the reason of the refusal. On a
machine without a GPU, `auto` stands for static shapes, which is what graphs are captured from.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils import logging

from tests.support.architectures import SIZES, Trial, try_architecture


@dataclass(frozen=True)
class Row:
    """What three steps of one architecture gave."""

    architecture: str
    trial: Trial

    @property
    def line(self) -> str:
        """The row of the table."""
        trial = self.trial
        parts = [f"{name} {text}" for name, text in trial.texts.items()]
        return f"{self.architecture:18} {trial.verdict:9} {'  '.join(parts)}"


def main() -> int:
    """Print the table; return 1 if a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architectures", nargs="*", default=list(SIZES))
    parser.add_argument("--quantize", default="none", choices=["none", "nf4"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wrong = 0
    for architecture in options.architectures:
        with tempfile.TemporaryDirectory() as folder:
            trial = try_architecture(architecture, Path(folder), device, options.quantize)
            row = Row(architecture, trial)
        print(row.line, flush=True)
        wrong += row.trial.verdict == "wrong"
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
