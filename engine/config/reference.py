"""The configuration page: every key in Markdown tables, generated from the schema.

`python -m fttui.engine.config.reference FILE` writes it.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .messages import describe_type, is_section
from .schema import MOST, RunConfig, Section
from .schema_export import field_docs, sections_in

_INTRO = f"""\
# Configuration

All keys of a configuration file, by section. `fttui check FILE` validates a file, and
`--set section.key=value` overrides a key. Whole numbers are at most {MOST:,}. Generated from
`engine/config/schema.py` with `python -m fttui.engine.config.reference docs/configuration.md`.
"""


def reference_text() -> str:
    """Return the Markdown text of docs/configuration.md."""
    return "\n".join((_INTRO, *_section(RunConfig, ""))) + "\n"


def _section(struct: type[Section], path: str) -> Iterator[str]:
    """Yield the lines of a section's table, then those of its subsections."""
    fields = msgspec.structs.fields(struct)
    docs = field_docs(struct)
    yield f"## {path or 'top level'}\n"
    yield " ".join((inspect.getdoc(struct) or "").split()) + "\n"
    yield "| key | accepts | default | meaning |"
    yield "|---|---|---|---|"
    for field in fields:
        if not is_section(field.type):
            cells = (f"`{field.name}`", _accepts(field), _default(field), docs.get(field.name, ""))
            yield f"| {' | '.join(_escaped(cell) for cell in cells)} |"
    yield ""
    for field in fields:
        for inner in sections_in(field.type):
            yield from _section(inner, f"{path}.{field.name}".lstrip("."))


def _escaped(cell: str) -> str:
    """Return the text of a table cell with its vertical bars escaped."""
    return cell.replace("|", r"\|")


def _accepts(field: msgspec.structs.FieldInfo) -> str:
    return describe_type(field.type).removeprefix("one of ").replace(f" and ≤ {MOST:,}", "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        factory: Any = field.default_factory
        value = factory()
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference_text(), encoding="utf-8")
