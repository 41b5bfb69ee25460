"""When evaluations run and checkpoints are written, and what data are held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..draft import Draft, number, shown


def read_held_out(draft: Draft, key: str, tool: str) -> None:
    """Read the share of the data that is held out for evaluations.

    A number of records becomes a share of 2 %, with a reason.

    Args:
        draft: the configuration that is read.
        key: name of the share in the other tool, where 1 and more are a number of records.
        tool: name of the tool, which holds out nothing by default.

    Raises:
        ValueError: The share is not a number.
    """
    held_out = number(draft.get(key, 0))
    if held_out >= 1:
        reason = "fttui holds out a share and no number of records, so it is 2 %"
        draft.nearly(key, "data.eval_fraction", 0.02, reason)
    elif draft.get(key) is not None:
        draft.same(key, "data.eval_fraction", float(held_out))
    else:
        draft.default("data.eval_fraction", 0.0, f"default of {tool}")


def read_eval_source(draft: Draft, key: str, source: Mapping[str, Any]) -> None:
    """Read the data that are evaluated on, with the columns and roles of their own.

    These become those of all sources; the sources for training, which must have been read, keep
    theirs.

    Args:
        draft: the configuration that is read.
        key: the key of the other tool that names the data.
        source: the data, as an entry of `data.train`.
    """
    draft.same(key, "data.eval", source["path"])
    # Without a split the whole of the data is meant, which a file and most datasets call train.
    draft.default("data.eval_split", source.get("split", "train"), key)
    train = draft.values.get("data.train")
    for name in ("columns", "roles"):
        if name not in source:
            continue
        draft.default(f"data.{name}", source[name], f"{name} of {key}")
        for one in train if isinstance(train, list) else ():
            one.setdefault(name, {})


def leave_out_evaluations(draft: Draft) -> None:
    """If no data are held out or named for evaluations, set `eval.every` to 0.

    The other values about evaluations are taken back. Those that need one, early stopping and the
    best checkpoint, are dropped.
    """
    if draft.values.get("data.eval_fraction") or "data.eval" in draft.values:
        return
    reason = "there are no data for evaluations"
    for path in ("eval.per_epoch", "eval.every", "eval.at_start"):
        draft.leave_out(path, "no effect", reason)
    for path in ("train.early_stop", "checkpoint.best"):
        wanted = shown(draft.values.get(path))
        hint = f"{reason}; name them with --set data.eval=FILE and --set '{path}={wanted}'"
        draft.leave_out(path, "dropped", hint)
    draft.values["eval.every"] = 0
    draft.notes["eval.every"] = "there are no data for evaluations"


def read_evaluations(draft: Draft) -> None:
    """Read when evaluations run; with neither a strategy nor `eval_steps` no interval is set.

    Raises:
        ValueError, ZeroDivisionError: The interval is not a number, or cannot be used.
    """
    key = next(
        (k for k in ("eval_strategy", "evaluation_strategy") if draft.get(k) is not None), ""
    )
    strategy, steps = draft.get(key) if key else None, draft.get("eval_steps")
    if strategy == "epoch":
        draft.same(key, "eval.per_epoch", 1)
    elif strategy == "steps" or (strategy is None and steps):
        _read_interval(draft, "eval", "eval_steps", steps or draft.get("logging_steps") or 500)
        if key:
            draft.without_effect(key, "eval_steps decides when evaluations run")
    elif key:
        draft.same(key, "eval.every", 0)
    for other in ("do_eval", "eval_on_start"):
        if draft.get(other) is None:
            continue
        if other == "eval_on_start" and draft.has(other):
            draft.same(other, "eval.at_start", True)
        else:
            draft.without_effect(other, "evaluations run as eval.every says")
    if draft.get("eval_steps") is not None and "eval_steps" in draft.unread():
        draft.without_effect("eval_steps", "the strategy decides when evaluations run")


def read_checkpoints(draft: Draft) -> None:
    """Read when checkpoints are written, how many and which one are kept, and early stopping.

    Raises:
        ValueError, ZeroDivisionError: A number cannot be read, or the interval cannot be used.
    """
    strategy, steps = draft.get("save_strategy"), draft.get("save_steps")
    if strategy in ("epoch", "no", "best"):
        values = {"epoch": ("checkpoint.per_epoch", 1), "no": ("checkpoint.every", 0)}
        path, value = values.get(strategy, ("checkpoint.best", "loss"))
        draft.same("save_strategy", path, value)
        if steps is not None:
            draft.without_effect("save_steps", "save_strategy decides when checkpoints are written")
    elif strategy == "steps" or steps is not None:
        _read_interval(draft, "checkpoint", "save_steps", steps or 500)
        if strategy is not None:
            draft.without_effect("save_strategy", "save_steps decides when checkpoints are written")
    if draft.get("save_total_limit") is not None:
        draft.same(
            "save_total_limit", "checkpoint.keep", int(number(draft.get("save_total_limit")))
        )
    _read_best(draft)


def _read_best(draft: Draft) -> None:
    metric = str(draft.get("metric_for_best_model") or "loss").removeprefix("eval_")
    if draft.has("load_best_model_at_end") or draft.has("early_stopping_patience"):
        if metric != "loss":
            draft.dropped("metric_for_best_model", f"{metric} is not measured; the loss is used")
        elif draft.get("metric_for_best_model") is not None:
            draft.same("metric_for_best_model", "checkpoint.best", "loss")
        if draft.get("load_best_model_at_end") is not None:
            reason = "the best checkpoint is kept; export it with STEP best"
            draft.nearly("load_best_model_at_end", "checkpoint.best", "loss", reason)
    for key in ("early_stopping_patience", "early_stopping_steps"):
        if draft.has(key):
            patience = int(number(draft.get(key)))
            draft.same(key, "train.early_stop", {"metric": "loss", "patience": patience})
    for key in ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"):
        if key in draft.unread():
            draft.without_effect(key, "no best checkpoint is asked for")


def _read_interval(draft: Draft, section: str, key: str, value: Any) -> None:
    """Set the interval of evaluations or checkpoints; below 1 it is a share of all steps.

    Args:
        draft: the configuration that is read.
        section: `eval` or `checkpoint`.
        key: the key of the other tool, which need not be given.
        value: the interval: its value, or the default.

    Raises:
        ValueError: The interval is not a number.
        ZeroDivisionError: The interval or the epochs are 0, and the run has no number of steps.
    """
    every = number(value)
    if every >= 1:
        path, found = f"{section}.every", int(every)
        if draft.get(key) is None:
            draft.default(path, found, "default interval")
        else:
            draft.same(key, path, found)
        return
    if "train.steps" in draft.values:
        draft.same(key, f"{section}.every", max(1, round(every * draft.values["train.steps"])))
    else:
        per_epoch = 1 / (every * draft.values["train.epochs"])
        draft.same(key, f"{section}.per_epoch", per_epoch)
