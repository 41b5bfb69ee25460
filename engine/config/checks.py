"""What single keys cannot tell: settings that contradict each other, or this machine."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import ConfigError
from .contrastive_candidates import candidates_per_anchor
from .data_checks import DATA
from .fast import CHOOSES_EXPERTS, refusal, why_not_fast
from .memory.hardware import Hardware
from .optim_checks import RECIPE
from .problems import STDLIB_PAIRS, Problem
from .schema import RunConfig
from .tasks import FORMATS_OF, JUDGED

FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
"""Data sources with these endings are files; they have no splits."""


def require(problems: Iterable[Problem], places: Mapping[str, str], file: str) -> None:
    """Pass when there are none.

    Args:
        problems: what the checks found.
        places: key path → where it was set; a key that nobody set is named by the file alone.
        file: the configuration file.

    Raises:
        ConfigError: all of them, one per line.
    """
    lines = [
        f"{places.get(problem.key, file)}: {problem.key}: {problem.text}" for problem in problems
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def check_config(config: RunConfig) -> list[Problem]:
    """Contradictions inside a configuration, whatever machine it runs on."""
    checks = (
        _check_length,
        _check_task,
        _check_candidates,
        _check_temperature,
        _check_losses,
        _check_data,
        _check_judged,
        _check_preference,
        _check_way,
        _check_metrics,
        _check_memory,
        _check_fast,
    )
    return [problem for check in (*checks, *DATA, *RECIPE) for problem in check(config)]


def check_hardware(config: RunConfig, hardware: Hardware) -> list[Problem]:
    """What this machine cannot do."""
    checks = (_check_devices, _check_precision, _check_attention, _check_graphs)
    return [problem for check in checks for problem in check(config, hardware)]


def check_model(config: RunConfig, layers: int) -> list[Problem]:
    """What a dense model with so many layers does not have."""
    whole = config.train.whole_layers
    if whole <= layers:
        return []
    text = (
        f"got {whole}, but the model has {layers} layers; lower it, or set "
        "train.activation_checkpointing: false, which keeps the activations of all"
    )
    return [Problem("train.whole_layers", text)]


def check_experts(config: RunConfig) -> list[Problem]:
    """What a mixture of experts cannot do."""
    return [Problem("train.fast", refusal(CHOOSES_EXPERTS))] if config.train.fast == "on" else []


def check_sources(config: RunConfig) -> list[Problem]:
    """Data files that are not there: seen before a model is loaded for them."""
    train = [("data.train", one.path) for one in config.data.sources]
    sources = (*train, ("data.eval", config.data.eval))
    return [
        Problem(key, describe_missing(Path(source)))
        for key, source in sources
        if source is not None and source.endswith(FILE_SUFFIXES) and not Path(source).is_file()
    ]


def describe_missing(path: Path) -> str:
    """What to say of a data file that is not there, and the name that was probably meant."""
    if path.is_dir():
        return f"{path}: a folder, but its name is that of a file; name a file in it"
    folder = path.parent
    names = [one.name for one in folder.iterdir() if one.is_file()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    hint = f"; did you mean {folder / close[0]}?" if close else "."
    return (
        f"{path}: no such file (seen from {Path.cwd()}){hint} Accepted: files ending in "
        f"{', '.join(FILE_SUFFIXES)}, a folder, a hub dataset id, or {STDLIB_PAIRS}"
    )


def _check_length(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.steps is None and train.epochs is None:
        yield Problem("train.steps", "neither steps nor epochs is given; give one of the two")
    if train.steps is not None and train.epochs is not None:
        yield Problem(
            "train.steps",
            f"both steps ({train.steps}) and epochs ({train.epochs:g}) are given; keep one: "
            "--set train.epochs=null for the steps, --set train.steps=null for the epochs",
        )


def _check_task(config: RunConfig) -> Iterator[Problem]:
    kind, form = config.contrastive.kind, config.data.format
    pairs = form == "pairs" or _uses_stdlib(config)
    if config.task == "contrastive":
        if kind not in ("infonce", "pairwise"):
            yield Problem(
                "contrastive.kind",
                f"got {kind}, but task contrastive learns from pairs and needs infonce (or "
                "pairwise); set contrastive.kind: infonce, or task: sft",
            )
        if form not in ("auto", "pairs"):
            yield Problem(
                "data.format",
                f"got {form}, but task contrastive needs pairs; set data.format: pairs (or auto), "
                "or task: sft",
            )
        return
    if config.task in JUDGED:
        return
    if kind in ("infonce", "pairwise"):
        yield Problem(
            "contrastive.kind",
            f"{kind} compares pairs, but task sft has none; set task: contrastive, or "
            "contrastive.kind: simctg, which works on any text",
        )
    if pairs:
        yield Problem(
            "task", "the data are pairs, which task sft cannot use; set task: contrastive"
        )


def _check_candidates(config: RunConfig) -> Iterator[Problem]:
    if config.task != "contrastive" or candidates_per_anchor(config) > 1:
        return
    contrastive = config.contrastive
    if not contrastive.in_batch:
        key, cure = "contrastive.in_batch", "set in_batch: true"
    elif config.train.accumulate > 1:
        key = "contrastive.cross_accumulation"
        cure = "set cross_accumulation: on, which compares over the whole step"
    else:
        key, cure = "train.batch", "set train.batch or train.accumulate to 2 or more"
    yield Problem(
        key,
        "each anchor is compared with nothing but its own positive, so the loss is 0 and nothing "
        f"is learned; {cure}, or contrastive.hard_negatives to 1 with data that has negatives",
    )


def _check_temperature(config: RunConfig) -> Iterator[Problem]:
    contrastive = config.contrastive
    low, high = contrastive.temperature_bounds
    if low >= high:
        yield Problem(
            "contrastive.temperature_bounds",
            f"got {low:g} to {high:g}; the first must be the lower one",
        )
    elif contrastive.learn_temperature and not low <= contrastive.temperature <= high:
        yield Problem(
            "contrastive.temperature",
            f"got {contrastive.temperature:g}, but a learned temperature stays between {low:g} and "
            f"{high:g}; start inside, or widen contrastive.temperature_bounds",
        )


def _check_losses(config: RunConfig) -> Iterator[Problem]:
    contrastive = config.contrastive
    active = contrastive.kind != "off"
    if active and contrastive.weight == 0 and contrastive.ce_weight == 0:
        yield Problem(
            "contrastive.weight",
            "weight and ce_weight are both 0, so there is no loss; raise one of them",
        )
    if not active and contrastive.ce_weight == 0:
        yield Problem(
            "contrastive.ce_weight",
            "got 0 with contrastive.kind off, so there is no loss; set ce_weight: 1",
        )
    if config.adapter.targets == []:
        yield Problem(
            "adapter.targets", "the list is empty, so nothing would be trained; use all-linear"
        )


def _check_data(config: RunConfig) -> Iterator[Problem]:
    data = config.data
    if data.eval is None and data.eval_fraction == 1:
        yield Problem("data.eval_fraction", "got 1, which leaves nothing to train on; lower it")
    if (
        data.eval is None
        and data.eval_fraction == 0
        and (config.eval.every or config.eval.at_start)
    ):
        yield Problem(
            "eval.every",
            "asks for evaluations, but there is nothing to evaluate on; set data.eval or "
            "data.eval_fraction, or eval.every: 0",
        )
    itself = [one for one in data.sources if one.path == data.eval != STDLIB_PAIRS]
    splits = [one.split or data.train_split for one in itself]
    if itself and (data.eval_split in splits or itself[0].path.endswith(FILE_SUFFIXES)):
        yield Problem(
            "data.eval",
            "is the training data itself; name other data, or leave it out and set "
            "data.eval_fraction to hold some back",
        )


def _uses_stdlib(config: RunConfig) -> bool:
    return STDLIB_PAIRS in (config.data.eval, *(one.path for one in config.data.sources))


def _check_judged(config: RunConfig) -> Iterator[Problem]:
    """What the tasks that compare completions cannot have."""
    if config.task not in JUDGED:
        return
    forms = FORMATS_OF[config.task]
    if config.contrastive.kind != "off":
        yield Problem(
            "contrastive.kind",
            f"got {config.contrastive.kind}, but task {config.task} compares completions by their "
            "log-probability; set contrastive.kind: off, or task: contrastive",
        )
    if _uses_stdlib(config):
        yield Problem("task", f"{STDLIB_PAIRS} is pairs; set task: contrastive, or name other data")
    elif config.data.format not in ("auto", *forms):
        yield Problem(
            "data.format",
            f"got {config.data.format}, but task {config.task} learns from {' or '.join(forms)}; "
            "set data.format: auto, or another task",
        )
    if config.task == "kto" and config.data.streaming:
        yield Problem(
            "data.streaming",
            "task kto sets every prompt against the completion of another record, and streamed "
            "ones are not known; set data.streaming: false",
        )
    if not config.data.completion_only:
        yield Problem(
            "data.completion_only",
            f"got false, but task {config.task} compares completions alone; leave it out",
        )


def _check_preference(config: RunConfig) -> Iterator[Problem]:
    own, task = config.preference, config.task
    if task not in JUDGED and own != type(own)():
        yield Problem(
            "preference",
            f"is set, but task {task} has no use for it; set task: dpo or kto, or leave it out",
        )
    if task == "kto" and (own.loss != "sigmoid" or own.label_smoothing):
        yield Problem(
            "preference.loss",
            "loss and label_smoothing are of task dpo, kto has a loss of its own; leave them out",
        )
    if task == "kto" and not (own.desirable_weight or own.undesirable_weight):
        yield Problem(
            "preference.desirable_weight",
            "both weights are 0, so there is no loss; raise one of them",
        )
    if task == "dpo" and (own.desirable_weight, own.undesirable_weight) != (1, 1):
        yield Problem(
            "preference.desirable_weight",
            "weighs wanted against unwanted completions, which task dpo has in pairs; leave both "
            "weights out, or set task: kto",
        )
    if task == "dpo" and own.label_smoothing and own.loss not in ("sigmoid", "robust"):
        yield Problem(
            "preference.label_smoothing",
            f"got {own.label_smoothing:g} with loss {own.loss}, which has none; set loss: sigmoid "
            "or robust, or label_smoothing: 0",
        )


def _check_way(config: RunConfig) -> Iterator[Problem]:
    checkpoint = config.checkpoint
    if config.guard.nonfinite == "rollback" and not (checkpoint.every or checkpoint.at_start):
        yield Problem(
            "guard.nonfinite",
            "rollback needs a checkpoint to go back to; set checkpoint.every or "
            "checkpoint.at_start: true",
        )


def _check_metrics(config: RunConfig) -> Iterator[Problem]:
    stop = config.train.early_stop
    wanted = {"checkpoint.best": config.checkpoint.best}
    wanted["train.early_stop.metric"] = stop.metric if stop else None
    known = metrics_of(config)
    for key, metric in wanted.items():
        if metric is None:
            continue
        if metric not in known:
            yield Problem(
                key,
                f"got {metric}, which this run does not measure; it measures {', '.join(known)}",
            )
        elif not config.eval.every:
            yield Problem(
                key, "asks for evaluations on the way, but eval.every is 0; set eval.every"
            )


def _check_memory(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.memory == "lean" and config.model.quantize != "nf4":
        yield Problem(
            "train.memory",
            "lean keeps the head in NF4, but the model is not quantized; set model.quantize: nf4, "
            "or train.memory: auto",
        )
    if train.whole_layers and train.activation_checkpointing is not True:
        kept = "decides that" if train.recomputes else "keeps all of them"
        yield Problem(
            "train.whole_layers",
            f"got {train.whole_layers}, but train.activation_checkpointing: "
            f"{str(train.activation_checkpointing).lower()} {kept}; set "
            "train.activation_checkpointing: true, or leave train.whole_layers out",
        )
    if train.activations == "host" and not train.recomputes:
        yield Problem(
            "train.activations",
            "got host, which keeps activation checkpoints there, but there are none; set "
            "train.activation_checkpointing: true",
        )


def _check_fast(config: RunConfig) -> Iterator[Problem]:
    """What stands against graphs on any machine."""
    if config.train.fast == "on" and (reason := why_not_fast(config, "cuda")) is not None:
        yield Problem("train.fast", refusal(reason))


def metrics_of(config: RunConfig) -> list[str]:
    """What the evaluations of a run measure."""
    if config.task in JUDGED:
        ce = ["ce"] if config.preference.ce_weight else []
        return ["loss", *ce, "reward_accuracy", "reward_margin"]
    if config.task != "contrastive":
        return ["loss", "perplexity"]
    contrastive = config.contrastive
    retrieval = ["recall_at_1", "recall_at_5", "mrr", "ndcg_at_10"]
    triplets = ["triplet_accuracy"] if contrastive.hard_negatives else []
    ce = ["ce"] if contrastive.ce_weight else []
    return ["loss", *ce, "contrastive", *retrieval, *triplets]


def _check_devices(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    if config.train.devices > hardware.count:
        found = "GPUs are visible" if hardware.kind == "cuda" else "CPU cores are free for ranks"
        yield Problem(
            "train.devices",
            f"got {config.train.devices}, but {hardware.count} {found}; lower it, or look at "
            "CUDA_VISIBLE_DEVICES and `fttui doctor`",
        )


def _check_precision(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    precision, adapter = config.model.precision, config.train.adapter_precision
    if precision == "fp16" and hardware.kind == "cpu":
        quantized = " (nf4 included)" if config.model.quantize == "nf4" else ""
        yield Problem(
            "model.precision",
            f"fp16 does not train on a CPU{quantized} and no GPU was found; set auto or fp32",
        )
    if precision == "bf16" and not hardware.bf16:
        yield Problem(
            "model.precision",
            f"bf16 needs a newer card than {_oldest(hardware)}; set fp16, fp32 or auto",
        )
    if adapter == "bf16" and not hardware.bf16:
        yield Problem(
            "train.adapter_precision",
            f"bf16 needs a newer card than {_oldest(hardware)}; set fp32",
        )


def _oldest(hardware: Hardware) -> str:
    """The name of a device that cannot do bf16."""
    return next((device.name for device in hardware.devices if not device.bf16), "this one")


def _check_graphs(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    if config.train.fast == "on" and (reason := why_not_fast(config, hardware.kind)) is not None:
        yield Problem("train.fast", refusal(reason))


def _check_attention(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    if config.model.attention != "flash_attention_2":
        return
    if hardware.kind == "cpu":
        yield Problem("model.attention", "flash_attention_2 runs on GPUs only; set auto or sdpa")
    elif not hardware.flash_attention:
        yield Problem(
            "model.attention",
            "flash_attention_2 needs the flash-attn package, which is not installed; "
            "pip install flash-attn, or set auto",
        )
