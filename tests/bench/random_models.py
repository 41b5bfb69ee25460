"""Random models for whole runs, from disk as users have them where that is quick; and peaks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fttui.engine.config.memory.architecture import read_architecture
from fttui.engine.model.host_embedding import make_lean
from fttui.engine.model.load import equip, load_model
from fttui.engine.model.precision import compute_dtype
from fttui.engine.model.streaming.weights import make_streamed
from tests.support.families import family_shape, scaled_down
from tests.support.shapes import SHAPES, random_llama
from tests.support.tiny import byte_tokenizer

GIB = 2**30
SOON_WRITTEN_BYTES = 8 * GIB
"""Larger models are made on the device: writing and reading them takes longer than training."""


def soon_written(shape: str) -> bool:
    """A model of this shape is on disk in seconds."""
    arch = read_architecture(shape_of(shape))
    return 2 * (arch.linear_params + arch.other_params) <= SOON_WRITTEN_BYTES


def shape_of(shape: str, layers: int | None = None) -> dict[str, Any]:
    """Return the configuration of a Llama shape or of a family; name/8 divides its widths by 8."""
    name, _, divisor = shape.partition("/")
    if name in SHAPES:
        return {"model_type": "llama", "max_position_embeddings": 8192, **SHAPES[name]}
    return scaled_down(family_shape(name, layers), int(divisor or 1))


def write_model(shape: str, folder: Path, device: str, layers: int | None = None) -> None:
    """Write a model folder; without quantization, as models are published."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    tokenizer, sizes = byte_tokenizer(), shape_of(shape, layers)
    special = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    if "text_config" in sizes:
        sizes["text_config"] = sizes["text_config"] | special
    dtype = compute_dtype("auto", torch.device(device))
    config = AutoConfig.for_model(**{**sizes, **special, "dtype": dtype})
    build = AutoModelForImageTextToText if "vision_config" in sizes else AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(device):
        build.from_config(config, dtype=dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Peaks:
    """Peaks from a moment on, whatever the run resets meanwhile; all 0 without a CUDA device."""

    def __init__(self, device: str) -> None:
        self.allocated = self.reserved = self.context = 0
        self.notes: list[str] = []
        self._on_gpu = device == "cuda"
        self._reset = torch.cuda.reset_peak_memory_stats
        if self._on_gpu:
            torch.cuda.init()  # nothing is counted before
        vars(torch.cuda)["reset_peak_memory_stats"] = self._gather_and_reset

    def begin(self) -> None:
        """What was before does not count, and what nobody uses is given back."""
        gc.collect()
        if self._on_gpu:
            torch.cuda.empty_cache()
            self._reset()
            self.allocated = self.reserved = 0

    def gather(self) -> None:
        """Take over what the device has counted."""
        if self._on_gpu:
            self.allocated = max(self.allocated, torch.cuda.max_memory_allocated())
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())

    def note_loading(self, loader: str) -> None:
        """The peak of loading, and what is there after it."""
        self.gather()
        now = torch.cuda.memory_allocated() if self._on_gpu else 0
        self.notes.append(
            f"{loader} {self.allocated / GIB:.2f} GiB at most ({self.reserved / GIB:.2f} "
            f"reserved), {now / GIB:.2f} after it"
        )

    def look(self) -> None:
        """Between two steps: what is reserved and alive, in graphs and outside of them."""
        if not self._on_gpu:
            return
        self.gather()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        self.context = total - free - torch.cuda.memory_reserved()
        sums = {"outside": [0, 0], "graphs": [0, 0]}
        for segment in torch.cuda.memory_snapshot():
            of = sums["outside" if segment["segment_pool_id"] == (0, 0) else "graphs"]
            of[0] += segment["total_size"]
            of[1] += segment["allocated_size"]
        parts = [f"{name} {now / GIB:.3f} reserved {used / GIB:.3f} alive"
                 for name, (now, used) in sums.items()]  # fmt: skip
        self.notes.append(f"peak allocated {self.allocated / GIB:.3f}, {', '.join(parts)}")

    def _gather_and_reset(self, *arguments: Any) -> None:
        self.gather()
        self._reset(*arguments)


def counted_loader(
    shape: str, peaks: Peaks, *, from_disk: bool, loaded: Callable[[Any], None]
) -> Callable[..., Any]:
    """What takes the place of `load_model` in a session; peaks begin anew when it is done.

    Args:
        shape: Of the model that is made, unless it comes from disk.
        peaks: Told what loading takes.
        from_disk: `model.id` is a folder, and the real loader reads it.
        loaded: Called with the loaded model at the end.
    """

    def load(config: Any, device: Any, progress: Any) -> Any:
        peaks.begin()
        found = (load_model if from_disk else made)(config, device, progress)
        peaks.note_loading("loading" if from_disk else "making it there")
        peaks.begin()
        loaded(found)
        return found

    def made(config: Any, device: Any, progress: Any) -> Any:
        tokenizer = byte_tokenizer()
        dtype = compute_dtype(config.model.precision, device)
        streams = config.train.streams
        base = random_llama(shape, tokenizer, device, nf4=True, dtype=dtype, host=streams)
        if config.train.lean:
            make_lean(base, device)
        if streams:
            make_streamed(base, base.model.layers, device)
        return equip(base, tokenizer, config, device, progress)

    return load
