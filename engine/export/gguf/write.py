"""Write a checkpoint as a GGUF file, with a Modelfile for Ollama and a model card."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer

from ...config.schema import RunConfig
from ...config.sections.gguf_formats import DIRECT, DirectType
from ...errors import ModelError
from ...model.progress import Progress
from ...model.vision import sees_images
from ..card import QUARANTINE
from ..checkpoint import TrainedFiles
from ..folder import require_space
from ..lineage import Lineage
from ..write import base_settings, write_merged
from .families import unsupported
from .llama_cpp import LlamaCpp
from .modelfile import modelfile

_GET_LLAMA_CPP = (
    "get llama.cpp (https://github.com/ggml-org/llama.cpp) and name its folder with --llama-cpp or "
    "$LLAMA_CPP_DIR"
)


@dataclass(frozen=True)
class GgufOptions:
    """How a GGUF file is to be written."""

    kind: str
    """Number format of the weights, one of `gguf_formats.TYPES`."""
    llama_cpp: LlamaCpp


def require_writable(config: RunConfig, options: GgufOptions) -> None:
    """Check, before anything is merged, that the file can be written.

    Raises:
        ModelError: A program of llama.cpp or the package gguf is needed that is not on this
            machine, or the model also takes images or is a reward model.
    """
    if config.task == "reward":
        raise ModelError(
            "a reward model gives scores, which llama.cpp and Ollama do not compute from a "
            "classifier's file; export it with --merged or --adapter"
        )
    settings = base_settings(config)
    if sees_images(settings):
        raise ModelError(
            "the model also takes images, which need a second GGUF file; export it with --merged "
            "and convert it with llama.cpp (convert_hf_to_gguf.py --mmproj)"
        )
    if options.kind not in DIRECT and options.llama_cpp.quantizer is None:
        known = ", ".join(DIRECT)
        raise ModelError(
            f"--gguf {options.kind} needs llama-quantize of llama.cpp, which is not on this "
            f"machine; {_GET_LLAMA_CPP}, or use {known}"
        )
    why = unsupported(settings.to_dict())
    if why and options.llama_cpp.converter is None:
        raise ModelError(
            f"{why}; others need convert_hf_to_gguf.py of llama.cpp, which is not on this machine: "
            f"{_GET_LLAMA_CPP}"
        )
    if options.llama_cpp.converter is None and find_spec("gguf") is None:
        raise ModelError(
            "writing GGUF needs the Python package gguf, which is not installed; run: "
            "pip install 'fttui[gguf]'"
        )


def write_gguf_folder(
    folder: Path,
    config: RunConfig,
    files: TrainedFiles,
    lineage: Lineage,
    progress: Progress,
    options: GgufOptions,
) -> list[str]:
    """Write the merged model as one GGUF file; return what it could not carry over.

    llama.cpp's own converter writes it where it is on this machine, otherwise fttui.

    Raises:
        ModelError: The base model cannot be loaded, or the model cannot be written as GGUF.
        CheckpointError: The merged weights are not finite.
        FttuiError: The disk has not enough space.
    """
    require_writable(config, options)
    merged = folder / "merged"
    merged.mkdir()
    card = write_merged(merged, config, files, lineage, progress)
    require_space(folder, _needed_bytes(merged, options.kind))
    name = f"model-{options.kind}.gguf"
    notes = _convert(merged, folder / name, config, progress, options)
    if config.task == "contrastive":
        own = config.contrastive
        instructions = {"queries": own.instruction, "documents": own.passage_instruction}
        notes += [
            f"The instruction before {of}: write {json.dumps(text)} before each of them."
            for of, text in instructions.items()
            if text
        ]
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(merged))
        text, more = modelfile(name, tokenizer, _stops(merged, tokenizer))
        (folder / "Modelfile").write_text(text, encoding="utf-8")
        notes += more
    card = replace(card, gguf=name, left_out=notes)
    (folder / "README.md").write_text(card.text(), encoding="utf-8")
    if (merged / QUARANTINE).is_file():
        shutil.copyfile(merged / QUARANTINE, folder / QUARANTINE)
    shutil.rmtree(merged)
    return notes


def _convert(
    merged: Path, target: Path, config: RunConfig, progress: Progress, options: GgufOptions
) -> list[str]:
    """Write the GGUF file of a merged model; return what it could not carry over.

    Raises:
        ModelError: The model cannot be converted or quantized.
    """
    tool, kind = options.llama_cpp, options.kind
    direct = kind if kind in DIRECT else "f16"
    whole = target if direct == kind else target.with_name("model-f16.gguf")
    notes: list[str] = []
    if tool.converter is not None:
        progress("converting with llama.cpp", 0, 1)
        tool.convert(merged, whole, direct)
    else:
        from .writer import (
            write_gguf,  # it imports gguf, which llama.cpp's converter makes needless
        )

        pooling = config.contrastive.pooling if config.task == "contrastive" else None
        number = cast(DirectType, direct)
        try:
            notes = write_gguf(merged, whole, number, config.name, progress, pooling)
        except ModelError as error:
            raise ModelError(
                f"{error}; llama.cpp's converter knows more models: {_GET_LLAMA_CPP}"
            ) from None
    if whole != target:
        progress(f"quantizing to {kind} with llama.cpp", 0, 1)
        tool.quantize(whole, target, kind)
        whole.unlink()
        notes.append(f"The precision of the weights: they are quantized to {kind}.")
    elif kind == "q8_0":
        notes.append("The precision of the weights: they are quantized to q8_0.")
    return notes


def _needed_bytes(merged: Path, kind: str) -> int:
    """Return an upper estimate of the space that the GGUF files take beside the merged model."""
    whole = sum(file.stat().st_size for file in merged.glob("*.safetensors"))
    return whole if kind in DIRECT else whole * 3 // 2


def _stops(merged: Path, tokenizer: Any) -> list[str]:
    """Return the tokens that end an answer, by the generation settings and the tokenizer."""
    path = merged / "generation_config.json"
    found = json.loads(path.read_text("utf-8")).get("eos_token_id") if path.is_file() else None
    ids = found if isinstance(found, list) else [found]
    ids = [*ids, tokenizer.eos_token_id]
    return list(
        dict.fromkeys(tokenizer.convert_ids_to_tokens(one) for one in ids if one is not None)
    )
