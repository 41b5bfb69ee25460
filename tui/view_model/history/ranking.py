"""The runs of a comparison, best first, and which of them are drawn in colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_letters, digits

from ..branches import EVAL, smoothed
from ..run_view import RunView

MOST_RUNS = 64
"""Most runs of a comparison, this one among them."""
COLOURED = 8
"""Runs that are drawn in colour unless the user picks others; more curves cannot be told apart."""
COLOURS = ("run1", "run2", "run3", "run4")
SIGNS: tuple[str, ...] = ("●", "◆", "▲", "■", "○", "◇", "▼", "□", *ascii_letters, *digits)
"""Signs of runs by their place; a sign is never used twice, and colours are."""
_EVAL_LOSS, _LOSS = f"{EVAL}loss", smoothed(0.98)
_NAME, _SEED = "name", "train.seed"
"""Settings that do not say what was tried: the id has the name, and the seed is listed last."""


@dataclass(frozen=True)
class RunPicks:
    """What the user has chosen to see of a comparison."""

    words: str = ""
    """Words that a run's line must contain, all of them; other runs are not drawn."""
    picked: frozenset[str] = frozenset()
    """Ids of runs that are drawn in colour wherever they rank."""
    hidden: frozenset[str] = frozenset()
    """Ids of runs that are not drawn."""
    current: str = ""
    """Id of the run under the cursor, which is drawn over all others."""

    def toggled(self, run_id: str, *, coloured: bool) -> RunPicks:
        """Return the picks with a run in its next state: in colour, hidden, in grey."""
        if run_id in self.hidden:
            return replace(self, hidden=self.hidden - {run_id})
        if coloured:
            picked = self.picked - {run_id}
            return replace(self, picked=picked, hidden=self.hidden | {run_id})
        return replace(self, picked=self.picked | {run_id})


@dataclass(frozen=True)
class RankedRun:
    """A run of a comparison at its place."""

    id: str
    run: RunView
    settings: str
    """The settings in which the runs differ, such as `lr 1e-4 · r 16`."""
    value: float | None
    """What it is ranked by; None if it has no value."""
    place: int
    """0 for the best run."""
    own: bool = False
    """Whether it is the run that the app shows."""
    coloured: bool = False
    hidden: bool = False

    @property
    def sign(self) -> str:
        """The sign of its curves; no other run has it."""
        return SIGNS[self.place % len(SIGNS)]

    @property
    def colour(self) -> str:
        """The look of its curves; every fourth run has the same."""
        return COLOURS[self.place % len(COLOURS)]

    @property
    def text(self) -> str:
        """What the filter searches."""
        return f"{self.id} {self.settings}".lower()


@dataclass(frozen=True)
class Candidate:
    """A run that is to be ranked."""

    id: str
    run: RunView
    settings: Mapping[str, str]
    """Its resolved configuration as key path → value."""
    own: bool = False


def ranked_by(runs: Sequence[RunView]) -> str:
    """Return the curve that runs are ranked by: the evaluation loss if all have it, else the loss.

    The loss is smoothed, because that of a single batch says little.
    """
    return _EVAL_LOSS if runs and all(_best(run) is not None for run in runs) else _LOSS


def _best(run: RunView) -> float | None:
    return run.best_eval_loss


def ranking(candidates: Sequence[Candidate], picks: RunPicks) -> list[RankedRun]:
    """Return runs with the lowest value first, those without a finite one last.

    In colour are the run that the app shows, the picked ones, and the best of those that are
    neither hidden nor filtered out.
    """
    by = ranked_by([one.run for one in candidates])
    keys = varying([one.settings for one in candidates])
    rows = [(_value(one.run, by), one, settings_text(one.settings, keys)) for one in candidates]
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0.0, row[1].id))
    found = [
        RankedRun(one.id, one.run, words, value, place, own=one.own)
        for place, (value, one, words) in enumerate(rows)
    ]
    return _coloured(found, picks)


def _value(run: RunView, by: str) -> float | None:
    value = _best(run) if by == _EVAL_LOSS else run.live_value(_LOSS)
    return value if value is not None and math.isfinite(value) else None


def _coloured(found: Sequence[RankedRun], picks: RunPicks) -> list[RankedRun]:
    words = picks.words.lower().split()
    hidden = {
        one.id for one in found if one.id in picks.hidden or any(w not in one.text for w in words)
    }
    seen = [one.id for one in found if one.id not in hidden]
    coloured = {*seen[:COLOURED], *(picks.picked & set(seen))}
    coloured |= {one.id for one in found if one.own and one.id not in hidden}
    return [replace(one, coloured=one.id in coloured, hidden=one.id in hidden) for one in found]


def varying(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys whose values differ among configurations, the seed last, without the name.

    A configuration of which nothing is known is left out.
    """
    known = [one for one in settings if one]
    keys = dict.fromkeys(key for one in known for key in one if key != _NAME)
    differing = [key for key in keys if len({one.get(key, "–") for one in known}) > 1]
    return sorted(differing, key=lambda key: key == _SEED)


def settings_text(settings: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return the values of keys as `lr 1e-4 · r 16`; a key is named by its last part."""
    return " · ".join(f"{key.rpartition('.')[2]} {settings.get(key, '–')}" for key in keys)
