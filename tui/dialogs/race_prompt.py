"""The prompt of a race: typed words become a request, with a preview of its size."""

from __future__ import annotations

import shlex

from fttui.engine.errors import ConfigError

from ..text.format import plural
from ..view_model.app_state import AppState
from ..view_model.race.race_state import RaceState
from ..view_model.race.request import RaceRequest, parse_request
from ..view_model.race.rounds import steps_of
from .prompts import ParsedInput

VERB = "race"


def read_race(text: str, state: AppState) -> ParsedInput:
    """Parse the words of a race; an empty text stands for the results of the newest one."""
    if not text.strip():
        return ParsedInput(text="", preview="shows the newest race of this run")
    try:
        wanted = request_of(text)
        race = RaceState(words=list(wanted.words), steps=wanted.steps, by=wanted.by or "eval.loss",
                         halving=wanted.halving)  # fmt: skip
        count, steps = len(race.plan), steps_of(race.rounds)
    except (ConfigError, ValueError) as error:
        return ParsedInput(error=str(error))
    last = state.run.last
    took = "" if last is None else f", each {last.step_s:.2g} s"
    preview = f"{count} variants, together {plural(steps, 'step')}{took}; asks before it begins"
    return ParsedInput(text=text, preview=preview)


def request_of(text: str) -> RaceRequest:
    """Return the request in a typed text.

    Raises:
        ConfigError: an option is unknown, or lacks its value.
        ValueError: a quote is not closed.
    """
    return parse_request(shlex.split(text))


def is_race(text: str) -> bool:
    """Whether a typed command is that of a race, which no command of `fttui ctl` is."""
    return text.split()[:1] == [VERB]
