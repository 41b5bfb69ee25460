"""The prompt of benchmarks: typed words become the arguments of `fttui bench`, and its page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from fttui.engine.protocol.benchmarks.result import BenchmarkResult

from .prompts import ParsedInput

FORMS = "hellaswag,arc_easy --limit 100 --base"
_WITH_VALUE = ("--include-path", "--limit", "--fewshot", "--device", "--batch")
_PROGRESS = re.compile(r"(.+?) \d+ %")
_ALONE = ("--base", "--chat-template")


def read_bench(text: str) -> ParsedInput:
    """Parse tasks and options; the result is the text itself."""
    if not text.strip():
        return ParsedInput(needs=f"type tasks of lm-evaluation-harness, such as {FORMS}")
    try:
        arguments = bench_arguments(text)
    except ValueError as error:
        return ParsedInput(error=str(error))
    tasks = arguments[1].replace(",", ", ")
    return ParsedInput(text=text, preview=f"measures {tasks} in a process beside the training")


def bench_arguments(text: str) -> list[str]:
    """Return the arguments of `fttui bench` in a typed text: the tasks, then options.

    Raises:
        ValueError: there is no task, or an option is unknown or lacks its value.
    """
    words = shlex.split(text)
    tasks: list[str] = []
    options: list[str] = []
    known = ", ".join((*_ALONE, *_WITH_VALUE))
    while words:
        word = words.pop(0)
        if word in _ALONE:
            options.append(word)
        elif word in _WITH_VALUE:
            if not words or words[0].startswith("--"):
                raise ValueError(
                    f"{word}: got no value, expected one, such as {word} {_sample(word)}"
                )
            options += [word, words.pop(0)]
        elif word.startswith("-"):
            raise ValueError(f"got {word}, expected one of {known}")
        else:
            tasks += [task for task in word.split(",") if task]
    if not tasks:
        raise ValueError(f"got no task, expected names such as {FORMS}")
    return ["--tasks", ",".join(tasks), *options]


def _sample(option: str) -> str:
    return {"--include-path": "tasks/", "--device": "cpu"}.get(option, "8")


def bench_lines(
    command: str,
    runs: bool,
    exit_code: int | None,
    said: Sequence[str],
    results: Sequence[BenchmarkResult],
) -> Iterator[str]:
    """Yield the lines of the page of a measurement.

    Args:
        command: the command of the measurement.
        runs: whether it has not ended.
        exit_code: that of its process; None while it works, or if it is not known.
        said: the last lines that it has printed.
        results: the results that it has recorded so far.
    """
    yield command
    state = "failed" if exit_code else "ended" if exit_code is None else "measured"
    state = "measuring …" if runs else state
    yield state if not exit_code else f"{state} with exit code {exit_code}"
    for result in results:
        yield ""
        for metric, score in result.scores.items():
            yield f"{result.name_of(metric)}  {score.text}"
        yield f"{result.checkpoint}, {result.conditions}"
        if result.error:
            yield result.error
    yield ""
    yield from _without_older_progress([line for line in said if line != command])


def _without_older_progress(said: Sequence[str]) -> Iterator[str]:
    """Yield the printed lines; of several lines in a row about one progress only the last."""
    for line, following in zip_longest(said, said[1:], fillvalue=""):
        if not (_name_of(line) and _name_of(line) == _name_of(following)):
            yield line


def _name_of(line: str) -> str:
    """Return what a line about progress such as `words 77 %` is about; empty for other lines."""
    found = _PROGRESS.fullmatch(line.strip())
    return "" if found is None else found[1]
