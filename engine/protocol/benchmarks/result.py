"""The result of a benchmark on a checkpoint, its names as metrics, and the event about it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

BENCH = "bench."
"""Beginning of the names of metrics of benchmarks, as in `bench.TASK.METRIC`."""
_LOWER = ("perplexity", "bits_per_byte", "brier_score", "likelihood_diff", "mse", "ter", "wer")
"""Metrics of which a lower value is better, besides those named like a loss or an error."""


class BenchmarkScore(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of a benchmark, at a checkpoint and for the base model."""

    value: float
    stderr: float | None = None
    """Standard error over the examples, as the harness estimates it; None if it gives none."""
    base: float | None = None
    """The value of the base model on the same examples; None if it was not measured."""
    base_stderr: float | None = None

    @property
    def text(self) -> str:
        """The score in words, such as `0.8125 ± 0.03 (base 0.75 ± 0.033, +0.0625)`."""
        own = _with_error(self.value, self.stderr)
        if self.base is None:
            return own
        base = _with_error(self.base, self.base_stderr)
        return f"{own} (base {base}, {self.value - self.base:+.3g})"


def _with_error(value: float, stderr: float | None) -> str:
    return f"{value:.4g}" if stderr is None else f"{value:.4g} ± {stderr:.2g}"


class BenchmarkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task on one checkpoint."""

    task: str
    of: str = ""
    """The group of tasks that was asked for; empty if it was the task itself."""
    checkpoint: str
    step: int
    """Optimizer steps finished at the checkpoint."""
    timeline: int
    """Timeline of the checkpoint."""
    scores: dict[str, BenchmarkScore]
    """Scores by the names of their metrics, such as `acc` or `exact_match.strict-match`."""
    examples: int = 0
    """Number of examples that were measured."""
    total: int = 0
    """Number of examples of the task; larger than `examples` where a limit was given."""
    fewshot: int = 0
    """Number of solved examples before each question."""
    chat_template: bool = False
    """Whether the questions were rendered with the chat template of the model."""
    harness: str = ""
    """Name and version of what has measured, such as `lm_eval 0.4.13`."""
    version: str = ""
    """Version of the task's definition; empty if it names none."""
    averaged: bool = False
    """Whether the moving average of the weights was measured."""
    device: str = ""
    seconds: float = 0.0
    """Time of the measurement, without the loading of the model."""
    error: str = ""
    """Why nothing was measured; empty if it was. There are no scores then."""

    @property
    def metrics(self) -> dict[str, float]:
        """The values by names such as `bench.hellaswag.acc`."""
        return {self.name_of(metric): score.value for metric, score in self.scores.items()}

    @property
    def changes(self) -> dict[str, float]:
        """What the training has changed, where the base is known: value minus that of the base.

        The names are those of the metrics, with `.change` at their end.
        """
        return {
            f"{self.name_of(metric)}.change": score.value - score.base
            for metric, score in self.scores.items()
            if score.base is not None
        }

    def name_of(self, metric: str) -> str:
        """Return the name that a metric of the task has in the run."""
        return f"{BENCH}{self.task}.{metric}"

    @property
    def amount(self) -> str:
        """The number of examples in words, with the limit if there was one."""
        if self.examples < self.total:
            return f"{self.examples:,} of {self.total:,} examples"
        return f"{self.examples:,} examples"

    @property
    def conditions(self) -> str:
        """How it was measured, in words; values with different conditions cannot be compared."""
        parts = [
            self.amount,
            f"{self.fewshot}-shot",
            *(["chat template"] if self.chat_template else []),
            *([f"task version {self.version}"] if self.version else []),
            *([self.harness] if self.harness else []),
        ]
        return ", ".join(parts)

    def measured_with(self, limit: int | None, *, chat_template: bool) -> bool:
        """Whether it was measured with these settings, so that it may be compared by them.

        Of a group, a limit counts for each of its tasks.
        """
        limited = self.examples < self.total
        return self.chat_template is chat_template and (not limited or limit is not None)

    @property
    def text(self) -> str:
        """The result in one line."""
        if self.error:
            return f"benchmark {self.task} at {self.checkpoint} failed: {self.error}"
        scores = "; ".join(f"{metric} {score.text}" for metric, score in self.scores.items())
        return f"benchmark {self.task} at {self.checkpoint}: {scores} ({self.conditions})"


class BenchmarkFinished(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="BenchmarkFinished"
):
    """A process beside the training has measured a benchmark on a checkpoint of the run.

    The record has the step at which the result arrived; the result names that of the checkpoint.
    """

    result: BenchmarkResult
    after_end: bool = False
    """Whether no engine worked on the run when the result was recorded."""


def lower_benchmark_is_better(metric: str) -> bool:
    """Whether a lower value of a metric such as `bench.wikitext.word_perplexity` is better."""
    return any(part.endswith(_LOWER) for part in metric.removeprefix(BENCH).split(".")[1:])


def same_conditions(one: BenchmarkResult, other: BenchmarkResult) -> bool:
    """Whether two results of a task can be compared: same examples, prompts and version."""
    return one.conditions == other.conditions


def with_base(
    scores: Mapping[str, BenchmarkScore], base: Mapping[str, BenchmarkScore]
) -> dict[str, BenchmarkScore]:
    """Return scores of a checkpoint with those of the base model beside them.

    Args:
        scores: of the checkpoint.
        base: of the base model, as if it were a checkpoint.
    """
    return {
        metric: msgspec.structs.replace(
            score, base=base[metric].value, base_stderr=base[metric].stderr
        )
        if metric in base
        else score
        for metric, score in scores.items()
    }
