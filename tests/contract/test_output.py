"""Text reaches a terminal only through the functions that make it printable."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def _calls(folder: str) -> list[tuple[str, ast.Call]]:
    return [
        (f"{file.relative_to(ROOT)}:{node.lineno}", node)
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]


def _within(place: str, *files: str) -> bool:
    return place.rpartition(":")[0] in files


def test_commands_print_through_one_module() -> None:
    found = [
        place
        for place, call in _calls("tui")
        if ast.unparse(call.func) in ("print", "sys.stdout.write", "os.write", "sys.stderr.write")
        and not _within(place, "tui/cli/options.py", "tui/connection/ssh/ssh_connection.py")
    ]
    assert found == []


def test_only_styled_output_goes_around_it() -> None:
    """Those two make their text printable themselves, before they add colours and clear a line."""
    found = {
        place.rpartition(":")[0]
        for place, call in _calls("tui")
        if ast.unparse(call.func) == "styled"
    }
    assert found == {"tui/cli/data_check/text.py", "tui/cli/data_check/process.py"}


def test_texts_of_the_app_are_made_by_two_functions() -> None:
    makers = ("Content", "Text", "Content.assemble", "Content.styled", "Content.from_text")
    found = [
        place
        for folder in ("tui/screens", "tui/widgets", "tui/app.py")
        for place, call in (_calls(folder) if not folder.endswith(".py") else _calls("tui"))
        if ast.unparse(call.func) in makers
        and (call.args and not isinstance(call.args[0], ast.Constant))
        and not place.startswith(("tui/widgets/text_line.py", "tui/cli/"))
        and not _joins_contents(call)
    ]
    assert found == []


def _joins_contents(call: ast.Call) -> bool:
    """The footer assembles entries that `_drawn` made from the table of actions."""
    return ast.unparse(call.func) == "Content.assemble" and "_entry(" in ast.unparse(call)


def test_nothing_of_the_app_parses_markup_but_the_footer() -> None:
    found = {
        place.rpartition(":")[0]
        for place, call in _calls("tui")
        if ast.unparse(call.func).endswith("from_markup")
        or any(k.arg == "markup" and ast.unparse(k.value) != "False" for k in call.keywords)
    }
    assert found == {"tui/widgets/footer.py"}


_COMMAND = re.compile(r"fttui (?:run|show|ctl|attach|events|export|ls) (?:[^,;`\n]* )?$")


def _unquoted(text: ast.JoinedStr) -> list[str]:
    """The values inside a command that a user may copy into a shell."""
    before, found = "", []
    for part in text.values:
        if isinstance(part, ast.Constant):
            before += str(part.value)
        elif isinstance(part, ast.FormattedValue):
            value = ast.unparse(part.value)
            if _COMMAND.search(before) and not (value.isupper() or value.startswith("quote(")):
                found.append(value)
            before += "…"
    return found


def test_names_in_commands_to_copy_are_quoted_for_the_shell() -> None:
    """A run folder from elsewhere may be named `$(…)`."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {value}"
        for folder in ("engine", "tui")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
        for value in _unquoted(node)
    ]
    assert found == []
