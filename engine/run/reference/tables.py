"""Structs as Markdown tables: every field with its type, its default and its docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from ...config.schema_export import field_docs
from ...protocol.command_kinds import Command
from ...protocol.states import RunState

_PLAIN: dict[Any, str] = {
    str: "text", int: "whole number", float: "number", bool: "true or false", bytes: "bytes",
    NoneType: "null", object: "any value", Any: "any value",
}  # fmt: skip


def struct_section(
    struct: type[msgspec.Struct], heading: str = "###", linked: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield the lines of a struct's section: heading, docstring and table of fields.

    Args:
        struct: the struct.
        heading: the marks of the heading.
        linked: names of the structs that have a section on the same page.
    """
    yield f"{heading} {struct.__name__}\n"
    yield f"{first_lines(struct)}\n"
    docs = _docs(struct)
    fields = msgspec.structs.fields(struct)
    if not fields:
        yield "It has no fields.\n"
        return
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for field in fields:
        name, shown = field.encode_name, type_name(field.type, linked)
        yield row(f"`{name}`", shown, _default(field), docs.get(field.name, ""))
    yield ""


def row(*cells: str) -> str:
    """Return a row of a table; vertical bars in the cells are escaped."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def first_lines(documented: object) -> str:
    """Return a docstring on one line."""
    return " ".join((inspect.getdoc(documented) or "").split())


def type_name(annotation: Any, linked: frozenset[str] = frozenset()) -> str:
    """Return a type in words; structs are named, those in `linked` as links within the page."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if (origin := get_origin(annotation)) is not None:
        return _compound(origin, get_args(annotation), linked)
    if issubclass(annotation, RunState):
        return "one of the [states](events.md#states)"
    if issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    name: str = annotation.__name__
    return f"[{name}](#{name.lower()})" if name in linked else name


def _compound(origin: Any, parts: tuple[Any, ...], linked: frozenset[str]) -> str:
    """Return a type with parameters in words."""
    if origin in (Union, UnionType):
        return _alternatives(parts, linked)
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    inner = [
        type_name(part, linked) for part in parts if part is not ... and origin is not Annotated
    ]
    if origin is tuple:
        return f"[{', '.join(inner)}]"
    if origin is dict:
        return f"map of {inner[0]} to {inner[1]}"
    return f"list of {inner[0]}" if inner else type_name(parts[0], linked)


def _alternatives(parts: Iterable[Any], linked: frozenset[str]) -> str:
    """Return the types of a union in words; one of commands or of events is named as a whole."""
    structs = [one for one in parts if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    others = [one for one in parts if one not in structs]
    if len(structs) > 3:
        whole = "a command" if issubclass(structs[0], Command) else "an event"
        return " or ".join([whole, *(type_name(one, linked) for one in others)])
    return " or ".join(type_name(one, linked) for one in (*structs, *others))


def _docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings of a struct's fields, inherited ones too."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= field_docs(base)
    return found


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        factory: Any = field.default_factory
        value = factory()
    if isinstance(value, msgspec.Struct):
        return f"{type(value).__name__} with its defaults"
    return f"`{json.dumps(msgspec.to_builtins(value, builtin_types=()), ensure_ascii=False)}`"
