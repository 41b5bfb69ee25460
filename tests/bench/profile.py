"""Where the time of a step goes on a real GPU: the figures of a profile, and that they agree.

    python -m tests.bench.profile [--shapes 1b 8b] [--lengths 512] [--device cpu]

Every row is a run that is only profiled, on a model with random weights in a published shape, in a
process of its own: in fast mode and the ordinary way. Checked are what a CPU cannot show: that
kernels were recorded, that the parts on the device add up to its busy time, and the trace. Needs a
CUDA device; `--device cpu` only tries the script out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 2


def main() -> None:
    """Profile every case, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["1b"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512])
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of a row")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for shape in options.shapes:
        for length in options.lengths:
            for fast in (True, False):
                arguments = (shape, length, fast, options.accumulate, options.device)
                child = context.Process(target=_show, args=arguments, daemon=True)
                child.start()
                child.join(options.limit_s)
                if child.is_alive():
                    print(f"{shape} {length} took over {options.limit_s:.0f} s", flush=True)
                    child.kill()


def _show(shape: str, length: int, fast: bool, accumulate: int, device: str) -> None:
    from fttui.engine.protocol.events import StepsProfiled
    from fttui.tui.dialogs.profile_text import profile_lines

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        played = profiled(Path(folder), shape, length, fast, accumulate, device)
        found = played.events(StepsProfiled)[-1]
        print(f"\n{shape} T{length}, {'fast' if fast else 'ordinary'}, batch 1 × {accumulate}; "
              f"{time.monotonic() - started:.0f} s in all")  # fmt: skip
        print("\n".join(f"  {line}" for line in profile_lines(found)))
        for kernel in found.kernels[:8]:
            print(f"  {kernel.seconds * 1e3:8.2f} ms {kernel.count:8.0f} × {kernel.kind}: "
                  f"{kernel.name[:80]}")  # fmt: skip
        print("\n".join(f"  {line}" for line in checks(found)))
        trace = played.run.profiles / found.trace
        with gzip.open(trace) as file:
            events = len(json.load(file)["traceEvents"])
        print(f"  trace of {events} events, {trace.stat().st_size / 2**20:.1f} MiB", flush=True)


def checks(found: Any) -> list[str]:
    """What has to hold of a profile that saw a device."""
    if found.idle is None:
        return ["no kernel was recorded: fine on a CPU, a defect on a GPU"]
    busy_s = found.step_s * (1 - found.idle)
    parts_s = sum(part.device_s for part in found.parts)
    device = {part.name: part.device_s for part in found.parts}
    return [
        f"parts on the device {parts_s * 1e3:.2f} ms of {busy_s * 1e3:.2f} ms busy: "
        f"{'ok' if abs(parts_s - busy_s) < 0.02 * busy_s else 'NO'}",
        f"backward on the device longer than forward: "
        f"{'ok' if device['backward'] > device['forward'] else 'NO'}",
    ]


def profiled(
    folder: Path, shape: str, length: int, fast: bool, accumulate: int, device: str
) -> Any:
    """A run that warms up, is profiled and ends."""
    import fttui.engine.train.session as session
    from fttui.engine.config.load import load_config
    from fttui.engine.model.load import equip
    from fttui.engine.model.precision import compute_dtype
    from fttui.engine.run.run_dir import create_run
    from tests.support.shapes import random_llama
    from tests.support.tiny import byte_tokenizer
    from tests.support.training import play

    def load(config: Any, place: Any, progress: Any) -> Any:
        dtype = compute_dtype(config.model.precision, place)
        tokenizer = byte_tokenizer()
        base = random_llama(shape, tokenizer, place, nf4=True, dtype=dtype)
        return equip(base, tokenizer, config, place, progress)

    vars(session)["load_model"] = load
    data = folder / "texts.jsonl"
    rows = [{"text": " ".join(f"{n * 7 + i:04d}" for i in range(length // 4))} for n in range(64)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "profile.yaml"
    mode = "off" if not fast else "on" if device == "cuda" else "static"
    config.write_text(
        f"""
name: profile
task: sft
model: {{id: random, quantize: nf4}}
data: {{train: {data}, max_length: {length}, eval_fraction: 0.01, accept: [all]}}
train: {{steps: 10, batch: 1, accumulate: {accumulate}, fast: "{mode}"}}
checkpoint: {{every: 0, at_start: false}}
"""
    )
    read = load_config(config, [])
    run = create_run(folder / "runs", name="profile", config=config, source=read.source,
                     resolved=read.resolved, overrides=[], version="0")  # fmt: skip
    return play(run, device=device, profile_steps=STEPS)


if __name__ == "__main__":
    main()
