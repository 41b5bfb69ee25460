"""Write an imported configuration as a commented YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ..messages import key_paths
from ..schema import RunConfig
from .draft import Imported

_KEY = re.compile(r"^([A-Za-z_][\w-]*):[^#]*?(?:\s#\s*(.*))?$")
_MOST_NOTE = 100
"""Most characters of a comment that are kept."""


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and lists of short values on one line."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    short = all(isinstance(one, bool | int | float | str) and len(str(one)) < 40 for one in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=short)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)


def written(imported: Imported, source: str, text: str) -> str:
    """Return the imported configuration as YAML; comments name the keys that values come from.

    Comments at the top list the keys that are dropped or refused. Comments of the other file follow
    the keys that they stood beside.

    Args:
        imported: the configuration that was read.
        source: name of the other tool's file.
        text: content of that file.
    """
    remarks = comments_of(text)
    lines = [f"# Imported from {source}, a configuration of {imported.tool}."]
    lines += [
        f"# {row.verdict}: {row.key}: {row.value}: {row.reason}"
        for row in imported.of("dropped", "refused")
    ]
    section = ""
    for path in _in_order(imported.values):
        first, _, rest = path.rpartition(".")
        if first != section:
            lines += ["", *_opening(section, first)]
            section = first
        indent = "  " * len(first.split(".")) if first else ""
        note = imported.notes.get(path, "")
        comment = " | ".join(filter(None, (note, remarks.get(note.split(":")[0], ""))))
        lines += _entry(indent, rest, imported.values[path], comment)
    return "\n".join(lines) + "\n"


def comments_of(text: str) -> dict[str, str]:
    """Return the comments beside and right above the top-level keys of a YAML file."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            above.append(line.lstrip("# ").rstrip())
            continue
        if match := _KEY.match(line):
            parts = [*above, match[2] or ""]
            if remark := " ".join(filter(None, parts)):
                found[match[1]] = remark
        above = []
    return found


def _in_order(values: Mapping[str, Any]) -> list[str]:
    """Return the key paths: those of no section first, then section by section as in the schema."""
    order = {path: place for place, path in enumerate(key_paths(RunConfig))}
    top = [path for path in values if "." not in path]
    inner = sorted((p for p in values if "." in p), key=lambda p: order.get(p, len(order)))
    by_section: dict[str, list[str]] = {}
    for path in inner:
        by_section.setdefault(path.rpartition(".")[0], []).append(path)
    return top + [path for section in _nested(by_section) for path in by_section[section]]


def _nested(sections: Mapping[str, Any]) -> list[str]:
    """Return the sections, each followed by the sections inside it."""
    outer = dict.fromkeys(section.split(".")[0] for section in sections)
    return [one for first in outer for one in sorted(sections) if one.split(".")[0] == first]


def _opening(before: str, section: str) -> Iterator[str]:
    """Yield the lines that open a section after the lines of the section `before`."""
    parts = section.split(".")
    known = before.split(".") if before else []
    for depth, part in enumerate(parts):
        if known[: depth + 1] != parts[: depth + 1]:
            yield f"{'  ' * depth}{part}:"


def _entry(indent: str, key: str, value: Any, note: str) -> list[str]:
    """Return the lines of one key, with its comment cut to `_MOST_NOTE` characters.

    The comment stands behind the value, or above it if the value takes several lines.
    """
    comment = "  # " + " ".join(note.split())[:_MOST_NOTE] if note else ""
    dumped = yaml.dump(
        {key: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6
    )
    first, *others = dumped.splitlines()
    if not others:
        return [f"{indent}{first}{comment}"]
    above = [f"{indent}{comment.strip()}"] if comment else []
    return [*above, *(indent + one for one in (first, *others))]
