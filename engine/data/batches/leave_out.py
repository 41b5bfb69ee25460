"""Leave samples out of the batches: find their examples, and make packed rows without them.

A sample is known by the id of its record. In a packed row only its own document is left out, which
changes no other one, because attention does not cross documents; a row of nothing else is replaced
as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace

from ..tokens.examples import Example, PackedExample, RatedExample


def sample_ids(example: Example) -> list[str]:
    """Return the ids of the samples in an example, of which a packed row has several."""
    if isinstance(example, PackedExample):
        return [document.id for document in example.documents]
    return [example.id]


def kept_in(examples: Sequence[Example], left_out: Collection[str]) -> Sequence[Example]:
    """Return the examples without those whose samples are all in `left_out`."""
    out = frozenset(left_out)
    return [one for one in examples if not out.issuperset(sample_ids(one))] if out else examples


class LeaveOut:
    """Finds the places of samples among the examples, and makes examples without them."""

    def __init__(self, examples: Sequence[Example], sources: Sequence[range]) -> None:
        """Keep the examples; their ids are indexed when the first sample is left out.

        Args:
            examples: All training examples, one source after the other.
            sources: The indices of the examples of each source.
        """
        self._examples = examples
        self._sources = sources
        self._by_id: dict[str, list[int]] = {}
        self._known: tuple[Set[str], Set[int]] = (frozenset(), frozenset())

    def places(self, ids: Set[str]) -> Set[int]:
        """Return the indices of the examples that consist of these samples alone."""
        if ids != self._known[0]:
            index = self._index()
            found = {place for one in ids for place in index.get(one, ())}
            out = {place for place in found if ids >= set(sample_ids(self._examples[place]))}
            self._known = ids, frozenset(out)
        return self._known[1]

    def example(self, place: int, ids: Set[str]) -> Example:
        """Return the example at an index, a packed one without the documents of these samples.

        A mismatched completion among them is replaced; other examples are returned unchanged.
        """
        example = self._examples[place]
        if not ids:
            return example
        if isinstance(example, PackedExample) and not ids.isdisjoint(sample_ids(example)):
            documents = tuple(one for one in example.documents if one.id not in ids)
            return replace(example, documents=documents)
        if isinstance(example, RatedExample) and example.mismatched.id in ids:
            return self._rated(example, place, ids)
        return example

    def _rated(self, example: RatedExample, place: int, ids: Set[str]) -> RatedExample:
        """Return a rated completion with the mismatched one of the next example that is kept.

        Without such an example, its own completion takes that place.
        """
        for donor in self._following(place):
            if isinstance(donor, RatedExample) and ids.isdisjoint((donor.id, donor.mismatched.id)):
                return replace(example, mismatched=donor.mismatched)
        return replace(example, mismatched=example.text)

    def _following(self, place: int) -> Iterator[Example]:
        for number in range(place + 1, place + len(self._examples)):
            yield self._examples[number % len(self._examples)]

    def why_not(self, ids: Collection[str]) -> str:
        """Return why these samples cannot all be left out; empty if they can."""
        if unknown := self.unknown(ids):
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            known = next(iter(self._index()), "")
            return (
                f"no training sample has the id {unknown[0]!r}{more}; the report of an anomaly "
                f"lists the ids of the samples of its step, and {known!r} is an id of these data"
            )
        out = self.places(frozenset(ids))
        for source in self._sources if out else ():
            if out >= set(source):
                return (
                    "these are all training samples of a source, so that none is left to take "
                    "their places; keep at least one of them"
                )
        return ""

    def unknown(self, ids: Collection[str]) -> list[str]:
        """Return the ids that no sample has."""
        return [one for one in ids if one not in self._index()] if ids else []

    def _index(self) -> dict[str, list[int]]:
        """Return the indices of the examples that hold each sample, by the id of the sample."""
        if not self._by_id:
            for place, example in enumerate(self._examples):
                for one in sample_ids(example):
                    self._by_id.setdefault(one, []).append(place)
        return self._by_id
