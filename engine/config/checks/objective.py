"""Checks of the task, the losses and their data formats, and the metrics a run measures."""

from __future__ import annotations

from collections.abc import Iterator

from ..memory.contrastive_candidates import candidates_per_anchor
from ..schema import STDLIB_PAIRS, RunConfig
from ..tasks import (
    COMPARING_TASKS,
    FORMATS_OF,
    PREFERENCE_TASKS,
    SCORED_KINDS,
)
from .forgetting import FORGETTING
from .preference import check_preference
from .problem import Problem
from .user_metrics import is_benchmark, metric_names, why_not_measured

_PAIR_KINDS = ("infonce", "pairwise", "triplet", *SCORED_KINDS)


def _check_task(config: RunConfig) -> Iterator[Problem]:
    if config.task == "contrastive":
        yield from _check_contrastive(config)
    elif config.task not in COMPARING_TASKS:
        yield from _check_sft(config)


def _check_contrastive(config: RunConfig) -> Iterator[Problem]:
    kind, form = config.contrastive.kind, config.data.format
    if kind not in _PAIR_KINDS:
        yield Problem(
            "contrastive.kind",
            f"got {kind}, but task contrastive trains on pairs and needs {', '.join(_PAIR_KINDS)}; "
            "set contrastive.kind: infonce (cosent if the pairs have scores), or task: sft",
        )
    if form not in ("auto", "pairs"):
        yield Problem(
            "data.format",
            f"got {form}, but task contrastive needs pairs; set data.format: pairs (or auto), or "
            "another task",
        )


def _check_sft(config: RunConfig) -> Iterator[Problem]:
    kind = config.contrastive.kind
    if kind in _PAIR_KINDS:
        yield Problem(
            "contrastive.kind",
            f"got {kind}, which compares pairs, but task sft has no pairs; set task: contrastive, "
            "or contrastive.kind: simctg, which works on any text",
        )
    if config.data.format == "pairs" or _uses_stdlib(config):
        yield Problem(
            "task",
            "got sft, but the data are pairs, which it cannot use; set task: contrastive, or name "
            "other data",
        )


def _uses_stdlib(config: RunConfig) -> bool:
    return STDLIB_PAIRS in (config.data.eval, *(one.path for one in config.data.sources))


def _check_candidates(config: RunConfig) -> Iterator[Problem]:
    if config.task != "contrastive" or candidates_per_anchor(config) > 1:
        return
    contrastive = config.contrastive
    if contrastive.kind == "cosine":
        return
    if not contrastive.in_batch:
        key, cure = "contrastive.in_batch", "set contrastive.in_batch: true"
    elif config.train.accumulation > 1:
        key = "contrastive.cross_accumulation"
        cure = f"set {key}: on, which takes candidates from the whole step"
    else:
        key, cure = "train.batch", "set train.batch or train.accumulate to 2 or more"
    if contrastive.kind == "cosent":
        yield Problem(
            key,
            "each pair is compared with no other pair, so the loss is 0 and nothing is learned; "
            f"{cure}, or contrastive.kind: cosine, which needs no other pairs",
        )
        return
    yield Problem(
        key,
        "each anchor has no candidate but its own positive, so the loss is 0 and nothing is "
        f"learned; {cure}, or contrastive.hard_negatives to 1 with data that has negatives",
    )


def _check_scored(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of `score_range`, and the settings that a loss of scored pairs ignores."""
    own, kind = config.contrastive, config.contrastive.kind
    limits = own.score_range
    if limits is not None and kind != "cosine":
        yield Problem(
            "contrastive.score_range",
            f"is set, but kind {kind} does not use it"
            + (": only the order of the scores matters" if kind == "cosent" else "")
            + "; remove the key",
        )
    elif limits is not None and not limits[0] < limits[1]:
        yield Problem(
            "contrastive.score_range",
            f"got {limits[0]:g} to {limits[1]:g}, expected the lowest score first; correct it",
        )
    if kind not in SCORED_KINDS:
        return
    unused = {
        "symmetric": own.symmetric,
        "own_hard_only": own.own_hard_only,
        "mask_margin": own.mask_margin is not None,
        "hard_negatives": own.hard_negatives > 1,
        "learn_temperature": own.learn_temperature and kind == "cosine",
        "in_batch": not own.in_batch and kind == "cosine",
    }
    for key in (key for key, used in unused.items() if used):
        yield Problem(
            f"contrastive.{key}",
            f"is set, but kind {kind} compares cosines with scores and does not use it; remove "
            "the key, or set contrastive.kind: infonce for pairs without scores",
        )


def _check_dimensions(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of `dimensions`, and of settings that the loss of triplets does not use."""
    own = config.contrastive
    if own.dimensions and config.task != "contrastive":
        yield Problem(
            "contrastive.dimensions",
            f"is set, but only task contrastive compares vectors, and the task is {config.task}; "
            "remove the key, or set task: contrastive",
        )
    if len(set(own.dimensions)) < len(own.dimensions):
        yield Problem(
            "contrastive.dimensions",
            f"got {own.dimensions}, in which a length is repeated; name each once",
        )
    if own.kind == "triplet" and own.learn_temperature:
        yield Problem(
            "contrastive.learn_temperature",
            "got true, but kind triplet has a margin and no temperature; remove the key, or set "
            "contrastive.kind: infonce",
        )


def _check_temperature(config: RunConfig) -> Iterator[Problem]:
    contrastive = config.contrastive
    low, high = contrastive.temperature_bounds
    if low >= high:
        yield Problem(
            "contrastive.temperature_bounds",
            f"got {low:g} to {high:g}, expected the lower bound first; swap or correct them",
        )
    elif contrastive.learn_temperature and not low <= contrastive.temperature <= high:
        yield Problem(
            "contrastive.temperature",
            f"got {contrastive.temperature:g}, but a learned temperature stays between {low:g} and "
            f"{high:g}; choose a value in this range, or widen contrastive.temperature_bounds",
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


def _check_completions(config: RunConfig) -> Iterator[Problem]:
    """Yield the settings that tasks with chosen and rejected completions cannot use."""
    if config.task not in COMPARING_TASKS:
        return
    by = "a score" if config.task == "reward" else "their log-probability"
    if config.contrastive.kind != "off":
        yield Problem(
            "contrastive.kind",
            f"got {config.contrastive.kind}, but task {config.task} compares completions by {by}; "
            "set contrastive.kind: off, or task: contrastive",
        )
    yield from _check_preference_data(config)
    if config.task == "kto" and config.data.streaming:
        yield Problem(
            "data.streaming",
            "got true, but task kto pairs every prompt with the completion of another record, for "
            "which all records must be known; set data.streaming: false",
        )
    if not config.data.completion_only:
        scores = config.task == "reward"
        what = "scores whole texts anyway" if scores else "compares only completions"
        yield Problem(
            "data.completion_only", f"got false, but task {config.task} {what}; remove the key"
        )


def _check_preference_data(config: RunConfig) -> Iterator[Problem]:
    forms = FORMATS_OF[config.task]
    if _uses_stdlib(config):
        yield Problem(
            "task",
            f"got {config.task}, but {STDLIB_PAIRS} holds pairs of docstring and function, without "
            "preferences or ratings; set task: contrastive, or name other data",
        )
    elif config.data.format not in ("auto", *forms):
        yield Problem(
            "data.format",
            f"got {config.data.format}, but task {config.task} needs {' or '.join(forms)}; set "
            "data.format: auto, or another task",
        )


def _check_reward(config: RunConfig) -> Iterator[Problem]:
    """Yield the settings that task reward cannot use, and its section in another task."""
    if config.task != "reward":
        if config.reward != type(config.reward)():
            yield Problem(
                "reward",
                f"the section is set, but task {config.task} does not use it; set task: reward, or "
                "remove the section",
            )
        return
    if config.eval.samples:
        yield Problem(
            "eval.samples",
            "is set, but a reward model scores texts and generates none; remove the key",
        )
    if config.adapter.continues:
        yield Problem(
            "adapter.start",
            "names an adapter to continue, but a reward model starts with a new head, which such "
            "an adapter does not have; set adapter.merge_first: true, or remove adapter.start",
        )
    if config.train.router_aux_loss:
        yield Problem(
            "train.router_aux_loss",
            f"got {config.train.router_aux_loss:g}, but task reward has no load balancing loss; "
            "remove the key",
        )


def _check_metrics(config: RunConfig) -> Iterator[Problem]:
    stop = config.train.early_stop
    wanted = {"checkpoint.best": config.checkpoint.best}
    wanted["train.early_stop.metric"] = stop.metric if stop else None
    known = measured_metrics(config)
    for key, metric in wanted.items():
        if metric is None:
            continue
        if is_benchmark(metric):
            if reason := why_not_measured(config, metric):
                yield Problem(key, reason)
        elif metric not in known:
            yield Problem(
                key, f"got {metric}, which this run does not measure; choose {', '.join(known)}"
            )
        elif not config.eval.recurs:
            yield Problem(
                key,
                f"got {metric}, which needs evaluations during training, but eval.every is 0; set "
                "eval.every",
            )


def measured_metrics(config: RunConfig) -> list[str]:
    """Return all metrics of the evaluations of a run, those of forgetting included."""
    return [*metrics_of(config), *(FORGETTING if config.forgetting.texts else ())]


def metrics_of(config: RunConfig) -> list[str]:
    """Return the metrics that the evaluations of a run measure, those of the user at the end."""
    return [*own_metrics_of(config), *metric_names(config.eval.metrics)]


def own_metrics_of(config: RunConfig) -> list[str]:
    """Return the metrics that the evaluations of a run measure without functions of the user."""
    if config.task == "reward":
        return ["loss", "reward_accuracy", "reward_margin"]
    if config.task in PREFERENCE_TASKS:
        ce = ["ce"] if config.preference.next_token_weight else []
        return ["loss", *ce, "reward_accuracy", "reward_margin"]
    if config.task != "contrastive":
        return ["loss", "perplexity"]
    contrastive = config.contrastive
    ce = ["ce"] if contrastive.ce_weight else []
    if contrastive.kind in SCORED_KINDS:
        return ["loss", *ce, "contrastive", "spearman"]
    retrieval = ["recall_at_1", "recall_at_5", "mrr", "ndcg_at_10"]
    triplets = ["triplet_accuracy"] if contrastive.hard_negatives else []
    return ["loss", *ce, "contrastive", *retrieval, *triplets]


def _check_user_metrics(config: RunConfig) -> Iterator[Problem]:
    if not config.eval.metrics:
        return
    if config.task == "reward":
        yield Problem(
            "eval.metrics",
            "task reward has no answers to generate; remove the key, or use it with another task",
        )
    elif config.data.eval is None and not config.data.eval_fraction:
        yield Problem(
            "eval.metrics", "there are no evaluation records; set data.eval or data.eval_fraction"
        )


OBJECTIVE = (
    _check_task,
    _check_candidates,
    _check_scored,
    _check_dimensions,
    _check_temperature,
    _check_losses,
    _check_completions,
    _check_reward,
    check_preference,
    _check_metrics,
    _check_user_metrics,
)
"""Checks of what a run learns and measures."""
