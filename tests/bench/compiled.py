"""What compiling brings in fast mode: of what is computed number by number, or of whole layers.

    python -m tests.bench.compiled [--cases 1b:512 8b:1024] [--what fast layers layers+ …]

Every row is a whole run of ours in fast mode, in a process of its own (`tests.bench.speed` says how
it is measured), and what it computes can be compared by its first losses:

    fast          as users have it: fused by hand, gates and rotary positions compiled
    eager         fused by hand, nothing compiled
    bare          layers as transformers and PEFT have them
    layers        fused by hand, and every decoder layer's forward by `torch.compile`
    bare-layers   the same of bare layers
    half-layers   as layers; the compiler computes again what saves half of what it would keep

With + at the end activations are kept, without it layers are computed again. Compiled is in the
default mode, for fixed shapes, without CUDA graphs of its own: kernels go into ours. Rows share a
cache of kernels that is empty at first, so only the first row of a kind takes as long as a user's
first run does; the seconds to the first step include the trial step and capturing.

Needs a CUDA device; `--device cpu --cases tiny:64` tries the script out.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from pathlib import Path
from typing import Any

from .children import GROWING_SEGMENTS
from .speed import Case, measure, measured, ours, write_models

WHAT = ["fast", "eager", "fast+", "eager+", "layers+", "half-layers+", "bare-layers+", "bare+",
        "bare", "layers", "bare-layers"]  # fmt: skip
"""By worth: what does not fit into the time is left out at the end."""
MOST_GRAPHS = 256
"""That may be compiled of one function; by default a ninth is an end to compiling, in silence."""


def main() -> None:
    """Measure all ways of all cases, the way that is worth most first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["1b:512", "8b:1024"])
    parser.add_argument("--what", nargs="+", default=WHAT)
    parser.add_argument("--steps", type=int, default=3, help="measured ones, after two")
    parser.add_argument("--limit-s", type=float, default=80.0, help="of a row")
    parser.add_argument("--budget-s", type=float, default=240.0, help="no row begins after it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="of our configuration")
    options = parser.parse_args()
    places = [place.split(":") for place in options.cases]
    with tempfile.TemporaryDirectory() as folder:
        models = write_models({shape for shape, _ in places}, Path(folder), options.device)
        cases = [Case(shape, int(length), what, options.steps, options.device,
                      tuple(options.set), models.get(shape))
                 for what in options.what for shape, length in places]  # fmt: skip
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/kernels",
                  "TRITON_CACHE_DIR": f"{folder}/triton"}  # fmt: skip
        measure(cases, options.limit_s, options.budget_s, _measured, GROWING_SEGMENTS | caches)


def _measured(case: Case) -> dict[str, Any]:
    from torch._dynamo import config
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch

    from fttui.engine.train.cuda_graphs import eligibility
    from fttui.engine.train.cuda_graphs.pointwise import Kernels

    config.recompile_limit = MOST_GRAPHS
    if case.what.startswith("half"):
        functorch.activation_memory_budget = 0.5
    if not case.what.startswith("fast"):
        vars(eligibility)["kernels_for"] = lambda device: (Kernels(), "")
    change = compile_layers if "layers" in case.what else keep
    row = measured(case, functools.partial(ours, change=change))
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    kernels = counters["inductor"]
    known, new = kernels["fxgraph_cache_hit"], kernels["fxgraph_cache_miss"]
    said = f"{graphs} graphs with {breaks} breaks, {known} known and {new} new" if graphs else ""
    return row | {"notes": "; ".join(note for note in (row["notes"], said) if note)}


def keep(loaded: Any) -> None:
    """Compile nothing."""


def compile_layers(loaded: Any) -> None:
    """The forward of every decoder layer, inside of what computes activations again."""
    import torch

    from fttui.engine.model.hidden import backbone_of

    backbone: Any = backbone_of(loaded.model)
    for layer in backbone.layers:
        layer.forward = torch.compile(layer.forward, dynamic=False)


if __name__ == "__main__":
    main()
