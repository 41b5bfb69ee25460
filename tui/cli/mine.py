"""`mine`: find hard negatives for the pairs of a file."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from fttui.engine.errors import ConfigError

from .options import Commands, add_columns, say
from .preflight.extras import require_package
from .preflight.training_packages import require_training_packages

_RANGES = (
    ("relative_margin", 0, 1),
    ("margin", 0, 2),
    ("max_score", -1, 1),
    ("min_score", -1, 1),
)
"""Smallest and largest value of each limit on a cosine or on a difference of cosines."""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `mine` of `fttui`."""
    parser = commands.add_parser("mine", help="find hard negatives for pairs, with a local model")
    parser.add_argument("source", metavar="FILE", help="the pairs, in any form that training reads")
    parser.add_argument(
        "--model", metavar="DIR", type=Path, required=True,
        help="folder of a model for sentence-transformers, such as an export",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", metavar="OUT", type=Path, required=True, help="the JSONL file to write"
    )
    add_columns(parser)
    parser.add_argument(
        "--negatives", metavar="N", type=int, default=3, help="negatives per pair (default: 3)"
    )
    parser.add_argument(
        "--skip", metavar="K", type=int, default=0,
        help="leave out the K nearest texts, which may be positives without a label (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--relative-margin", metavar="R", type=float, default=0.05,
        help="leave out texts whose cosine is above (1 - R) times that of the positive (default: "
        "0.05)",
    )  # fmt: skip
    parser.add_argument(
        "--margin", metavar="M", type=float,
        help="leave out texts whose cosine is less than M below that of the positive",
    )  # fmt: skip
    parser.add_argument(
        "--max-score", metavar="S", type=float, help="leave out texts with a cosine above S"
    )
    parser.add_argument(
        "--min-score", metavar="S", type=float, help="leave out texts with a cosine below S"
    )
    parser.add_argument(
        "--corpus", metavar="FILE", type=Path, help="search among the lines of this file as well"
    )
    parser.add_argument(
        "--batch", metavar="B", type=int, default=32, help="texts per pass (default: 32)"
    )
    parser.set_defaults(handler=_mine)


def _mine(options: argparse.Namespace) -> int:
    from .data_check.process import data_messages, print_lines

    require_training_packages("fttui mine")
    require_package("sentence_transformers", "fttui mine", extra="embeddings")
    refuse_limits(options)
    asked = {
        "source": options.source,
        "out": str(options.out),
        "model": str(options.model),
        "negatives": options.negatives,
        "skip": options.skip,
        "margin": options.margin,
        "relative_margin": options.relative_margin,
        "max_score": options.max_score,
        "min_score": options.min_score,
        "corpus": None if options.corpus is None else str(options.corpus),
        "batch": options.batch,
        "columns": dict(options.column),
    }
    given = msgspec.json.encode(asked).decode()
    for _ in print_lines(data_messages("mine", [], given), say):
        pass  # every message of this command is a line, which is printed already
    return 0


def refuse_limits(options: argparse.Namespace) -> None:
    """Refuse what cannot be mined before a model is loaded.

    Raises:
        ConfigError: a number is out of its range, or a file or folder is missing or exists.
    """
    for name, low in (("negatives", 1), ("batch", 1), ("skip", 0)):
        if getattr(options, name) < low:
            raise ConfigError(f"--{name}: got {getattr(options, name)}, expected {low} or more")
    for name, low, high in _RANGES:
        value = getattr(options, name)
        # A comparison with NaN is false, so that NaN is refused as well.
        if value is not None and not low <= value <= high:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag}: got {value}, expected a number from {low} to {high}")
    least, most = options.min_score, options.max_score
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"--min-score {least} is above --max-score {most}, so that no text would be left; "
            "exchange them"
        )
    if not options.model.is_dir():
        raise ConfigError(
            f"--model: {options.model}: no such folder; export one with fttui export RUN --merged"
        )
    if options.corpus is not None and not options.corpus.is_file():
        raise ConfigError(f"--corpus: {options.corpus}: no such file; check the path")
    if options.out.exists():
        raise ConfigError(f"{options.out} exists; name another file, or remove it")
