"""`python -m tests.simulation [--schedules N] [--seed S]`: play schedules, name failing seeds."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from .schedule import play

_SHOWN = 10


def main() -> int:
    """Play schedules one after the other; return 1 if one broke what must hold."""
    options = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    options.add_argument("--schedules", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0, help="of the first schedule")
    asked = options.parse_args()
    logging.disable(logging.CRITICAL)
    started, happened, failed = time.monotonic(), 0, []
    for seed in range(asked.seed, asked.seed + asked.schedules):
        try:
            happened += play(seed)
        except Exception as error:  # noqa: BLE001 -- the others are played too
            failed.append(seed)
            if len(failed) <= _SHOWN:
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                if asked.schedules == 1:
                    traceback.print_exc()
    seconds = time.monotonic() - started
    print(
        f"{asked.schedules:,} schedules, {happened:,} things happened, failed {len(failed)}, "
        f"{asked.schedules / seconds:,.0f} schedules / s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
