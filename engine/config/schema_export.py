"""JSON Schema of the configuration, with which editors complete and check YAML files."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
from typing import Any, get_args

import msgspec

from .messages import is_section, item_section
from .schema import RunConfig, Section


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of `RunConfig`, each key described by its docstring."""
    (reference,), definitions = msgspec.json.schema_components((RunConfig,))
    for struct in _sections(RunConfig):
        definition = definitions[struct.__name__]
        # Only later versions of Python remove the indentation of docstrings by themselves.
        definition["description"] = inspect.cleandoc(definition["description"])
        properties = definition["properties"]
        for name, text in field_docs(struct).items():
            properties[name]["description"] = text
        for name in (name for name, prop in properties.items() if "$ref" in prop):
            properties[name] = {"$ref": properties[name]["$ref"]}
        for field in msgspec.structs.fields(struct):
            if words := getattr(field.type, "shorthand", None):
                properties[field.name] = {"anyOf": [properties[field.name], {"enum": [*words]}]}
            item = item_section(field.type)
            if getattr(item, "text_key", None):
                _allow_texts(properties[field.name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fttui run configuration",
        **reference,
        "$defs": definitions,
    }


def _allow_texts(property_: dict[str, Any]) -> None:
    """Let the list of a property hold texts beside mappings, and one mapping stand for a list."""
    for choice in [one for one in property_["anyOf"] if one.get("type") == "array"]:
        property_["anyOf"].append(choice["items"])
        choice["items"] = {"anyOf": [{"type": "string"}, choice["items"]]}


def schema_text() -> str:
    """Return the JSON Schema as the text of configs/schema.json."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return {field: the docstring below it, on one line}, without the fields that have none."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        text = _string(following)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and text:
            docs[statement.target.id] = " ".join(text.split())
    return docs


def _string(statement: ast.stmt) -> str | None:
    """Return the text of a string statement, or None for any other statement."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) else None
    return None


def _sections(struct: type[Section]) -> list[type[Section]]:
    nested = [one for field in msgspec.structs.fields(struct) for one in sections_in(field.type)]
    return [struct, *(inner for section in nested for inner in _sections(section))]


def sections_in(annotation: Any) -> list[type[Section]]:
    """Return the section types in a field's type, also inside optionals and lists."""
    if is_section(annotation):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections_in(part)]
