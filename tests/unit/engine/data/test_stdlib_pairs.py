from __future__ import annotations

import ast
import textwrap

import pytest

from fttui.engine.data import stdlib_pairs as stdlib_pairs_module
from fttui.engine.data.stdlib_pairs import (
    Pair,
    first_sentence,
    held_out_packages,
    module_pairs,
    stdlib_pairs,
)
from fttui.engine.errors import DataError

SOURCE = '''
class Decoder:
    """A class has no pair of its own, whatever it says."""

    @staticmethod
    def decode(text, strict=True):
        """Return the object that the text describes.

        More about it here.
        """

        if strict:
            check(text)
        return [piece for piece in text.split(",") if piece]

    def _hidden(self):
        """This one is private and so it is left out."""
        return sum(range(100)) + sum(range(200)) + sum(range(300))


def short(x):
    """Return the very same thing again."""
    return x


def terse(values, other_values):
    """Join."""
    return [left + right for left, right in zip(values, other_values)]


def undocumented(values, other_values):
    return [left + right for left, right in zip(values, other_values)]


async def fetch(reader, limit=65536):
    "Read at most that many bytes. Then stop."
    data = await reader.read(limit)
    return data.decode("utf-8", "replace")
'''


def ignore(label, done, total):
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def built():
    return stdlib_pairs(0.05, ignore)


def test_module_gives_public_documented_functions_without_their_docstring():
    pairs = list(module_pairs("codec.core", SOURCE))
    assert [pair.id for pair in pairs] == ["codec.core:Decoder.decode", "codec.core:fetch"]
    assert pairs[0].summary == "Return the object that the text describes."
    assert pairs[0].code == textwrap.dedent("""\
        def decode(text, strict=True):
            if strict:
                check(text)
            return [piece for piece in text.split(",") if piece]""")
    assert pairs[1].summary == "Read at most that many bytes."
    assert (pairs[1].module, pairs[1].package) == ("codec.core", "codec")


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("One sentence", "One sentence"),
        ("Over two\n    lines. Second one.", "Over two lines."),
        ("First paragraph\n\nSecond.", "First paragraph"),
        ("Like e.g. this one, not cut.", "Like e.g. this one, not cut."),
        ("Version 3.11 is one sentence.", "Version 3.11 is one sentence."),
        ("", ""),
    ],
)
def test_first_sentence(docstring, sentence):
    assert first_sentence(docstring) == sentence


def test_the_library_gives_enough_and_nothing_twice(built):
    train, held = built
    records = train + held
    assert len(train) > 1000
    assert len(held) >= 0.05 * len(records)
    for kind in ("id", "anchor", "positive"):
        values = [getattr(record, kind) for record in records]
        assert len(set(values)) == len(values)


def test_train_and_eval_share_no_module(built):
    packages = [{r.id.partition(":")[0].partition(".")[0] for r in part} for part in built]
    assert packages[0].isdisjoint(packages[1])
    assert packages[1]


def test_building_twice_gives_the_same(monkeypatch):
    monkeypatch.setattr(stdlib_pairs_module, "PACKAGES", ("asyncio", "email", "json"))
    built = stdlib_pairs(0.05, ignore)
    assert built[1]
    assert stdlib_pairs(0.05, ignore) == built


def test_code_has_no_docstring_and_still_parses(built):
    for record in built[0][::50]:
        (function,) = ast.parse(record.positive).body
        assert ast.get_docstring(function) is None
        assert function.name == record.id.rpartition(":")[2].rpartition(".")[2]


def test_negatives_are_other_functions_of_the_module(built):
    codes = {r.positive: r.id.partition(":")[0] for part in built for r in part}
    for record in built[0]:
        assert record.positive not in record.negatives
        assert {codes[negative] for negative in record.negatives} <= {record.id.partition(":")[0]}
    assert sum(bool(record.negatives) for record in built[0]) > 0.9 * len(built[0])


def test_held_out_modules_do_not_depend_on_the_others():
    pairs = [Pair(f"{name}:f{k}", "s", "c") for name in ("json", "heapq", "csv") for k in range(4)]
    one = held_out_packages(pairs, 0.1)
    assert len(one) == 1
    assert held_out_packages(reversed(pairs), 0.1) == one
    assert one < held_out_packages(pairs, 0.5)
    assert held_out_packages(pairs, 0) == frozenset()


def test_private_modules_tests_and_broken_files_are_passed_over(tmp_path):
    for name in ("json/core.py", "json/_private.py", "json/tests/case.py", "unknown.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    (tmp_path / "heapq.py").write_text("def broken(:\n")
    (tmp_path / "csv.py").write_bytes(b"# \xff\n")
    train, held = stdlib_pairs(0, ignore, tmp_path)
    assert [record.id for record in train] == ["json.core:Decoder.decode", "json.core:fetch"]
    assert train[0].negatives == (train[1].positive,)
    assert held == []


def test_a_library_without_sources_is_said(tmp_path):
    with pytest.raises(DataError, match=r"set data\.train to a file"):
        stdlib_pairs(0.1, ignore, tmp_path)


def test_progress_reaches_its_end(tmp_path):
    (tmp_path / "json.py").write_text(SOURCE)
    seen = []
    stdlib_pairs(0, lambda label, done, total: seen.append((done, total)), tmp_path)
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
