"""One example of every message, with every field set, made from the types themselves."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import msgspec
from msgspec import inspect

from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.protocol.events import AnyEvent, CommandApplied, Record
from fttui.engine.protocol.requests import AnyClientMessage, AnyHubMessage, Beat, SubmitCommand
from fttui.engine.protocol.ssh_protocol import BridgeMessage, BridgeRequest

_S = TypeVar("_S", bound=msgspec.Struct)


def example(kind: type[_S]) -> _S:
    """An instance whose every field says its own name, as far as its type allows."""
    return kind(**{f.name: _value(f.type, f.name) for f in inspect.type_info(kind).fields})  # type: ignore[attr-defined]  # a struct's info has fields


def _value(kind: Any, name: str) -> Any:
    simple: dict[Any, Any] = {
        inspect.StrType: name,
        inspect.IntType: 1 + len(name),
        inspect.FloatType: len(name) + 0.25,
        inspect.BoolType: True,
        inspect.BytesType: name.encode(),
    }
    if type(kind) in simple:
        return simple[type(kind)]
    return _container(kind, name)


def _container(kind: Any, name: str) -> Any:
    match kind:
        case inspect.UnionType():
            some = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
            return _value(some[0], name)
        case inspect.ListType() | inspect.VarTupleType():
            items = [_value(kind.item_type, name)]
            return items if isinstance(kind, inspect.ListType) else tuple(items)
        case inspect.DictType():
            return {name: _value(kind.value_type, name)}
        case inspect.TupleType():
            return tuple(_value(item, name) for item in kind.item_types)
        case inspect.LiteralType() | inspect.EnumType():
            return _last(kind)
        case _:
            return example(kind.cls)


def _last(kind: inspect.LiteralType | inspect.EnumType) -> Any:
    return kind.values[-1] if isinstance(kind, inspect.LiteralType) else list(kind.cls)[-1]


def record(event: AnyEvent) -> Record:
    """An event in its place."""
    return Record(seq=42, time=1_700_000_000.5, step=7, timeline=2, event=event)


def all_messages() -> dict[str, msgspec.Struct]:
    """Every message that travels or is stored, by name."""
    found: dict[str, msgspec.Struct] = {"Beat": example(Beat)}
    for kind in get_args(AnyEvent):
        found[f"Record/{kind.__name__}"] = record(example(kind))
    for kind in (*get_args(AnyClientMessage), *get_args(AnyHubMessage)):
        found[kind.__name__] = example(kind)
    for kind in (*get_args(BridgeRequest), *get_args(BridgeMessage)):
        found[kind.__name__] = example(kind)
    for kind in get_args(AnyCommand):
        submitted = msgspec.structs.replace(example(SubmitCommand), command=example(kind))
        found[f"SubmitCommand/{kind.__name__}"] = submitted
        applied = msgspec.structs.replace(example(CommandApplied), applied=example(kind))
        found[f"Record/CommandApplied/{kind.__name__}"] = record(applied)
    return found
