"""The process of `fttui bench`, which measures benchmarks on a checkpoint and records the results.

Usage: `python -m fttui.engine.bench RUN_DIR CHECKPOINT --tasks A,B`. Errors in the arguments are
reported before torch is imported.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..config.load import read_resolved
from ..config.schema import RunConfig
from ..errors import ConfigError, FttuiError, exit_code_of
from ..export.checkpoint import AVERAGE, read_trained
from ..protocol.benchmarks.result import BenchmarkResult, BenchmarkScore, with_base
from ..run.checkpoint_store import CheckpointStore, Manifest
from ..run.identity.comparison import compare_with_checkpoint, content_identity, kinds_for_export
from ..run.identity.content import parse_accepted
from ..run.identity.hash_cache import HashCache
from ..run.records.record_feed import engine_works
from ..run.run_dir import RunDirectory
from ..telemetry.logs import quieten_libraries
from ..telemetry.progress_lines import ProgressPrinter, print_line
from .recording import ResultJournal
from .scores import TaskScores, significant

if TYPE_CHECKING:
    from .harness import Conditions, Tasks
    from .trained_model import MeasuredModel

_NICENESS = 10
"""The training on this machine goes first."""


def main(arguments: list[str] | None = None) -> int:
    """Measure benchmarks on one checkpoint; return the exit code."""
    options = _parser().parse_args(arguments)
    quieten_libraries()
    return exit_code_of(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> None:
    """Measure the tasks; where nobody sees the output, any error is recorded in the run.

    Raises:
        FttuiError: a task, the checkpoint, its model or the device is not usable.
    """
    journal = ResultJournal(RunDirectory(options.run.absolute()), print_line)
    try:
        Measurement(options, journal).work()
    except Exception as error:
        if options.record_errors:
            known = isinstance(error, FttuiError)
            said = str(error) if known else f"{type(error).__name__}: {error} (see the log)"
            journal.record_failure(options.checkpoint, options.tasks, said)
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fttui.engine.bench", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("checkpoint", help="name, step, or `last`")
    parser.add_argument("--tasks", required=True, help="names, separated by commas")
    parser.add_argument("--include-path", type=Path, help="folder with definitions of tasks")
    parser.add_argument("--limit", type=int, help="largest number of examples of a task")
    parser.add_argument("--fewshot", type=int, help="solved examples before each question")
    parser.add_argument("--chat-template", action="store_true", help="render the questions with it")
    parser.add_argument("--batch", type=int, help="sequences at once")
    parser.add_argument("--base", action="store_true", help="measure the base model, too")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--record-errors", action="store_true", help="in the journal of the run")
    parser.add_argument(
        "--accept-changed", type=parse_accepted, default=frozenset(), metavar="KINDS"
    )
    return parser


class Measurement:
    """The measurement of some tasks on one checkpoint."""

    def __init__(self, options: argparse.Namespace, journal: ResultJournal) -> None:
        """Read the run and the checkpoint.

        Raises:
            FttuiError: the run, the checkpoint or its model is not usable.
        """
        self._options = options
        self._run = RunDirectory(options.run.absolute())
        self._config = read_resolved(self._run.config)
        if self._config.task == "reward":
            raise ConfigError(
                f"{self._run.id} trains a reward model, which scores texts and generates none; "
                "benchmarks need a language model"
            )
        self._journal = journal
        manifest = CheckpointStore(self._run).find(options.checkpoint)
        averaged = AVERAGE in manifest.files
        self._files = read_trained(self._run, manifest.name, ema=averaged)
        _require_same_model(self._run, manifest, self._config, options)

    def work(self) -> None:
        """Measure all tasks and record each result as soon as it is known.

        Raises:
            FttuiError: a task, the model or the device is not usable, or a result is not recorded.
        """
        # The libraries take seconds to import, which the errors above need not wait for.
        from .harness import Conditions, Tasks

        options = self._options
        how = Conditions(
            limit=options.limit,
            fewshot=options.fewshot,
            chat_template=options.chat_template,
            batch=options.batch or self._config.eval.batch or self._config.train.micro_batch_size,
        )
        print_line("loading the tasks")
        tasks = Tasks(options.tasks.split(","), options.include_path)
        device = self._device()
        where = f"{self._files.manifest.name} of {self._run.id} on {device}"
        average = ", the moving average of its weights" if self._files.averaged else ""
        print_line(f"measuring {where}{average}")
        progress = ProgressPrinter()
        from .trained_model import MeasuredModel

        model = MeasuredModel(self._config, device, progress)
        base = self._base(tasks, how, model) if options.base else {}
        trained = model.with_weights(self._files)
        for name in tasks.names:
            started = time.monotonic()
            found, left_out = tasks.measure(trained, model.tokenizer, name, how, progress)
            seconds = (time.monotonic() - started) / max(1, len(found))
            self._left_out(name, found, left_out)
            for one in found:
                self._conclude(
                    self._result(name, one, device, seconds, how), base.get(one.task), one
                )

    def _device(self) -> str:
        from .device import chosen_device
        from .trained_model import size_of_weights, visible_gpus

        gpus = visible_gpus()
        wanted = self._options.device
        size = (
            size_of_weights(self._config, ProgressPrinter()) if gpus and wanted != "cpu" else None
        )
        live = engine_works(self._run)
        device = chosen_device(wanted, gpus, size, self._run.id, live=live)
        if wanted == "auto" and gpus and device == "cpu":
            idle = "idle GPU" if live else "GPU"
            print_line(f"no {idle} has enough free memory, so the CPU is used, which is slower")
        return device

    def _base(
        self, tasks: Tasks, how: Conditions, model: MeasuredModel
    ) -> dict[str, dict[str, BenchmarkScore]]:
        """Measure the base model; return its scores by task."""
        start = self._config.adapter.start
        if start is not None and self._config.adapter.merge_first:
            print_line("note: the base is the model with the adapter that was merged at the start")
        progress = ProgressPrinter()
        found: dict[str, dict[str, BenchmarkScore]] = {}
        for name in tasks.names:

            def told(label: str, done: float, total: float) -> None:
                progress(f"{label} of the base", done, total)

            scores, _ = tasks.measure(model.base, model.tokenizer, name, how, told)
            found |= {one.task: one.scores for one in scores}
        return found

    def _result(
        self, asked: str, found: TaskScores, device: str, seconds: float, how: Conditions
    ) -> BenchmarkResult:
        from .harness import HARNESS

        manifest = self._files.manifest
        return BenchmarkResult(
            task=found.task,
            of="" if asked == found.task else asked,
            checkpoint=manifest.name,
            step=manifest.step,
            timeline=manifest.timeline,
            scores=found.scores,
            examples=found.examples,
            total=found.total,
            fewshot=found.fewshot,
            chat_template=how.chat_template,
            harness=HARNESS,
            version=found.version,
            averaged=self._files.averaged,
            device=device,
            seconds=seconds,
        )

    def _conclude(
        self, result: BenchmarkResult, base: dict[str, BenchmarkScore] | None, found: TaskScores
    ) -> None:
        """Record a result and print it."""
        base = base or self._journal.known_base(result)
        result = msgspec.structs.replace(result, scores=with_base(result.scores, base))
        others = self._journal.others(result)
        self._journal.record(result)
        for line in lines_of(result):
            print_line(line)
        if others:
            print_line(
                f"caution: earlier results of {result.task} were measured differently "
                f"({others[-1].conditions}), so they cannot be compared"
            )
        for metric in found.upside_down:
            print_line(
                f"caution: of {result.name_of(metric)} fttui takes the wrong direction for better; "
                "do not let it choose the best checkpoint"
            )

    def _left_out(self, name: str, found: list[TaskScores], left_out: list[str]) -> None:
        if not found:
            print_line(f"caution: {name} has given no values, so nothing of it is recorded")
        if left_out:
            print_line(
                f"note: {len(left_out)} tasks of {name} are not recorded on their own, such as "
                f"{left_out[0]}; name them with --tasks for that"
            )


def lines_of(result: BenchmarkResult) -> Iterator[str]:
    """Yield what to print about a result."""
    yield f"{result.task} at step {result.step}: {result.conditions}, {result.seconds:.0f} s"
    for metric, score in result.scores.items():
        noise = ""
        if score.base is not None and score.stderr is not None:
            clear = significant(score.value - score.base, score.stderr, score.base_stderr)
            noise = "" if clear else ", within twice the standard error"
        yield f"  {result.name_of(metric)}  {score.text}{noise}"


def _require_same_model(
    run: RunDirectory, manifest: Manifest, config: RunConfig, options: argparse.Namespace
) -> None:
    """Compare the base model with that of the training.

    Raises:
        ContentChanged: base model, tokenizer, chat template or merged start adapter changed, and
            the change was not accepted.
    """
    command = shlex.join(["fttui", "bench", f"{run.id}@{manifest.name}", "--tasks", options.tasks])
    found = content_identity(config, HashCache())
    kinds = kinds_for_export(config)
    compared = compare_with_checkpoint(run, manifest, found, options.accept_changed, command, kinds)
    for notice in compared.notices:
        print_line(f"note: {notice}")
    for change in compared.accepted:
        print_line(f"note: measured although changed since training: {change.text}")


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(_NICENESS)
    sys.exit(main())
