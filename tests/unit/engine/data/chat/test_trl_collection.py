"""Targets with every chat template of TRL's collection: the assistant's strings and end marks.

What is expected is derived from the messages alone: a run of targets has the strings of one
assistant turn, in which nothing of other turns stands, and around them only what marks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from fttui.engine.config import data_reasons as reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import MessagesRecord
from fttui.engine.data.tokens.examples import IGNORED, TextExample
from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
from tests.support.tokenizer import tiny_tokenizer

pytestmark = pytest.mark.long


def _collection() -> dict[str, Path]:
    spec = find_spec("trl")
    folders = (spec.submodule_search_locations or []) if spec else []
    files = (file for folder in folders for file in Path(folder, "chat_templates").glob("*.jinja"))
    return {file.stem: file for file in sorted(files)}


COLLECTION = _collection()
QUESTIONS = ("What is kiwi?", "And a plum?", "And a fig?")
ANSWERS = ("Kiwi is green.", "A plum is blue.", "Figs are sweet.")
SYSTEM, REASON = "Be brief about fruit.", "The user wants a colour."
RESULT = "fourteen grams"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "sugar_of",
        "description": "Return the sugar in a fruit.",
        "parameters": {
            "type": "object",
            "properties": {"fruit": {"type": "string", "description": "Its name."}},
            "required": ["fruit"],
        },
    },
}
CALL = {"type": "function", "function": {"name": "sugar_of", "arguments": {"fruit": "mango"}}}
_TALK = [
    {"role": role, "content": text}
    for pair in zip(QUESTIONS, ANSWERS, strict=True)
    for role, text in zip(("user", "assistant"), pair, strict=True)
]
_THOUGHT = [*_TALK[:-1], {**_TALK[-1], "reasoning_content": REASON}]
_CALLING: list[dict[str, Any]] = [
    _TALK[0],
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "name": "sugar_of", "content": RESULT},
    _TALK[1],
]
CASES: dict[str, tuple[list[dict[str, Any]], tuple[dict[str, Any], ...]]] = {
    "plain": (_TALK, ()),
    "system": ([{"role": "system", "content": SYSTEM}, *_TALK], ()),
    "reasoning": (_THOUGHT, ()),
    "tools": (_CALLING, (TOOL,)),
}
_REASONING = (reasons.REASONING_LEFT_OUT, reasons.LAST_REASONING_LEFT_OUT)
OTHERS = (*QUESTIONS, SYSTEM, RESULT)
"""Strings that are never learned."""
ENDS = (
    *(
        "<|im_end|>",
        "<end_of_turn>",
        "<turn|>",
        "<|eot_id|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|return|>",
    ),
    *("<｜end▁of▁sentence｜>", "<|end|>", "<end_of_utterance>", "<|endoftext|>", "</s>"),
)
_TOKEN = re.compile(r"<[|｜/]?[\w▁|/]{1,40}[|｜]?>|\[/?[A-Z_]{3,20}\]")
_AROUND = re.compile(
    r"(?:<[^<>]*>|\[/?[A-Z_]+\]|\s|final|analysis|commentary|assistant|model|thought|to=[a-z]+)*"
)
"""What may stand around the strings of a turn: tokens, tags, white space and names of channels."""


def tokenizer_for(template: str) -> Any:
    """A byte-level tokenizer that has every mark of the template as a token."""
    tokenizer = tiny_tokenizer(template)
    marks = dict.fromkeys([*_TOKEN.findall(template), "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer.eos_token = next((mark for mark in ENDS if mark in marks), "</s>")
    tokenizer.bos_token = "<s>"
    return tokenizer


def learned(template: str, case: str) -> tuple[list[str], Findings]:
    """Return the runs of targets as text, and the findings."""
    tokenizer, findings = tokenizer_for(template), Findings()
    turns, tools = CASES[case]
    record = MessagesRecord("a", tuple(turns), tools=tools, place="t.jsonl:1")
    options = TokenizeOptions(max_length=100_000)
    examples = tokenize_records([record], tokenizer, options, findings, lambda *_: None)
    return [text for one in examples for text in _runs(one, tokenizer)], findings


def _runs(example: Any, tokenizer: Any) -> Iterator[str]:
    assert isinstance(example, TextExample)
    for wanted, run in groupby(example.labels, key=lambda label: label != IGNORED):
        if wanted:
            yield tokenizer.decode(list(run))


def strings(turn: dict[str, Any]) -> list[str]:
    """Return the strings of an assistant turn, as it would be written."""
    calls = [text for _ in turn.get("tool_calls") or () for text in ("sugar_of", "mango")]
    return [one for one in (turn.get("reasoning_content"), turn["content"], *calls) if one]


def left_out(findings: Findings) -> int:
    """Return how many assistant turns were reported as not learned."""
    kinds = (reasons.UNLEARNED_TURNS, reasons.CALLS_LEFT_OUT, reasons.NO_TARGET)
    return sum(findings.count(kind) for kind in kinds)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", COLLECTION)
def test_targets_are_the_strings_of_the_assistant_and_end_marks(name: str, case: str) -> None:
    template = COLLECTION[name].read_text(encoding="utf-8")
    refusal = _refusal(template, case)
    if refusal:
        assert "the chat template" in refusal
        assert _raises(template, case), f"the template takes it: {refusal}"
        return
    runs, findings = learned(template, case)
    joined = "".join(runs)
    assert [text for text in OTHERS if text in joined] == []
    said = [turn for turn in CASES[case][0] if turn["role"] == "assistant"]
    missing = [turn for turn in said if not any(_has(run, turn, findings) for run in runs)]
    assert len(missing) <= left_out(findings), f"{missing} is in none of {runs}, {list(findings)}"
    assert len(runs) == len(said) - len(missing), runs
    for run in runs:
        _check_run(run, said, findings)


def _refusal(template: str, case: str) -> str:
    _, findings = learned(template, case)
    rejected = (one.detail for one in findings if one.reason is reasons.REJECTED_RECORDS)
    return next(rejected, "")


@pytest.mark.parametrize("name", COLLECTION)
def test_no_template_changes_a_plain_text(name: str) -> None:
    template = COLLECTION[name].read_text(encoding="utf-8")
    for case in CASES:
        _, findings = learned(template, case)
        assert not findings.count(reasons.CHANGED_TEXT), case


def _has(run: str, turn: dict[str, Any], findings: Findings) -> bool:
    """Whether a run has the strings of a turn; reasoning may be left out if that is reported."""
    wanted = strings(turn)
    if any(findings.count(one) for one in _REASONING):
        wanted = [text for text in wanted if text != REASON]
    return all(text in run for text in wanted)


def _check_run(run: str, said: Sequence[dict[str, Any]], findings: Findings) -> None:
    """Check what stands around the strings of a turn, and that it ends with an end mark."""
    (turn,) = [turn for turn in said if _has(run, turn, findings)]
    last = max(run.rfind(text) + len(text) for text in strings(turn) if text in run)
    ended = bool(_TOKEN.search(run[last:])) or bool(run[last:].strip())
    assert ended or findings.count(reasons.NO_END_MARK), run
    if turn.get("tool_calls"):
        return  # the syntax of calls is the template's own
    rest = run
    for text in strings(turn):
        assert rest.count(text) <= 1, run
        rest = rest.replace(text, "")
    assert _AROUND.fullmatch(rest), f"{rest!r} is learned with {strings(turn)}"


def _raises(template: str, case: str) -> bool:
    """Whether the template itself refuses the messages, with text as with parts as content."""
    turns, tools = CASES[case]
    parts = [
        {**turn, "content": [{"type": "text", "text": turn["content"] or ""}]} for turn in turns
    ]
    refused = 0
    for form in (turns, parts):
        try:
            tokenizer_for(template).apply_chat_template(form, tools=list(tools), tokenize=False)
        except Exception:  # noqa: BLE001  # templates raise any exception
            refused += 1
    return refused == 2


def test_the_collection_is_there() -> None:
    assert len(COLLECTION) > 50
