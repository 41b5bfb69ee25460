"""Culprit search: which samples of a step raise its loss or gradient norm, by group tests.

A test trains the step with some of its samples present and the others replaced by samples that
have nothing to do with it. If a group raises the figures, one of its halves does. So one culprit
among n samples takes about log2 n tests, and every further one about as many again.

Source: Du, Hwang 2000, Combinatorial Group Testing and Its Applications: binary splitting.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

MOST_CULPRITS = 4
"""Culprits for which a search has tests enough; more of them are reported as unfinished."""
ATTEMPTS = 2
"""Attempts to find a sample that raises the figures alone; noise can mislead the first one."""
EVIDENT = 3.5
"""Multiple of the usual noise by which the samples of a step have to raise a figure at all."""
RAISED = 4.0
"""Multiple of the usual noise from which a group counts as raising a figure."""
PART, MOST_PART = 0.1, 0.5
"""Shares of the whole excess: a group that adds less than the first one does not count as raising a
figure, and one that adds more than the second one always does."""
REST = 0.3
"""Share of the excess that may be left when no further sample is found, for the others to count as
found: a batch can be hard as a whole."""
FEW = 8
"""Steps from which the noise is estimated; with fewer it is taken for 5 % of the level."""

Verdict = Literal["found", "spread", "together", "unfinished", "interrupted", "not repeated"]
"""found: without the culprits the figures are usual; spread: no sample explains them; together:
only a group of samples does; unfinished: the figures are raised without the culprits too;
interrupted: a command ended the search; not repeated: the replay came to other figures than the
run."""


class Figures(NamedTuple):
    """Loss and gradient norm of a step."""

    loss: float
    grad_norm: float

    @property
    def finite(self) -> bool:
        """Whether both are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    def scaled(self) -> tuple[float, float]:
        """Return the loss and the logarithm of the norm, which have about constant noise."""
        return self.loss, math.log(max(self.grad_norm, 1e-12))


class Noise(NamedTuple):
    """Robust standard deviations of the loss and of the logarithm of the gradient norm."""

    loss: float
    log_norm: float

    @classmethod
    def of(cls, steps: Sequence[Figures]) -> Noise:
        """Estimate the noise from the figures of the steps before, of which some may be odd.

        A step is compared with the mean of its two neighbours, so that a falling loss adds little.
        With fewer than `FEW` finite steps the noise is taken for 5 % of the level of the loss, and
        for 0.05 of the logarithm of the norm.
        """
        finite = [one.scaled() for one in steps if one.finite]
        losses, norms = ([one[index] for one in finite] for index in (0, 1))
        return cls(_noise(losses, abs(median(losses)) if losses else 1.0), _noise(norms, 1.0))


def _noise(values: Sequence[float], level: float) -> float:
    if len(values) < FEW:
        return max(0.05 * level, 1e-6)
    triples = zip(values, values[1:], values[2:], strict=False)
    bends = [abs(value - (before + after) / 2) for before, value, after in triples]
    return max(1.4826 * median(bends) / math.sqrt(1.5), 1e-3 * level, 1e-6)


@dataclass(frozen=True)
class Suspect:
    """A sample and the figures of the step with it and without it."""

    id: str
    present: Figures
    absent: Figures

    def loss_share(self, whole: Figures, replaced: Figures) -> float | None:
        """Return its share, 0 to 1, in what the samples add to the loss of the step.

        None if the losses are not finite, or the samples add nothing.

        Args:
            whole: the figures with all samples.
            replaced: the figures with all samples replaced.
        """
        return _share(self.present.loss - self.absent.loss, whole.loss - replaced.loss)

    def norm_share(self, whole: Figures, replaced: Figures) -> float | None:
        """Return its share, 0 to 1, in what the samples add to the gradient norm of the step.

        None if the norms are not finite, or the samples add nothing. Arguments as `loss_share`.
        """
        added = self.present.grad_norm - self.absent.grad_norm
        return _share(added, whole.grad_norm - replaced.grad_norm)


def _share(part: float, whole: float) -> float | None:
    if not math.isfinite(part) or not math.isfinite(whole) or whole <= 0:
        return None
    return min(1.0, max(0.0, part / whole))


@dataclass(frozen=True)
class SearchResult:
    """What a search has found."""

    verdict: Verdict
    whole: Figures | None = None
    """The figures of the step as it was; None if it was not repeated."""
    replaced: Figures | None = None
    """The figures with all samples replaced; None if that was not tested."""
    culprits: list[Suspect] = field(default_factory=list)
    """The samples that raise the figures, the first found first."""
    group: list[str] = field(default_factory=list)
    """The smallest group known to raise them beside the culprits, if one is left."""


def usual_again(whole: Figures, replaced: Figures, usual: Figures, noise: Noise) -> bool:
    """Return whether the raised figures of a step are about usual after other samples were used.

    True if little of their excess over the usual level is left, or if only `whole` is not finite;
    False if no figure was raised, or `replaced` is not finite.

    Args:
        whole: loss and gradient norm of the step in the run.
        replaced: the same after some samples were replaced.
        usual: the same at the level of the steps before.
        noise: the noise of both in the steps before.
    """
    if not replaced.finite:
        return False
    if not whole.finite:
        return True
    rows = zip(whole.scaled(), replaced.scaled(), usual.scaled(), noise, strict=True)
    raised = [(high, now, low) for high, now, low, sd in rows if high - low > EVIDENT * sd]
    return bool(raised) and all(now - low <= REST * (high - low) for high, now, low in raised)


Search = Generator[tuple[str, ...], Figures, SearchResult]
"""Yields the samples that are present in the next test, and receives the figures of the test."""


class OutOfTests(Exception):
    """The number of tests is used up."""


def most_tests(samples: int) -> int:
    """Return the largest number of tests of a step with so many samples."""
    return 2 + MOST_CULPRITS * (math.ceil(math.log2(max(2, samples))) + 2)


def search(samples: Sequence[str], noise: Noise) -> Search:
    """Search a step for the samples that raise its loss or its gradient norm.

    A generator, see `Search`: it yields the samples of each test and is sent the test's figures.

    Args:
        samples: ids of the samples of the step.
        noise: noise of the figures of the steps before.
    """
    tests = _Tests(tuple(dict.fromkeys(samples)))
    whole = yield from tests.run(tests.samples)
    replaced = yield from tests.run(())
    result = SearchResult("spread", whole, replaced)
    excess = _Excess.of(whole, replaced, noise)
    if excess is None:
        return result
    rest, before, smallest = list(tests.samples), whole, list(tests.samples)
    failed = 0
    try:
        while excess.raised(before):
            suspect, group = yield from _halve(tests, rest, excess)
            smallest = min(smallest, group, key=len)
            others = [one for one in rest if one != suspect]
            after = yield from tests.run(tuple(others))
            guilty = not excess.raised(after)
            if not guilty and excess.lowered(before, after):
                guilty = excess.raised((yield from tests.run((suspect,))))
            if not guilty:
                failed += 1
                if failed == ATTEMPTS:
                    if excess.explained(before):
                        return _with(result, "found", [])
                    return _with(result, "unfinished" if result.culprits else "together", smallest)
                rest = [*rest[::2], *rest[1::2]]  # other halves
                continue
            result.culprits.append(Suspect(suspect, before, after))
            rest, before, smallest = others, after, others
    except OutOfTests:
        return _with(result, "unfinished", [])
    return _with(result, "found", [])


def _halve(
    tests: _Tests, group: Sequence[str], excess: _Excess
) -> Generator[tuple[str, ...], Figures, tuple[str, list[str]]]:
    """Narrow a group to one candidate by halving; return it and the smallest raised group.

    That is the smallest half whose test had raised figures, or the whole group if none had.

    Raises:
        OutOfTests: the number of tests is used up.
    """
    group, smallest = list(group), list(group)
    while len(group) > 1:
        half, other = group[: len(group) // 2], group[len(group) // 2 :]
        if excess.raised((yield from tests.run(tuple(half)))):
            group = smallest = half
        else:
            group = other
    return group[0], smallest


def _with(result: SearchResult, verdict: Verdict, group: list[str]) -> SearchResult:
    return SearchResult(verdict, result.whole, result.replaced, result.culprits, group)


class _Tests:
    """The tests of a search; none is made twice, and their number is bounded."""

    def __init__(self, samples: tuple[str, ...]) -> None:
        self.samples = samples
        self._known: dict[frozenset[str], Figures] = {}
        self._most = most_tests(len(samples))

    def run(self, present: tuple[str, ...]) -> Generator[tuple[str, ...], Figures, Figures]:
        """Return the figures with these samples present; yields them for a test unless known.

        Raises:
            OutOfTests: another test would be one too many.
        """
        key = frozenset(present)
        if key not in self._known:
            if len(self._known) >= self._most:
                raise OutOfTests
            self._known[key] = yield present
        return self._known[key]


@dataclass(frozen=True)
class _Excess:
    """By how much the samples of a step raise its figures, and from where on a group does."""

    base: tuple[float, float]
    limits: tuple[float, float]
    """Above the base, for the loss and the logarithm of the norm; infinite for one not raised."""
    whole: tuple[float, float] = (math.inf, math.inf)
    """How far the step as it was is above the base."""

    @classmethod
    def of(cls, whole: Figures, replaced: Figures, noise: Noise) -> _Excess | None:
        """Return the excess of the whole step over the step with all samples replaced.

        None if the figures are about the same, or those of the replaced step are not finite.
        """
        if not replaced.finite:
            return None
        base = replaced.scaled()
        if not whole.finite:
            return cls(base, (math.inf, math.inf))
        limits = [math.inf, math.inf]
        above = whole.scaled()[0] - base[0], whole.scaled()[1] - base[1]
        for index, (high, low) in enumerate(zip(whole.scaled(), base, strict=True)):
            if high - low > EVIDENT * noise[index]:
                whole_excess = high - low
                limit = max(RAISED * noise[index], PART * whole_excess)
                limits[index] = min(limit, MOST_PART * whole_excess)
        return None if min(limits) == math.inf else cls(base, (limits[0], limits[1]), above)

    def raised(self, figures: Figures) -> bool:
        """Return whether a figure is above its limit or not finite."""
        return not figures.finite or any(
            value - low > limit
            for value, low, limit in zip(figures.scaled(), self.base, self.limits, strict=True)
        )

    def explained(self, rest: Figures) -> bool:
        """Return whether little is left of the excess of the figure that was raised most.

        False if these figures, or those of the whole step, are not finite.
        """
        if not rest.finite or min(self.limits) == math.inf:
            return False
        rows = zip(rest.scaled(), self.base, self.limits, self.whole, strict=True)
        most = max(rows, key=lambda row: row[3] / row[2])
        return most[0] - most[1] <= REST * most[3]

    def lowered(self, before: Figures, after: Figures) -> bool:
        """Return whether the figures may be lower than before: True also if some are not finite."""
        if not before.finite or not after.finite:
            return True
        pairs = zip(before.scaled(), after.scaled(), self.limits, strict=True)
        return any(high - low > limit for high, low, limit in pairs)
