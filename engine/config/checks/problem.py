"""`Problem`, a finding of the checks, and `require`, which raises one error for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """A setting that keeps a run from starting."""

    key: str
    """The key to change, such as `train.batch`."""
    text: str
    """What is wrong and how to correct it."""


def require(problems: Iterable[Problem], places: Mapping[str, str], file: str) -> None:
    """Raise one error for all problems; return if there are none.

    Args:
        problems: Findings of the checks.
        places: Key path → where it was set; a key that is not in it is reported with the file name.
        file: The configuration file.

    Raises:
        ConfigError: All problems, one per line.
    """
    lines = [
        f"{places.get(problem.key, file)}: {problem.key}: {problem.text}" for problem in problems
    ]
    if lines:
        raise ConfigError("\n".join(lines))
