"""Runs tasks of lm-evaluation-harness on a model in memory."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from ..errors import ConfigError, DataError, SourceUnreachable
from ..protocol.command_args import existing
from .scores import TaskScores, read_scores
from .trained_model import out_of_memory

HARNESS = f"lm_eval {version('lm_eval')}"
_UNREACHABLE = ("ConnectionError", "OfflineModeIsEnabled", "DatasetNotFoundError", "HfHubHTTPError")
"""Names of the errors of data that cannot be downloaded."""
_SEED = 1234
"""The seed with which the harness itself chooses solved examples."""
_RESAMPLES = 1000
"""Bootstrap samples for the standard errors of metrics other than means, such as F1."""
Progress = Callable[[str, float, float], None]


@dataclass(frozen=True)
class Conditions:
    """How tasks are measured; the results of other conditions cannot be compared."""

    limit: int | None = None
    """Largest number of examples of a task; None measures all."""
    fewshot: int | None = None
    """Number of solved examples before each question; None leaves it to the task."""
    chat_template: bool = False
    batch: int = 1
    """Sequences at once; it does not change the results beyond rounding."""


class Tasks:
    """The tasks that are to be measured, whose data are there."""

    def __init__(self, names: Sequence[str], include: Path | None) -> None:
        """Find the tasks and load their data.

        Args:
            names: names of tasks and groups.
            include: folder with definitions of further tasks.

        Raises:
            ConfigError: there is no such task or folder.
            DataError: the data of a task cannot be loaded.
        """
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self.names = list(names)
        self.manager = _manager(names, include)
        for name in names:
            _load(self.manager, name)

    def measure(
        self, model: Any, tokenizer: Any, task: str, how: Conditions, progress: Progress
    ) -> tuple[list[TaskScores], list[str]]:
        """Measure one task; return its scores, and the tasks of its group that are left out.

        Raises:
            ModelError: the memory of the device does not suffice.
            DataError: the task cannot be measured.
        """
        lm = _CountingModel(model, tokenizer, how.batch, lambda d, n: progress(task, d, n))
        try:
            found = evaluate(
                lm=lm,
                task_dict=_prepared(self.manager.load([task]), how.fewshot),
                limit=how.limit,
                bootstrap_iters=_RESAMPLES,
                apply_chat_template=how.chat_template,
                fewshot_as_multiturn=how.chat_template,
                log_samples=False,
            )
        except torch.OutOfMemoryError:
            raise out_of_memory(str(model.device), how.batch) from None
        except (Exception, SystemExit) as error:
            # Its definition may hold code of the user, which can raise anything.
            raise DataError(f"task {task} cannot be measured: {_said(error)}") from error
        return read_scores(found or {"results": {}, "n-samples": {}}, task)


class _CountingModel(HFLM):  # type: ignore[misc]  # lm_eval has no types
    """The model as the harness calls it; reports how many of the requests are answered."""

    def __init__(
        self, model: Any, tokenizer: Any, batch: int, report: Callable[[float, float], None]
    ) -> None:
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch, backend="causal")
        self._report = report
        self._done = self._total = 0
        self.set_cache_hook(self)

    def add_partial(self, *_: Any) -> None:
        """Count an answered request; the harness calls this to cache the answer."""
        self._done += 1
        self._report(self._done, max(self._done, self._total))

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        """Return the log-likelihoods of continuations."""
        self._expect(requests)
        answers: list[Any] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        """Return the log-likelihoods of whole texts."""
        self._expect(requests)
        answers: list[Any] = super().loglikelihood_rolling(requests, disable_tqdm=True)
        return answers

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        """Return generated texts."""
        self._expect(requests)
        answers: list[Any] = super().generate_until(requests, disable_tqdm=True)
        return answers

    def _expect(self, requests: list[Any]) -> None:
        self._total += len(requests)
        self._report(self._done, self._total)


def _prepared(loaded: dict[str, Any], fewshot: int | None) -> dict[str, Any]:
    """Seed everything that a task may draw from, and set the number of solved examples.

    So every checkpoint is asked the same. A task that rules solved examples out keeps none.
    """
    random.seed(_SEED)
    np.random.seed(_SEED)
    torch.manual_seed(_SEED)
    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot")
        if own is None or (fewshot is not None and own != 0):
            task.set_config(key="num_fewshot", value=fewshot or 0)
        task.set_fewshot_seed(seed=_SEED)
    return loaded


def _manager(names: Sequence[str], include: Path | None) -> Any:
    """Return what finds the tasks; without the 14,000 of the harness if `include` has them all."""
    if include is not None and not include.is_dir():
        raise ConfigError(f"--include-path: {include} is not a folder; name one with task files")
    path = None if include is None else str(include)
    if path is not None:
        own = TaskManager(include_path=path, include_defaults=False)
        if set(names) <= set(own.all_tasks):
            return own
    found = TaskManager(include_path=path)
    for name in names:
        if name not in found.all_tasks:
            near = existing(name, sorted(found.all_tasks), "tasks")
            way = "or define it in a folder and name that with --include-path"
            raise ConfigError(f"no task {name!r}; {near}; correct it, {way}")
    return found


def _load(manager: Any, name: str) -> None:
    try:
        manager.load([name])
    except (Exception, SystemExit) as error:
        # Its definition may hold code of the user, which can raise anything.
        reason = f"task {name} cannot be loaded: {_said(error)}"
        if _is_unreachable(error):
            raise SourceUnreachable(
                f"{reason}. Its data have to be downloaded once: repeat this where the Hugging "
                "Face Hub can be reached and is not switched off (HF_HUB_OFFLINE, "
                "HF_DATASETS_OFFLINE), copy the cache of such a machine ($HF_HOME), or define the "
                "task with local files (--include-path)"
            ) from error
        raise DataError(f"{reason}; correct its definition or its files") from error


def _is_unreachable(error: BaseException) -> bool:
    """Whether an error, or one that caused it, is that of a hub that cannot be reached."""
    found: BaseException | None = error
    while found is not None:
        names = {kind.__name__ for kind in type(found).__mro__}
        if names & set(_UNREACHABLE) or "OfflineModeIsEnabled" in str(found):
            return True
        found = found.__cause__ or found.__context__
    return False


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
