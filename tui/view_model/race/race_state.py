"""The state of a race: the training of each variant so far, those that remain, and the best.

It is stored after every change, so that a race that was interrupted continues where it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

import msgspec

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.thresholds import lower_is_better
from fttui.engine.protocol.usage.amounts import Usage

from .rounds import Round, plan_rounds
from .variants import Variant, parse_variants
from .verdict import Difference, paired_difference

EVAL = "eval."
LOSS = "loss"
CPU = "cpu"
"""The name of the processor among devices."""
After = Literal["go", "pause", "stop"]
"""What the run does after a race: train on, pause, or stop with a checkpoint."""


class VariantState(msgspec.Struct, kw_only=True):
    """What one variant has trained so far."""

    rounds: int = 0
    """Number of rounds that it has finished."""
    settings: RunSettings | None = None
    """The settings it trains with; None before it has begun."""
    checkpoint: str = ""
    """The checkpoint at the end of its last round; empty before."""
    step: int = 0
    """The last step that it has trained."""
    timelines: list[int] = []
    losses: dict[int, float] = {}
    """The finite training losses, by step."""
    not_finite: int = 0
    """Number of steps whose loss was not finite."""
    score: float | None = None
    """The compared metric after its last round; None if it was not finite or is not known."""
    evaluations: dict[int, dict[str, float]] = {}
    """The metrics of its evaluations, by step."""
    beaten: bool = False
    """Whether it was dropped after a round because others were better."""
    failed: str = ""
    """Why it could not be trained to the end of a round; empty if it could."""
    remarks: list[str] = []
    """What disturbed it, such as a setting that somebody changed."""
    place: str = ""
    """The folder of the side run that has its checkpoint; empty if the run itself has it."""
    device: str = ""
    """The device that trains it now, or trained it last, beside others; empty without others."""
    at: int | None = None
    """The step that it has reached in its round; None while it does not train beside others."""
    recorded: bool = False
    """Whether the journal of the run has its curve, if it trained on another device."""

    @property
    def takes_part(self) -> bool:
        """Whether it trains the next round, too."""
        return not self.beaten and not self.failed


class RaceState(msgspec.Struct, kw_only=True):
    """A race: its plan, what it found on the run, and how far it is."""

    words: list[str]
    """The settings as they were typed, such as `lr=1e-4,2e-4`."""
    steps: int
    """Steps of a variant that stays to the end."""
    by: str
    """The metric that decides: `loss`, or `eval.` and the name of a metric of the evaluation."""
    halving: bool = True
    then: After = "go"
    keep: str = "best"
    """What the run continues with: `best`, `none` or the number of a variant."""
    before: RunSettings = RunSettings()
    """The settings before the race."""
    base: str = ""
    """The checkpoint that all variants start from; empty before it is written."""
    base_step: int = 0
    variants: list[VariantState] = []
    running: int | None = None
    """Index of the variant that trains; None between two variants."""
    kept: int | None = None
    """Index of the variant that the run continues with; None before, and if it returned to the
    start."""
    ended: bool = False
    """Whether the run continues outside the race."""
    devices: list[str] = []
    """The devices that train variants side by side; empty if the run trains one after another."""
    repeated_gap: float | None = None
    """Largest difference between the losses of the variant that the run continues with on its side
    device and in the run, which has trained its steps again; None if it has not."""
    side_usage: Usage = Usage()
    """What the side runs have used, which the meter of the run does not count."""

    @property
    def plan(self) -> tuple[Variant, ...]:
        """The variants in their order."""
        return parse_variants(self.words)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds of the race."""
        return plan_rounds(len(self.plan), self.steps, halving=self.halving)

    def require_sound(self) -> None:
        """Check that the words and the numbers belong together, as a file may hold anything.

        Raises:
            ConfigError: they do not.
        """
        count = len(self.plan)
        indices = [one for one in (self.running, self.kept) if one is not None]
        if self.steps < 1 or len(self.variants) not in (0, count):
            raise ConfigError(f"{self.steps} steps, {len(self.variants)} of {count} variants")
        if any(not 0 <= one < len(self.variants) for one in indices):
            raise ConfigError(f"no variant has the index {max(indices)}")

    def waiting(self, number: int) -> list[int]:
        """Return the indices of the variants that have yet to train a round."""
        return [n for n, one in enumerate(self.variants) if one.takes_part and one.rounds == number]

    def close_round(self, number: int) -> list[int]:
        """Drop the worse variants after a round; return the remaining ones, best first."""
        left = [n for n, one in enumerate(self.variants) if one.takes_part]
        ranked = sorted(left, key=lambda n: rank_key(self.by, self.variants[n].score))
        last = number == len(self.rounds) - 1
        keep = self.rounds[number].keep
        for n in [] if last else ranked[keep:]:
            self.variants[n].beaten = True
        return ranked if last else ranked[:keep]

    @property
    def ranking(self) -> list[int]:
        """The indices of the variants, best first; dropped ones come last."""
        order = range(len(self.variants))
        return sorted(order, key=lambda n: self._place(self.variants[n]))

    def _place(self, one: VariantState) -> tuple[bool, int, tuple[bool, float]]:
        return bool(one.failed), -one.rounds, rank_key(self.by, one.score)

    @property
    def best(self) -> int | None:
        """The index of the best variant of the last round; None if none has a score."""
        found = [n for n in self.ranking if self.variants[n].takes_part]
        return found[0] if found and self.variants[found[0]].score is not None else None

    def against(self, best: int, other: int) -> Difference | None:
        """Return by how much the training loss of a variant is above that of the best one."""
        one, first = self.variants[other], self.variants[best]
        return paired_difference(one.losses, first.losses, len(self.variants) - 1)


def rank_key(by: str, score: float | None) -> tuple[bool, float]:
    """Return a key that sorts the better values of a metric first, and unknown ones last."""
    if score is None:
        return True, 0.0
    return False, score if lower_is_better(by.removeprefix(EVAL)) else -score


def score_of(by: str, losses: Mapping[int, float], metrics: Mapping[str, float]) -> float | None:
    """Return the compared metric of a variant; None if it is not finite or not known.

    Args:
        by: the name of the metric.
        losses: the training losses by step, of which the mean of the second half counts.
        metrics: the metrics of the evaluation after the last step.
    """
    if by == LOSS:
        return mean_of_second_half(losses)
    value = metrics.get(by.removeprefix(EVAL), math.nan)
    return value if math.isfinite(value) else None


def mean_of_second_half(losses: Mapping[int, float]) -> float | None:
    """Return the mean loss of the second half of the steps; None without steps."""
    steps: Sequence[int] = sorted(losses)
    return fmean(losses[step] for step in steps[len(steps) // 2 :]) if steps else None
