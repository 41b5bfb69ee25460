"""Which checkpoints lead to another one, or to the present weights, by the records of a run."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.events import CheckpointSaved, Record, RolledBack, RunStarted


class _Ancestors:
    """Follows the records and knows at each one which checkpoints lead to its weights."""

    def __init__(self) -> None:
        self.here: list[str] = []
        self.of: dict[str, list[str]] = {}
        """For each checkpoint, those that lead to it, oldest first, with itself."""

    def take(self, record: Record) -> str:
        """Add a record; return the name of the checkpoint that it reports as saved, if it does."""
        match record.event:
            case RolledBack(checkpoint=name) | RunStarted(resumed_from=str(name)):
                self.here = list(self.of.get(name, []))
            case CheckpointSaved(name=name, mean_of=mean_of):
                self.of[name] = [*self.here, name]
                # Training does not continue from a mean, unless a rollback or a resume takes it
                # there.
                self.here = self.here if mean_of else self.of[name]
                return name
            case _:
                pass
        return ""


def names_leading_to(last: str, records: Iterable[Record]) -> list[str]:
    """Return the names of the checkpoints whose steps lead to one, oldest first, with this one.

    Checkpoints of steps that were rolled back are left out. Some may have been removed since. The
    list is empty if the records do not report the checkpoint `last`.
    """
    found = _Ancestors()
    for record in records:
        if found.take(record) == last:
            return found.of[last]
    return []


def names_leading_here(records: Iterable[Record]) -> list[str]:
    """Return the names of the checkpoints whose steps lead to the newest weights, oldest first."""
    found = _Ancestors()
    for record in records:
        found.take(record)
    return found.here
