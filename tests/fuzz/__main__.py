"""`python -m tests.fuzz [--inputs N] [--only NAME] [--seed S]`: the long form, with its rate.

Exits 1 at inputs that break a parser; each is printed with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from .parsers import Parser, parsers
from .test_parsers import try_mutants

_AT_ONCE = 500
_SLOW_S = 2.0


def main() -> int:
    """Give every parser its share of the inputs."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--inputs", type=int, default=10_000_000, help="of all parsers together")
    options.add_argument("--only", default="", help="a part of a parser's name")
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    logging.disable(logging.CRITICAL)
    chosen = [parser for parser in parsers() if asked.only in parser.name]
    broken = 0
    for parser in chosen:
        whole = sum(each.share for each in chosen)
        broken += _fuzz(parser, int(asked.inputs * parser.share / whole), asked.seed)
    return 1 if broken else 0


def _fuzz(parser: Parser, inputs: int, seed: int) -> int:
    started, slowest = time.monotonic(), 0.0
    found: Counter[str] = Counter()
    batches = max(1, inputs // _AT_ONCE)
    for batch in range(batches):
        began = time.monotonic()
        try:
            try_mutants(parser, seed * 2**32 + batch, _AT_ONCE)
        except Exception as error:  # noqa: BLE001 -- the other parsers are tried too
            what = f"{type(error).__name__}: {error}"[:100]
            if not found[what]:
                print(
                    f"{parser.name}: seed {seed * 2**32 + batch}: {what} {error.__notes__}"[:2000]
                )
            found[what] += 1
        slowest = max(slowest, time.monotonic() - began)
    seconds = time.monotonic() - started
    tried = batches * _AT_ONCE
    print(
        f"{parser.name:<20} {tried:>10,} inputs  {tried / max(seconds, 1e-9):>8,.0f} / s  "
        f"slowest {_AT_ONCE}: {slowest:.2f} s  broken {sum(found.values())}",
        flush=True,
    )
    return sum(found.values()) + (slowest > _SLOW_S * _AT_ONCE)


if __name__ == "__main__":
    sys.exit(main())
