"""The section about benchmarks, which are measured beside the training."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...protocol.benchmarks.result import BenchmarkResult
from .base import Count, CountOrZero, Section


class BenchmarksConfig(Section, frozen=True, kw_only=True):
    """Benchmarks of lm-evaluation-harness that a process of its own measures on checkpoints.

    The results become metrics such as `bench.hellaswag.acc`. It needs the extra `fttui[bench]`.
    """

    tasks: list[str] = []
    """Tasks or groups of tasks; empty measures nothing."""
    every: Count = 1
    """Measure every so many checkpoints, such as 5 for every fifth one."""
    include: str | None = None
    """Folder with the definitions of further tasks, which may name Python code."""
    base: bool = False
    """Also measure the base model, once, so that the results say what the training has changed."""
    limit: Count | None = None
    """Measure the first so many examples of each task only; null measures all."""
    fewshot: CountOrZero | None = None
    """Solved examples before each question; null: as many as the task says."""
    chat_template: bool = False
    """Render the questions with the chat template, as a chat model expects them."""
    device: Annotated[str, Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$", examples=["cuda:0"])] = "auto"
    """cpu, cuda or cuda:N; auto: a GPU that no process uses, if the model fits into it, else the
    CPU."""
    batch: Count | None = None
    """Sequences at once; null: `eval.batch`, or else `train.batch`."""

    def decides_by(self, result: BenchmarkResult) -> bool:
        """Whether a result may choose the best checkpoint and end a run.

        One that somebody has measured with another limit or other prompts may not.
        """
        return result.measured_with(self.limit, chat_template=self.chat_template)

    @property
    def interval(self) -> int:
        """Number of checkpoints from one that is measured to the next; 0 if none is."""
        return self.every if self.tasks else 0
