"""YAML 1.2 parser that keeps the file and line of every value.

Scalars follow the core schema of YAML 1.2: `1e-4` is a number, `off` and `yes` are text, only
`true` and `false` are booleans.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.resolver import BaseResolver

from ..errors import ConfigError

MOST_BYTES = 2**18
"""Largest size of a configuration."""
MOST_LINES = 10_000
"""Most lines of a configuration; PyYAML needs seconds for a text of many short lines."""
MOST_IN_LINE = 2**16
"""Most characters of a line; PyYAML needs seconds for one long scalar of many words."""
MOST_VALUES = 5_000
"""Most values of a configuration, each use of an alias counted as what it stands for."""
MOST_DEPTH = 40
"""Most levels of a configuration inside each other."""

_TOO_MUCH = (
    f"got more than {MOST_VALUES:,} values, those that aliases stand for included, or more than "
    f"{MOST_DEPTH} levels; expected a configuration such as those in configs/"
)

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Value:
    """A value and where it was written."""

    data: dict[str, Value] | list[Value] | Scalar
    place: str
    """Where it was written, such as `demo.yaml:12` or `--set train.lr=1e-4`."""
    text: str | None = None
    """The scalar as written, before `1` became a number; None if only `data` is known."""

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.data, dict):
            return {key: child.plain() for key, child in self.data.items()}
        if isinstance(self.data, list):
            return [child.plain() for child in self.data]
        return self.data


def parse_yaml(text: str, name: str, problems: list[str]) -> Value:
    """Parse a YAML document called `name`; recoverable errors are appended to `problems`.

    An empty text is a value of None.

    Raises:
        ConfigError: The text is not a valid YAML document, or larger or deeper than a
            configuration.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(too_large(name, len(text)))
    _require_short(text, name)
    try:
        node = _compose(text)
        if node is None:
            return Value(None, name)
        return _TreeBuilder(name, problems).build(node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_error(error, name)) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {_one_line(error)}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply, or an alias contains itself") from None


def _require_short(text: str, name: str) -> None:
    lines = _BREAKS.split(text)
    found = len(lines) - 1, max(map(len, lines))
    for got, most, what in zip(
        found, (MOST_LINES, MOST_IN_LINE), ("lines", "characters in a line"), strict=True
    ):
        if got > most:
            raise ConfigError(
                f"{name}: got {got:,} {what}, expected a configuration with at most {most:,}; "
                "name the YAML file of a run, such as those in configs/"
            )


def too_large(name: str, size_bytes: int) -> str:
    """Return the error for a file that is larger than any configuration."""
    return (
        f"{name}: got {size_bytes:,} bytes, expected a configuration of at most {MOST_BYTES:,}; "
        "name the YAML file of a run, such as those in configs/"
    )


def parse_scalar(text: str) -> Scalar:
    """Convert an unquoted scalar by the core schema of YAML 1.2.

    An integer of more than 4,000 digits becomes a float.

    Source: YAML 1.2.2, section 10.3.2.
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    for pattern, convert in _NUMBERS:
        if pattern.fullmatch(text):
            return convert(text)
    return text


_BREAKS = re.compile("[\n\r\x85\u2028\u2029]")
"""What PyYAML takes for the end of a line."""
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...] = (
    (re.compile(r"[-+]?[0-9]{1,4000}"), int),
    (re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (
        re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        lambda text: float(text.replace(".", "")),
    ),
)
"""Forms of numbers, each with what reads it."""


class _TooMuch(yaml.YAMLError):
    """More values or levels than in any configuration."""


class _BoundedComposer(Composer):
    """Composes YAML nodes and stops at the limits for the number of values and for depth.

    Without them PyYAML would need minutes for a file with many aliases, and would exceed the
    recursion limit of Python for a deep one.
    """

    _nodes = _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._nodes += 1
        self._depth += 1
        if self._nodes > 2 * MOST_VALUES or self._depth > MOST_DEPTH:
            line = self.peek_event().start_mark.line + 1  # type: ignore[attr-defined]  # a parser
            raise _TooMuch(f"line {line}: {_TOO_MUCH}")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _BoundedLoader(_BoundedComposer, yaml.BaseLoader):
    """Reads with the parser in Python, whose errors say the most."""


def _fast_loader() -> type | None:
    """Return a loader with the parser of libyaml; None where PyYAML was built without it."""
    try:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]  # not in its stubs
    except ImportError:
        return None

    class FastLoader(_BoundedComposer, CParser, BaseResolver):
        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            _BoundedComposer.__init__(self)
            BaseResolver.__init__(self)

    return FastLoader


_FastLoader = _fast_loader()


def _compose(text: str) -> yaml.Node | None:
    """Return the root node of a YAML text, None if it is empty.

    libyaml reads a configuration in a tenth of the time. What it refuses is read again by the
    parser in Python, so that the error is worded alike on every machine.

    Raises:
        YAMLError: the text is not a valid YAML document.
    """
    if _FastLoader is not None:
        try:
            return yaml.compose(text, Loader=_FastLoader)
        except _TooMuch:
            raise
        except (yaml.YAMLError, UnicodeError):
            pass
    return yaml.compose(text, Loader=_BoundedLoader)


class _TreeBuilder:
    """Converts the nodes of PyYAML to values."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self._name = name
        self._problems = problems
        self._values = 0

    def build(self, node: yaml.Node, depth: int = 0) -> Value:
        """Convert a node and its children.

        Raises:
            ConfigError: there are more values or levels than in any configuration.
        """
        place = self._place(node)
        self._values += 1
        if self._values > MOST_VALUES or depth > MOST_DEPTH:
            raise ConfigError(f"{place}: {_TOO_MUCH}")
        if isinstance(node, yaml.MappingNode):
            return Value(self._mapping(node, depth + 1), place)
        if isinstance(node, yaml.SequenceNode):
            return Value([self.build(child, depth + 1) for child in node.value], place)
        quoted = isinstance(node, yaml.ScalarNode) and bool(node.style)
        return Value(node.value if quoted else parse_scalar(node.value), place, node.value)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Value]:
        mapping: dict[str, Value] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._problems.append(f"{place}: got a list or mapping as a key, expected text")
                continue
            key = key_node.value
            if key in mapping:
                self._problems.append(
                    f"{place}: duplicate key '{key}', first given at {mapping[key].place}; "
                    "keep one of them"
                )
                continue
            child = self.build(value_node, depth)
            mapping[key] = Value(child.data, place, child.text)
        return mapping

    def _place(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"


def _syntax_error(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    problem = " ".join(part for part in (error.problem, error.context) if part)
    hint = "; indent with spaces, not tabs" if "\\t" in problem else ""
    return f"{place}: not valid YAML: {problem}{hint}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
