"""Compare what fttui learns from each record with what the configuration's own tool makes of it.

    python -m tests.bench.imports.compare EXAMPLES --axolotl PYTHON --llama-factory PYTHON

`EXAMPLES` is a folder with public configurations; each `PYTHON` is that of an environment with the
tool. Model and data are local stand-ins. Configurations that `fttui import` refuses are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fttui.engine.config.foreign.draft import Imported
from fttui.engine.config.foreign.reading import read_foreign
from fttui.engine.config.foreign.writing import written
from fttui.engine.config.load import load_config
from fttui.engine.data.dataset import examine_examples
from fttui.engine.data.tokens.examples import (
    IGNORED,
    Example,
    PackedExample,
    PreferenceExample,
    RatedExample,
    TextExample,
)
from fttui.engine.errors import FttuiError
from fttui.engine.model.tokenizer import load_tokenizer

from .cases import Case, cases

_SIDES = {"axolotl": "axolotl_side", "LLaMA-Factory": "llama_factory_side", "TRL": "trl_side"}
_OWN = ("data.eval_fraction=0", "data.eval=null", "data.accept=[all]", "eval.every=0")


def ours(case: Case) -> tuple[Imported, list[list[Any]], Any]:
    """Return (what is imported, what is learned from each record of each source, tokenizer).

    Raises:
        FttuiError: The configuration is refused, or its data cannot be read.
    """
    file = case.folder / "other.yaml"
    file.write_text(json.dumps(case.given), "utf-8")
    imported = read_foreign(file, file.read_text("utf-8"))
    if refused := imported.of("refused"):
        raise FttuiError(f"refused: {refused[0].key}")
    mine = case.folder / "my.yaml"
    mine.write_text(written(imported, "other.yaml", ""), "utf-8")
    config = load_config(mine, _OWN).config
    tokenizer = load_tokenizer(config.model, config.data, lambda *_: None)
    sets = examine_examples(config, tokenizer, lambda *_: None, accepted=True)
    by_place: dict[str, list[TextExample | PreferenceExample | RatedExample]] = defaultdict(list)
    for example in sets.train:
        for one in _parts(example):
            by_place[one.place].append(one)
    learned = []
    for number, rows in enumerate(case.sources):
        name = "data.jsonl" if case.tool == "TRL" else f"data{number}.jsonl"
        places = (f"{case.folder / name}:{line}" for line in range(1, len(rows) + 1))
        learned.append([_plain(by_place.get(place, by_place.get(Path(place).name, [])))
                        for place in places])  # fmt: skip
    return imported, learned, tokenizer


def _parts(example: Example) -> Sequence[Any]:
    return example.documents if isinstance(example, PackedExample) else [example]


def _plain(found: Sequence[TextExample | PreferenceExample | RatedExample]) -> Any:
    if not found:
        return None
    first = found[0]
    if isinstance(first, PreferenceExample):
        return {name: [one.input_ids, one.labels] for name, one in
                (("chosen", first.chosen), ("rejected", first.rejected))}  # fmt: skip
    if isinstance(first, RatedExample):
        return {"completion": [first.text.input_ids, first.text.labels]}
    return [[one.input_ids, one.labels] for one in found if isinstance(one, TextExample)]


def difference(mine: Any, other: Any, tokenizer: Any) -> str:
    """Return `equal`, or what differs between two results of one record."""
    if mine is None or other is None:
        return "equal" if mine is other else "only fttui learns it" if mine else "fttui omits it"
    if isinstance(other, dict):
        answers = [_differs(mine[name], other[name], tokenizer) for name in other]
        return next((one for one in answers if one != "equal"), "equal")
    if len(mine) != len(other):
        return f"{len(mine)} instead of {len(other)} sequences"
    answers = [_differs(one, two, tokenizer) for one, two in zip(mine, other, strict=True)]
    return next((one for one in answers if one != "equal"), "equal")


def _differs(mine: list[Any], other: list[Any], tokenizer: Any) -> str:
    if isinstance(other[0], str):
        text = tokenizer.decode(mine[0])
        start, end = tokenizer.bos_token or "", tokenizer.eos_token
        bare = text.removeprefix(start).rstrip().removesuffix(end).rstrip()
        theirs = "".join(other).removeprefix(start).rstrip().removesuffix(end).rstrip()
        return "equal" if bare == theirs else "text"
    if mine[0] != other[0]:
        return "tokens"
    # The first token has no prediction, so its label does not count.
    differing = [
        (one, two) for one, two in zip(mine[1][1:], other[1][1:], strict=True) if one != two
    ]
    if not differing:
        return "equal"
    only_theirs = all(one == IGNORED for one, _ in differing)
    blank = not tokenizer.decode([two for _, two in differing if two != IGNORED]).strip()
    return "equal but for line breaks" if only_theirs and blank else "labels"


def main() -> int:
    """Print the table; return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", type=Path)
    parser.add_argument("--axolotl", metavar="PYTHON")
    parser.add_argument("--llama-factory", metavar="PYTHON")
    parser.add_argument("--only", default="", help="part of the name of an example")
    parser.add_argument("--verbose", action="store_true", help="print the first differing record")
    options = parser.parse_args()
    pythons = {"axolotl": options.axolotl, "LLaMA-Factory": options.llama_factory,
               "TRL": sys.executable}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "s").mkdir()
        found = [case for case in cases(options.examples, root / "s") if options.only in case.name]
        counts = Counter(row for tool in _SIDES for row in _compared(
            [case for case in found if case.tool == tool], pythons[tool], root, options.verbose
        ))  # fmt: skip
    print(", ".join(f"{number} {what}" for what, number in counts.most_common()))
    return 1 if set(counts) - {"equal"} else 0


def _compared(found: list[Case], python: str | None, root: Path, verbose: bool) -> list[str]:
    if not python:
        return []
    results: dict[str, Any] = {}
    for case in found:
        try:
            results[case.name] = ours(case)
        except FttuiError as error:
            results[case.name] = str(error).splitlines()[0]
    kept = [case for case in found if not isinstance(results[case.name], str)]
    for case in found:
        if isinstance(results[case.name], str) and not results[case.name].startswith("refused"):
            print(f"{case.name}: fttui: {results[case.name]}")
    theirs = _other_side(kept, {c.name: results[c.name][0] for c in kept}, python, root)
    return [_row(case, results[case.name], theirs[case.name], verbose) for case in kept]


def _other_side(
    kept: list[Case], imported: dict[str, Imported], python: str, root: Path
) -> dict[str, Any]:
    if not kept:
        return {}
    tool = kept[0].tool
    script = Path(__file__).with_name(f"{_SIDES[tool]}.py")
    given, made = root / "cases.json", root / "results.json"
    tasks = {name: str(one.values.get("task", "sft")) for name, one in imported.items()}
    given.write_text(json.dumps([case.as_json(tasks[case.name]) for case in kept]), "utf-8")
    done = subprocess.run(
        [python, str(script), str(given), str(made)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{tool}: {done.stderr[-2000:]}")
    return json.loads(made.read_text("utf-8"))


def _row(case: Case, mine: Any, theirs: dict[str, Any], verbose: bool) -> str:
    """Print the line of an example; return its verdict."""
    imported, learned, tokenizer = mine
    if "error" in theirs:
        print(f"{case.name}: {case.tool} itself fails: {theirs['error']}")
        return "not comparable"
    counts: Counter[str] = Counter()
    for one, two, rows in zip(learned, theirs["learned"], case.sources, strict=True):
        for here, there, row in zip(one, two, rows, strict=True):
            what = difference(here, there, tokenizer)
            if what != "equal" and verbose and not counts[what]:
                _explain(row, here, there, tokenizer)
            counts[what] += 1
    total = sum(counts.values())
    said = ", ".join(f"{number} {what}" for what, number in counts.items())
    named = [row.key for row in imported.of("nearly") if row.key.split("[")[0] in _ABOUT_DATA]
    note = f" (named: {', '.join(named)})" if named else ""
    print(f"{case.name}: {total} records: {said}{note}")
    if set(counts) == {"equal"}:
        return "equal"
    return "differs as named" if named else "differs"


_ABOUT_DATA = (
    "chat_template",
    "template",
    "special_tokens",
    "tokens",
    "datasets",
    "sample_packing",
    "sequence_len",
    "cutoff_len",
    "mask_history",
    "max_length",
)


def _explain(row: Any, mine: Any, other: Any, tokenizer: Any) -> None:
    print(f"    record  {str(row)[:150]}")
    for name, one in (("fttui", mine), ("other", other)):
        parts = list(one.values()) if isinstance(one, dict) else one or []
        for part in parts:
            if isinstance(part[0], str):
                print(f"    {name}   {part!r}"[:400])
                continue
            learned = [token for token in part[1] if token != -100]
            print(f"    {name}   {len(part[0])} tokens {tokenizer.decode(part[0])[-300:]!r}")
            print(f"            learned {len(learned)}: {tokenizer.decode(learned)[-100:]!r}")


if __name__ == "__main__":
    sys.exit(main())
