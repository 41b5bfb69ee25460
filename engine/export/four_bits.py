"""Write a checkpoint as a model with weights of 4 bits, stored as GPTQ or AWQ models are."""

from __future__ import annotations

import logging
import math
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..config.schema import RunConfig
from ..data.cache.token_cache import TokenCache
from ..data.dataset import examine_stream, load_examples
from ..data.tokens.examples import Example, PackedExample, PairExample, PreferenceExample
from ..errors import CheckpointError, DataError, ModelError
from ..model.host_embedding import skeleton_of
from ..model.progress import Progress
from ..model.tokenizer import load_tokenizer
from ..model.vision import sees_images
from .card import QUARANTINE
from .checkpoint import TrainedFiles
from .folder import require_space
from .lineage import Lineage
from .write import base_settings, write_merged

GROUPS = 128, 64, 32
"""Numbers of weights that may share a scale, best known first."""
ROW_TOKENS = 512
"""Most tokens of a row of calibration data."""
_ROUNDS = {"cpu": 50, "cuda": 200}
"""Rounds in which the rounding of a layer is learned for GPTQ: the library's default on a GPU."""
_BATCH = 8
_LOADING = (
    "vLLM loads this folder; transformers does with the packages gptqmodel and optimum. The "
    "weights were quantized by auto-round."
)


@dataclass(frozen=True)
class FourBits:
    """How weights are to be quantized."""

    method: Literal["gptq", "awq"]
    rows: int
    """Most rows of calibration data."""
    device: Literal["cpu", "cuda"] = "cpu"


def require_quantizable(config: RunConfig, options: FourBits) -> int:
    """Check, before anything is merged, that the model can be quantized; return the group size.

    Raises:
        ModelError: The package for it or the GPU is missing, the model gives vectors or scores or
            takes images, or its layers cannot be divided into groups.
    """
    way = f"--{options.method}"
    if config.task in ("contrastive", "reward"):
        kind = "an embedding model" if config.task == "contrastive" else "a reward model"
        raise ModelError(f"{way} writes models that generate text, not {kind}; use --merged")
    settings = base_settings(config)
    if sees_images(settings):
        raise ModelError(f"{way} writes models of text alone, but this one takes images too; use "
                         "--merged")  # fmt: skip
    if find_spec("auto_round") is None:
        raise ModelError(
            f"{way} needs the package auto-round, which is not installed; run: "
            "pip install 'fttui[quantize]'"
        )
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device cuda: PyTorch finds no GPU; use --device cpu")
    skeleton = skeleton_of(settings, trust_remote_code=config.model.trust_remote_code)
    return group_size(layer.in_features for layer in _layers(skeleton))


def group_size(inputs: Iterable[int]) -> int:
    """Return the largest size of `GROUPS` that divides the numbers of inputs of all layers.

    Raises:
        ModelError: None does.
    """
    common = math.gcd(*inputs)
    found = next((size for size in GROUPS if common and common % size == 0), None)
    if found is None:
        raise ModelError(
            f"the inputs of the model's layers have only the common divisor {common}, and their "
            f"weights are quantized in groups of {', '.join(map(str, GROUPS))}; use --merged or "
            "--gguf"
        )
    return found


def _layers(model: Any) -> Iterator[nn.Linear]:
    """Yield the linear layers of a model except its head."""
    head = model.get_output_embeddings()
    yield from (m for m in model.modules() if isinstance(m, nn.Linear) and m is not head)


def write_four_bit_folder(
    folder: Path,
    config: RunConfig,
    files: TrainedFiles,
    lineage: Lineage,
    progress: Progress,
    options: FourBits,
) -> list[str]:
    """Write the merged model with weights of 4 bits; return what could not be carried over.

    Raises:
        ModelError: The base model cannot be loaded, or the model cannot be quantized.
        DataError: The training data, which it is calibrated on, cannot be read.
        CheckpointError: The merged or the quantized weights are not finite.
        FttuiError: The disk has not enough space.
    """
    group = require_quantizable(config, options)
    tokenizer = load_tokenizer(config.model, config.data, progress)
    examples = _examples(config, files.manifest.kept_out, tokenizer, options.rows, progress)
    rows = calibration_rows(examples, config.data.max_length, options.rows)
    merged, made = folder / "merged", folder / "quantized"
    merged.mkdir()
    card = write_merged(merged, config, files, lineage, progress)
    require_space(folder, sum(one.stat().st_size for one in merged.glob("*.safetensors")))
    _quantize(merged, made, rows, group, options, progress)
    notes = list(_left_out(merged, made, group, rows))
    for file in made.rglob("*"):
        if file.is_file():
            file.rename(folder / file.name)
    if (merged / QUARANTINE).is_file():
        shutil.copyfile(merged / QUARANTINE, folder / QUARANTINE)
    shutil.rmtree(merged)
    shutil.rmtree(made)
    card = replace(card, notes=[*card.notes, _LOADING], left_out=notes)
    (folder / "README.md").write_text(card.text(), encoding="utf-8")
    return notes


# the calibration data


def _examples(
    config: RunConfig, kept_out: Iterable[str], tokenizer: Any, rows: int, progress: Progress
) -> list[Example]:
    """Return the training examples of a run without those in quarantine, in a fixed random order.

    Raises:
        DataError: The data cannot be read.
    """
    if config.data.streaming:
        sets = examine_stream(config, tokenizer, progress, _BATCH * rows)
    else:
        sets = load_examples(config, tokenizer, progress, accepted=True, cache=TokenCache())
    without = {*kept_out, *config.data.kept_out}
    found = list(_without(sets.train, without))
    random.Random(0).shuffle(found)  # files are often sorted by topic
    return found


def _without(examples: Iterable[Example], left_out: Set[str]) -> Iterator[Example]:
    """Yield the examples, and the documents of packed rows, whose ids are not left out."""
    for example in examples:
        parts: Sequence[Example] = (example,)
        if isinstance(example, PackedExample):
            parts = example.documents
        yield from (one for one in parts if one.id not in left_out)


def calibration_rows(examples: Iterable[Example], max_length: int, rows: int) -> torch.Tensor:
    """Return tokens of training examples one after another, [rows, tokens], all of one length.

    Of a pair of answers the chosen one is used. Data that do not fill a row make a shorter one.

    Args:
        examples: Training examples.
        max_length: Most tokens of a record in training.
        rows: Most rows to return.

    Raises:
        DataError: There are no tokens.
    """
    width = min(max_length, ROW_TOKENS)
    ids = list(islice(chain.from_iterable(map(_ids, examples)), rows * width))
    if len(ids) < 2:
        raise DataError("the training data have no tokens to calibrate the quantization on")
    count = max(1, len(ids) // width)
    width = min(width, len(ids))
    return torch.tensor(ids[: count * width]).view(count, width)


def _ids(example: Example) -> Sequence[int]:
    assert not isinstance(example, PairExample), "an embedding model is not quantized"
    return (example.chosen if isinstance(example, PreferenceExample) else example).input_ids


# the library


def _quantize(
    merged: Path,
    made: Path,
    rows: torch.Tensor,
    group: int,
    options: FourBits,
    progress: Progress,
) -> None:
    """Quantize the model of a folder and write it below another one.

    Raises:
        ModelError: The library refuses the model; the text has its reason.
    """
    from auto_round import AutoRound
    from auto_round.algorithms.quantization.sign_round.config import SignRoundConfig

    model = AutoModelForCausalLM.from_pretrained(str(merged), dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(str(merged))
    _report_blocks(progress, model.config.get_text_config().num_hidden_layers)
    by_awq = options.method == "awq"
    try:
        AutoRound(
            model,
            tokenizer,
            scheme="W4A16",
            group_size=group,
            sym=not by_awq,  # each format's usual form, for which kernels exist
            alg_configs="awq" if by_awq else SignRoundConfig(iters=_ROUNDS[options.device]),
            dataset=[row[None] for row in rows],
            nsamples=len(rows),
            seqlen=rows.shape[1],
            batch_size=min(_BATCH, len(rows)),
            device_map=options.device,
            enable_torch_compile=False,  # on a CPU compiling takes longer than what it saves
        ).quantize_and_save(str(made), format=f"auto_{options.method}")
    except (SystemExit, Exception) as error:  # noqa: BLE001 -- the library has no error of its own
        raise ModelError(f"auto-round cannot quantize the model: {error!r}; use --merged") from None


class _BlockCounter(logging.Handler):
    """Reports progress for each block that the library logs as quantized, and drops its log."""

    def __init__(self, progress: Progress, blocks: int) -> None:
        super().__init__(logging.INFO)
        self._progress, self._blocks, self._done = progress, blocks, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line about a block."""
        if "layers in the block" in record.getMessage():
            self._done = min(self._done + 1, self._blocks)
            self._progress("quantizing", self._done, self._blocks)


def _report_blocks(progress: Progress, blocks: int) -> None:
    library = logging.getLogger("autoround")
    library.handlers = [_BlockCounter(progress, blocks)]
    library.propagate = False
    progress("quantizing", 0, blocks)


# the result


def _left_out(merged: Path, made: Path, group: int, rows: torch.Tensor) -> Iterator[str]:
    """Yield sentences about the precision that is lost.

    Raises:
        ModelError: No layer was quantized.
        CheckpointError: A number in the files is not finite.
    """
    whole = sum(math.prod(shape) for shape, _ in _tensors(merged))
    packed = 0
    for shape, name in _tensors(made):
        packed += 8 * math.prod(shape) * name.endswith(".qweight")
    if not packed:
        raise ModelError("auto-round has quantized none of the model's layers; use --merged")
    yield (
        f"The precision of the weights: {packed / whole:.0%} of them are quantized to 4 bits in "
        f"groups of {group}, calibrated on {_rows_text(rows)} of {rows.shape[1]:,} tokens of the "
        "training data; the others, such as embeddings, are fp16."
    )


def _rows_text(rows: torch.Tensor) -> str:
    return "1 row" if len(rows) == 1 else f"{len(rows):,} rows"


def _tensors(folder: Path) -> Iterator[tuple[Sequence[int], str]]:
    """Yield shape and name of every tensor of a folder.

    Raises:
        CheckpointError: A number is not finite.
    """
    for file in sorted(folder.rglob("*.safetensors")):
        with safetensors.safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 -- it is not a dictionary
                tensor = opened.get_tensor(name)
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    raise CheckpointError(f"{name} is not finite in fp16; use --merged or --gguf")
                yield tensor.shape, name
