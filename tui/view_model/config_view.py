"""The configuration of a run as shown: its resolved keys with their sources, and planned memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Origin = Literal["file", "--set", "default"]


@dataclass(frozen=True)
class ResolvedKey:
    """A key of the resolved configuration."""

    key: str
    """Dotted, such as `train.lr`."""
    value: str
    origin: Origin
    written: str = ""
    """The value in the user's file, if another value is in force."""


@dataclass(frozen=True)
class ConfigView:
    """The resolved configuration and the memory planned; empty until it was read or received."""

    resolved: tuple[ResolvedKey, ...] = ()
    gpu_bytes: Mapping[str, int] = field(default_factory=dict)
    """Planned memory per rank on a GPU, by term such as `base`."""
    cpu_bytes: Mapping[str, int] = field(default_factory=dict)
    """Planned memory per rank on a CPU, by term."""

    @cached_property
    def values(self) -> Mapping[str, str]:
        """The resolved configuration as key path → value."""
        return {item.key: item.value for item in self.resolved}

    def planned(self, *, gpu: bool) -> Mapping[str, int]:
        """Return the planned memory by term for a GPU or a CPU, without empty terms."""
        terms = self.gpu_bytes if gpu else self.cpu_bytes
        return {name: size for name, size in terms.items() if size > 0}


def resolved_keys(
    resolved: Mapping[str, Any], source: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[ResolvedKey, ...]:
    """Return every resolved key with its source: the file, `--set` or a default.

    Args:
        resolved: the resolved configuration.
        source: the configuration file as the user wrote it.
        overrides: the `key=value` texts of `--set`.
    """
    written = dict(flat(source))
    given = {override.partition("=")[0] for override in overrides}
    found = []
    for key, value in flat(resolved):
        origin: Origin = "--set" if key in given else "file" if key in written else "default"
        before = written.get(key, "")
        found.append(ResolvedKey(key, value, origin, before if before != value else ""))
    return tuple(found)


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a tree with their values as text, `–` for None."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case list():
            return ", ".join(_text(item) for item in value) or "[]"
        case _:
            return str(value)


def differences(left: ConfigView, right: ConfigView) -> list[tuple[str, str, str]]:
    """Return the keys whose values differ, with both values; `–` if a side lacks the key."""
    ours = {item.key: item.value for item in left.resolved}
    theirs = {item.key: item.value for item in right.resolved}
    keys = [*ours, *(key for key in theirs if key not in ours)]
    pairs = ((key, ours.get(key, "–"), theirs.get(key, "–")) for key in keys)
    return [pair for pair in pairs if pair[1] != pair[2]]
