"""Records what happens to each key of another tool's configuration."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import yaml

Verdict = Literal["same", "nearly", "dropped", "no effect", "refused"]
"""same: the key has a counterpart; nearly: its counterpart differs; dropped: it has none, and the
result of the training changes; no effect: the result does not depend on it; refused: a training
with it is not possible here."""

_WIDEST = 60
"""Most characters of a value that are shown."""


@dataclass(frozen=True)
class KeyOutcome:
    """What happened to one key."""

    key: str
    """Name in the other tool, such as `datasets[0].type`; empty for a default of the tool."""
    value: str
    verdict: Verdict
    ours: str = ""
    """The key of fttui and its value, such as `train.lr: 0.0002`; empty if there is none."""
    reason: str = ""
    """What differs, or why the key is dropped, refused or without effect; empty if nothing needs
    saying."""
    settled_by: tuple[str, ...] = ()
    """Keys of fttui that settle it if the user sets one of them."""


@dataclass(frozen=True)
class Imported:
    """A configuration of another tool, read as one of fttui."""

    tool: str
    rows: tuple[KeyOutcome, ...]
    values: Mapping[str, Any]
    """Key path of fttui → value, such as `train.lr` → 0.0002."""
    notes: Mapping[str, str]
    """Key path of fttui → the comment on its line in the written file."""

    def settled(self, given: Mapping[str, Any]) -> Imported:
        """Return it with keys of fttui and values that the user gives, who decides rows by them."""
        rows = tuple(_settled(row, given) for row in self.rows)
        values, notes = {**self.values, **given}, {**self.notes, **dict.fromkeys(given, "--set")}
        return replace(self, rows=rows, values=values, notes=notes)

    def of(self, *verdicts: Verdict) -> list[KeyOutcome]:
        """Return the rows with one of these verdicts."""
        return [row for row in self.rows if row.verdict in verdicts]


@dataclass
class Draft:
    """Collects values of fttui while the keys of the other tool are read one by one."""

    given: Mapping[str, Any]
    """The other tool's configuration; a key whose value is null counts as absent."""
    values: dict[str, Any] = field(default_factory=dict)
    rows: list[KeyOutcome] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    """Keys that a rule has looked for, given or not."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` if it is absent or null; the key stays unread."""
        self._asked.add(key)
        value = self.given.get(key)
        return default if value is None else value

    def same(self, key: str, path: str, value: Any) -> None:
        """Set a key of fttui that means what the other tool's key means."""
        self._set(key, "same", path, value, "")

    def nearly(self, key: str, path: str, value: Any, reason: str) -> None:
        """Set a key of fttui that differs from the other tool's key in what the reason says."""
        self._set(key, "nearly", path, value, reason)

    def differs(self, key: str, reason: str) -> None:
        """Note a key for which no key of fttui is set; the reason says what fttui does instead."""
        self._note(key, "nearly", reason)

    def default(self, path: str, value: Any, why: str, verdict: Verdict = "same") -> None:
        """Set a key of fttui that no key of the other tool gives, such as to the tool's default."""
        self.values[path] = value
        self.notes[path] = why
        self.rows.append(KeyOutcome("", "", verdict, _pair(path, value), why))

    def dropped(self, key: str, reason: str) -> None:
        """Note a key that changes the result of the training and has no counterpart."""
        self._note(key, "dropped", reason)

    def without_effect(self, key: str, reason: str) -> None:
        """Note a key that the result of the training does not depend on."""
        self._note(key, "no effect", reason)

    def refused(self, key: str, reason: str, settled_by: str = "") -> None:
        """Note a key that asks for a training that is not possible here.

        `settled_by` is a key of fttui that the user may set instead, which the reason then says.
        """
        if settled_by:
            reason = f"{reason}; choose another one with --set {settled_by}=…"
        keys = (settled_by,) if settled_by else ()
        self._add(KeyOutcome(key, self._shown(key), "refused", "", reason, keys))

    def unread(self) -> Iterable[str]:
        """Return the keys with a value other than null for which no row has been added."""
        return [k for k, value in self.given.items() if value is not None and k not in self._read]

    def has(self, key: str) -> bool:
        """Whether a key is given with a value other than null, false, 0 and an empty one."""
        self._asked.add(key)
        return bool(self.given.get(key))

    def unknown(self, key: str) -> None:
        """Note a key that no rule knows as dropped, with the most similar one that a rule knows."""
        self._note(key, "dropped", unknown(key, self._asked - set(self.given)))

    def read_with(self, key: str, other: str) -> None:
        """Note a key, if it is given, as read together with what `other` names."""
        if self.get(key) is not None:
            self._note(key, "same", f"read with {other}")

    def adjust(self, path: str, value: Any, reason: str) -> None:
        """Change a key of fttui that is set; the rows that gave it get the verdict `nearly`."""
        self.values[path] = value
        self.notes[path] = f"{self.notes.get(path, '').split(':')[0]}: {reason}".lstrip(": ")
        for place, row in enumerate(self.rows):
            if row.ours.startswith(f"{path}: "):
                changed = replace(row, verdict="nearly", ours=_pair(path, value), reason=reason)
                self.rows[place] = changed

    def leave_out(self, path: str, verdict: Verdict, reason: str) -> None:
        """Unset a key of fttui; the rows of the keys that gave it get this verdict instead.

        It does nothing if the key is not set.
        """
        if path in self.values:
            del self.values[path]
            self.notes.pop(path, None)
            self._overrule(path, verdict, reason)

    def extend(self, rows: Iterable[KeyOutcome]) -> None:
        """Add the rows of a part of the configuration, such as one dataset."""
        self.rows.extend(rows)

    def _overrule(self, path: str, verdict: Verdict, reason: str) -> None:
        """Give another verdict to rows that set a key of fttui, and remove those of defaults."""
        ours = [row for row in self.rows if row.ours.startswith(f"{path}: ")]
        for row in ours:
            place = self.rows.index(row)
            changed = [replace(row, verdict=verdict, ours="", reason=reason)] if row.key else []
            self.rows[place : place + 1] = changed

    def _set(self, key: str, verdict: Verdict, path: str, value: Any, reason: str) -> None:
        if self.values.get(path, value) != value:
            other = f"{key} says something else for the same setting, and is used"
            self._overrule(path, "dropped", other)
        self.values[path] = value
        self.notes[path] = f"{key}: {reason}" if reason else key
        self._add(KeyOutcome(key, self._shown(key), verdict, _pair(path, value), reason))

    def _note(self, key: str, verdict: Verdict, reason: str) -> None:
        self._add(KeyOutcome(key, self._shown(key), verdict, "", reason))

    def _add(self, row: KeyOutcome) -> None:
        self._read.add(row.key)
        self.rows.append(row)

    def _shown(self, key: str) -> str:
        return shown(self.given.get(key)) if key in self.given else ""


def _settled(row: KeyOutcome, given: Mapping[str, Any]) -> KeyOutcome:
    if row.verdict not in ("refused", "dropped"):
        return row
    decided = [key for key in row.settled_by if key in given]
    return replace(row, verdict="nearly", reason=f"--set {decided[0]}") if decided else row


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the reason for a key that is not known, with the most similar known one, if any."""
    close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.8)
    return "fttui does not know this key" + (f"; did you mean {close[0]}?" if close else "")


def shown(value: Any) -> str:
    """Return a value as YAML on one line, cut to the width of a table."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    text = " ".join(text.removesuffix("...\n").split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _pair(path: str, value: Any) -> str:
    return f"{path}: {shown(value)}"


def number(value: Any) -> float:
    """Return a number that a file may hold as text, such as `2e-4`.

    A whole one below 2**53 is an int.

    Raises:
        ValueError: It is not a finite number, or a truth value.
    """
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"expected a number, got {shown(value)}")
    return int(found) if found.is_integer() and abs(found) < 2**53 else found


def truth(value: Any) -> bool:
    """Return whether a value is true; of texts, only `true`, `yes` and `on` are, in any case."""
    return value.lower() in ("true", "yes", "on") if isinstance(value, str) else bool(value)


def keys_by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return {key: reason} from {reason: its keys, separated by white space}."""
    return {key: reason for reason, keys in reasons.items() for key in keys.split()}
