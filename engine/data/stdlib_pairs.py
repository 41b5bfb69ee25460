"""Build pairs from the Python standard library: a function's summary and its source code.

As in CodeSearchNet, the query is a docstring's first sentence and the answer is the function
without its docstring. No module is imported: the files of the running interpreter are only parsed.
Source: Husain et al. 2019, CodeSearchNet Challenge, arXiv:1909.09436.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from .records.formats import PairRecord

_NAMES = """
argparse ast asyncio base64 bdb bisect calendar cmd code codecs codeop collections concurrent
configparser contextlib contextvars copy copyreg csv dataclasses difflib dis doctest email
encodings enum filecmp fileinput fnmatch fractions ftplib functools genericpath getopt getpass
gettext glob graphlib gzip hashlib heapq hmac html http imaplib importlib inspect io ipaddress
json keyword linecache locale logging lzma mailbox mimetypes modulefinder multiprocessing netrc
ntpath nturl2path numbers opcode operator optparse os pathlib pdb pickle pickletools pkgutil
platform plistlib poplib posixpath pprint profile pstats pty py_compile pyclbr pydoc queue quopri
random re reprlib rlcompleter runpy sched secrets selectors shelve shlex shutil signal site
smtplib socket socketserver sqlite3 ssl stat statistics string stringprep struct subprocess
symtable sysconfig tabnanny tarfile tempfile textwrap threading timeit token tokenize tomllib
trace traceback tracemalloc tty types typing unittest urllib uuid venv warnings wave weakref
webbrowser wsgiref xml xmlrpc zipapp zipfile zipimport zoneinfo
"""
PACKAGES = tuple(_NAMES.split())
"""Top-level modules in the order in which they are read; missing ones are skipped.

Modules that distributions package separately (tkinter, idlelib, …) are not included, so that the
pairs are the same on every machine with the same Python version.
"""

MIN_SUMMARY_WORDS = 4
"""Fewest words of a summary that is used."""
MIN_CODE_CHARACTERS = 60
"""Fewest characters of source code that is used."""
NEGATIVES_PER_PAIR = 4
"""Hard negatives per pair, at most."""
_TEST_FOLDERS = frozenset({"test", "tests", "__pycache__"})

Progress = Callable[[str, float, float], None]


@dataclass(frozen=True)
class Pair:
    """A documented function: its summary and its code."""

    id: str
    """Module and qualified name, such as `json.decoder:JSONDecoder.decode`."""
    summary: str
    code: str

    @property
    def module(self) -> str:
        """Dotted module name."""
        return self.id.partition(":")[0]

    @property
    def package(self) -> str:
        """Top-level module name."""
        return self.module.partition(".")[0]


def stdlib_pairs(
    eval_fraction: float, progress: Progress, root: Path | None = None
) -> tuple[list[PairRecord], list[PairRecord]]:
    """Build (train, eval) records in a stable order; no top-level module is in both.

    Args:
        eval_fraction: Smallest share of the pairs to hold out; 0 holds out none.
        progress: Called with (label, done, total) while files are read.
        root: Folder of the library; None is that of the running interpreter.

    Raises:
        DataError: The interpreter has no readable library folder.
    """
    folder = root or Path(sysconfig.get_path("stdlib"))
    pairs = _without_duplicates(_walk(folder, progress))
    if not pairs:
        raise DataError(
            f"stdlib:pairs: no Python sources in {folder} (the interpreter ships without its "
            "library's source); set data.train to a file"
        )
    held_out = held_out_packages(pairs, eval_fraction)
    records = [(pair.package in held_out, record) for pair, record in _with_negatives(pairs)]
    train = [record for is_eval, record in records if not is_eval]
    return train, [record for is_eval, record in records if is_eval]


def held_out_packages(pairs: Iterable[Pair], fraction: float) -> frozenset[str]:
    """Return the top-level modules to hold out, which have at least this share of the pairs.

    They are the first ones in the order of a hash of their names.
    """
    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.package] = counts.get(pair.package, 0) + 1
    wanted, held_out, held = fraction * sum(counts.values()), set[str](), 0
    for package in sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if held >= wanted:
            break
        held_out.add(package)
        held += counts[package]
    return frozenset(held_out)


def module_pairs(module: str, source: str) -> Iterator[Pair]:
    """Yield the pairs of one module's public functions and methods, in the order of the file.

    Raises:
        SyntaxError, ValueError: The source cannot be parsed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences in its strings
        tree = ast.parse(source)
    lines = source.splitlines()
    for qualname, node in _functions(tree.body, ""):
        summary = first_sentence(ast.get_docstring(node) or "")
        code = _code_without_docstring(node, lines)
        if len(summary.split()) >= MIN_SUMMARY_WORDS and len(code) >= MIN_CODE_CHARACTERS:
            yield Pair(f"{module}:{qualname}", summary, code)


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    paragraph = re.split(r"\n\s*\n", docstring.strip(), maxsplit=1)[0]
    text = " ".join(paragraph.split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`'\"(])", text, maxsplit=1)[0]


def _walk(folder: Path, progress: Progress) -> Iterator[Pair]:
    for done, package in enumerate(PACKAGES):
        progress("building pairs from the standard library", done, len(PACKAGES))
        for module, path in _modules(folder, package):
            try:
                yield from module_pairs(module, path.read_text(encoding="utf-8"))
            except (OSError, ValueError, SyntaxError):
                continue  # a file that this Python cannot parse has no pairs
    progress("building pairs from the standard library", len(PACKAGES), len(PACKAGES))


def _modules(folder: Path, package: str) -> Iterator[tuple[str, Path]]:
    """Yield the public modules of a package as (dotted name, file), sorted by name."""
    single = folder / f"{package}.py"
    paths = [single] if single.exists() else sorted((folder / package).rglob("*.py"))
    for path in paths:
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") or part in _TEST_FOLDERS for part in parts):
            yield ".".join(parts), path


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, _Function]]:
    for node in body:
        if isinstance(node, _Function) and not node.name.startswith("_"):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _code_without_docstring(node: _Function, lines: list[str]) -> str:
    """Return the dedented source from `def` on, without the docstring.

    It is empty if the body is only a docstring, or if the docstring shares a line with other code.
    """
    if len(node.body) < 2:
        return ""
    docstring, first = node.body[0], node.body[1]
    if docstring.lineno == node.lineno or first.lineno <= (docstring.end_lineno or 0):
        return ""
    head = lines[node.lineno - 1 : docstring.lineno - 1]
    rest = lines[docstring.end_lineno : node.end_lineno]
    while rest and not rest[0].strip():
        del rest[0]
    return textwrap.dedent("\n".join(head + rest)).strip()


def _without_duplicates(pairs: Iterable[Pair]) -> list[Pair]:
    """Keep the first pair of each id, summary and code."""
    kept: list[Pair] = []
    seen: set[tuple[str, str]] = set()
    for pair in pairs:
        keys = {("id", pair.id), ("summary", pair.summary.lower()), ("code", pair.code)}
        if seen.isdisjoint(keys):
            kept.append(pair)
        seen |= keys
    return kept


def _with_negatives(pairs: list[Pair]) -> Iterator[tuple[Pair, PairRecord]]:
    """Yield each pair, and its record with the next functions of its module as hard negatives.

    After the last function of a module comes its first one.
    """
    modules: dict[str, list[Pair]] = {}
    for pair in pairs:
        modules.setdefault(pair.module, []).append(pair)
    for siblings in modules.values():
        for index, pair in enumerate(siblings):
            others = (siblings[index + 1 :] + siblings[:index])[:NEGATIVES_PER_PAIR]
            negatives = tuple(other.code for other in others)
            yield pair, PairRecord(pair.id, pair.summary, pair.code, negatives)
