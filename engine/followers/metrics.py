"""The numbers of steps and evaluations as named metrics, for trackers, tables and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.benchmarks.result import BENCH, BenchmarkFinished
from ..protocol.events import AnyEvent, EvalFinished, Record, StepFinished
from ..protocol.races.variant_step import VariantStep

_SPEED = ("step_s", "data_s", "compute_s", "optimizer_s", "tokens_per_s", "samples_per_s", "skew_s")
_DEVICE = ("mem_", "rss_", "gpu_", "pcie_")


def numbers(event: AnyEvent) -> dict[str, float]:
    """Return the metrics of a finished step, evaluation or benchmark; none for other events.

    A step of a variant that trained beside the run has its loss and its evaluation.

    Parts of the loss are named `loss.ce`, figures of a rank `rank_s.0`, those of an evaluation
    `eval.loss`, those of a benchmark `bench.hellaswag.acc`. A figure that was not measured is left
    out; truth values are 0 or 1.
    """
    match event:
        case StepFinished():
            return dict(_of_step(event))
        case EvalFinished(metrics=metrics, seconds=seconds):
            return {
                f"eval.{name}": value for name, value in {**metrics, "seconds": seconds}.items()
            }
        case BenchmarkFinished(result=result):
            return {**result.metrics, **result.changes}
        case VariantStep(loss=loss, metrics=metrics):
            measured = {f"eval.{name}": value for name, value in metrics.items()}
            return measured if loss is None else {"loss": loss, **measured}
    return {}


def place_of(record: Record) -> tuple[int, int]:
    """Return the timeline and the step that the metrics of a record belong to."""
    if isinstance(record.event, BenchmarkFinished):
        return record.event.result.timeline, record.event.result.step
    if isinstance(record.event, VariantStep):
        return record.timeline, record.event.at
    return record.timeline, record.step


def _of_step(event: StepFinished) -> Iterator[tuple[str, float]]:
    for name in event.__struct_fields__:
        match getattr(event, name):
            case int() | float() as value:
                yield name, float(value)
            case dict() as values:
                prefix = "loss." if name == "parts" else ""
                yield from ((f"{prefix}{key}", float(value)) for key, value in values.items())
            case list() as values:
                yield from ((f"{name}.{rank}", float(value)) for rank, value in enumerate(values))


def grouped(name: str) -> str:
    """Return the name of a metric in trackers, such as `train/loss`, `eval/loss`, `speed/step_s`.

    Trackers show the metrics of a group side by side.
    """
    if name.startswith("eval."):
        return f"eval/{name.removeprefix('eval.')}"
    if name.startswith(BENCH):
        return f"bench/{name.removeprefix(BENCH)}"
    stem = name.partition(".")[0]
    if stem in _SPEED or stem == "rank_s":
        return f"speed/{name}"
    if stem.startswith(_DEVICE) or stem.startswith("rank_"):
        return f"device/{name}"
    return f"train/{name}"
