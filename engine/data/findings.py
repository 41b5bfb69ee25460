"""Findings about the data: what is dropped, cut, masked, ignored or guessed, counted by reason.

Every stage that reads the data notes what it changes in one `Findings` object. `check`, the facts
of a run and the app show the same findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ..config.data_reasons import REASONS
from ..config.data_reasons.reason import EVERYTHING, Reason, Unit
from ..errors import DataError
from ..protocol.event_parts import DataFinding


@dataclass(frozen=True)
class CountedReason:
    """A reason with the number of times it applied and its first place."""

    reason: Reason
    count: int
    total: int
    """Number of units that were looked at; at least `count`."""
    place: str
    """Where the reason applied first, such as `train.jsonl:7`; empty if it has no place."""
    detail: str = ""
    """What was found there, such as the name of a column."""

    @property
    def share(self) -> float:
        """Share of the units to which the reason applied."""
        return self.count / self.total

    def needs_consent(self, accepted: Sequence[str]) -> bool:
        """Whether the share exceeds the reason's limit and the user has not accepted it."""
        given = self.reason.name in accepted or EVERYTHING in accepted
        return not given and self.reason.limit is not None and self.share > self.reason.limit

    @property
    def amount(self) -> str:
        """The number of units, out of how many, such as `3 of 45 records (6.7 %)`."""
        return self.to_struct().amount

    @property
    def where(self) -> str:
        """The first place and its detail, such as `first: train.jsonl:7`; empty if unknown."""
        return self.to_struct().where

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        return self.to_struct().line

    def to_struct(self) -> DataFinding:
        """Return the finding as it travels to viewers."""
        return DataFinding(
            reason=self.reason.name,
            text=self.reason.text,
            unit=self.reason.unit,
            count=self.count,
            total=self.total,
            place=self.place,
            detail=self.detail,
            remedy=self.reason.remedy,
        )


class FindingsState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a `Findings` object, as it is stored."""

    counts: dict[str, int]
    """Number of units by the name of the reason."""
    firsts: dict[str, tuple[str, str]]
    """First place and detail by the name of the reason."""
    totals: dict[Unit, int]


class Findings:
    """Counts by reason, with the first place of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._firsts: dict[str, tuple[str, str]] = {}
        self._totals: Counter[Unit] = Counter()

    @classmethod
    def of(cls, state: FindingsState) -> Findings:
        """Return the findings that were stored."""
        found = cls()
        found._counts = Counter(state.counts)
        found._firsts = dict(state.firsts)
        found._totals = Counter(state.totals)
        return found

    def state(self) -> FindingsState:
        """Return the findings as they are stored."""
        return FindingsState(
            counts=dict(self._counts), firsts=dict(self._firsts), totals=dict(self._totals)
        )

    def note(self, reason: Reason, place: str, detail: str = "", count: int = 1) -> None:
        """Count `count` units to which a reason applies; the first place is kept.

        A count of 0 changes nothing.
        """
        if count:
            self._counts[reason.name] += count
            self._firsts.setdefault(reason.name, (place, detail))

    def counted(self, unit: Unit, count: int) -> None:
        """Add to the number of units that were looked at."""
        self._totals[unit] += count

    def count(self, reason: Reason) -> int:
        """Return how many units a reason applied to."""
        return self._counts[reason.name]

    def total(self, unit: Unit) -> int:
        """Return how many units were looked at."""
        return self._totals[unit]

    def add(self, other: Findings) -> None:
        """Add the findings of another part of the data; first places known here are kept."""
        self._counts.update(other._counts)
        self._totals.update(other._totals)
        self._firsts = other._firsts | self._firsts

    def __iter__(self) -> Iterator[CountedReason]:
        """Yield the reasons that were counted, in the order of `REASONS`."""
        for reason in REASONS:
            if count := self._counts[reason.name]:
                total = max(count, self._totals[reason.unit])
                yield CountedReason(reason, count, total, *self._firsts[reason.name])

    def facts(self) -> dict[str, str]:
        """Return the findings as facts: text of the reason → amount and first place."""
        return {
            found.reason.text: f"{found.amount}" + (f"; {found.where}" if found.where else "")
            for found in self
        }

    def require_consent(self, accepted: Sequence[str]) -> None:
        """Raise if a finding needs consent that the user has not given.

        Raises:
            DataError: A share exceeds its limit; the text names every such finding.
        """
        missing = [found for found in self if found.needs_consent(accepted)]
        if missing:
            raise DataError(_consent_text(missing))

    def to_structs(self) -> list[DataFinding]:
        """Return the findings as they travel to viewers."""
        return [found.to_struct() for found in self]


class OncePerPlace(Findings):
    """Findings of rows that are read several times: a reason counts once at each place.

    Args:
        findings: Receives what is counted.
    """

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._findings = findings
        self._noted: set[tuple[str, str]] = set()

    def note(self, reason: Reason, place: str, detail: str = "", count: int = 1) -> None:
        """Count `count` units to which a reason applies, unless it was counted at this place."""
        if count and (reason.name, place) not in self._noted:
            self._noted.add((reason.name, place))
            self._findings.note(reason, place, detail, count)

    def counted(self, unit: Unit, count: int) -> None:
        """Add to the number of units that were looked at, in the findings that receive them."""
        self._findings.counted(unit, count)


def _consent_text(missing: Iterable[CountedReason]) -> str:
    listed = list(missing)
    lines = [f"  {one.line}; {one.reason.remedy}" for one in listed]
    names = ", ".join(one.reason.name for one in listed)
    return "\n".join(
        [
            "these findings about the data need your consent before training:",
            *lines,
            f"Follow these steps, or set data.accept: [{names}] to train anyway",
        ]
    )
