"""Prompts that axolotl writes for records with an instruction and an answer, by their `type`.

Source: axolotl's `prompters.py`, `prompt_tokenizers.py` and `prompt_strategies`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_INTRO = "Below is an instruction that describes a task"
_FURTHER = ", paired with an input that provides further context"
_ASK = ". Write a response that appropriately completes the request."
_TALK = "Below is an instruction from a USER that describes a task"
_BRIEF = ". The ASSISTANT writes a response that "
_CONTEXT = "Use the following contextual information to concisely answer the question.\n"
_TLDR = "USER: Summarize the following article as a TL;DR.\n"
_DEFAULT_SYSTEMS = (f"{_INTRO}{_FURTHER}{_ASK}", f"{_INTRO}{_ASK}")
_CONCISE_SYSTEMS = (
    f"{_TALK}{_FURTHER}{_BRIEF}concisely and appropriately completes the request.\n\n",
    f"{_TALK}{_BRIEF}appropriately and concisely completes the request.\n\n",
)
_NO_SYSTEMS = ("", "")


@dataclass(frozen=True)
class _Style:
    """The texts around the parts of a prompt."""

    with_input: str
    alone: str
    """A turn without an input."""
    system: str


_CHAT_TURNS = ("USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:")
_START, _END = "<|im_start|>", "<|im_end|>\n"
_CHATML_TURNS = (
    f"{_START}user\n{{instruction}}\n{{input}}{_END}{_START}assistant\n",
    f"{_START}user\n{{instruction}}{_END}{_START}assistant\n",
)
_INSTRUCT_TURNS = (
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
    "### Instruction:\n{instruction}\n\n### Response:\n",
)
_INSTRUCT = _Style(*_INSTRUCT_TURNS, "{system}\n\n")
_CHAT = _Style(*_CHAT_TURNS, "SYSTEM: {system}\n")
_CHATML = _Style(*_CHATML_TURNS, f"{_START}system\n{{system}}{_END}")
_PHI = _Style(
    "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
    "<|user|>\n{instruction}<|end|>\n<|assistant|>\n",
    "<|system|>\n{system}<|end|>\n",
)
_STYLES = {"instruct": _INSTRUCT, "chat": _CHAT, "chatml": _CHATML, "phi": _PHI}
_PLAIN_SUMMARY = _Style(
    f"{_TLDR}{{instruction}}\n{{input}}\nASSISTANT:", f"{_TLDR}{{instruction}}\nASSISTANT:", ""
)
_PLAIN = _Style("{instruction}\n{input}", "{instruction}", "{system}")
_ORCA = _Style(
    "### Human:\n{instruction}\n### Additional Context:\n{input}\n### Assistant:\n",
    "### Human:\n{instruction}\n### Assistant:\n",
    "### System:\n{system}\n",
)


@dataclass(frozen=True)
class _Kind:
    """What a type makes of a record."""

    style: _Style = _INSTRUCT
    systems: tuple[str, str] = _DEFAULT_SYSTEMS
    """System texts of a prompt with an input and of one without; a column in braces is one."""
    instruction: str = "{instruction}"
    input: str | None = "{input}"
    """None: records have no input."""
    output: str = "output"

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of fttui: prompts, of which the first with filled columns is used."""
        found = [self._prompt(self.style.alone, self.systems[1])]
        if self.input is not None:
            found.insert(0, self._prompt(self.style.with_input, self.systems[0]))
        if self.systems[0].startswith("{"):
            found += [self._prompt(self.style.with_input, "")] if self.input is not None else []
            found.append(self._prompt(self.style.alone, ""))
        prompts: Any = found if len(found) > 1 else found[0]
        return {"prompt": prompts, "completion": self.output}

    def _prompt(self, turn: str, system: str) -> str:
        start = self.style.system.replace("{system}", system) if system else ""
        text = turn.replace("{input}", self.input or "")
        return start + text.replace("{instruction}", self.instruction)


_ORCA_COLUMNS: dict[str, Any] = {
    "systems": ("{system_prompt}", "{system_prompt}"),
    "instruction": "{question}",
    "input": None,
    "output": "response",
}
_OWN_SYSTEM = ("{system}", "{system}")
_WITH_SYSTEM = _Style(*_CHAT_TURNS, "### System:\n{system}\n\n")
_ARTICLE = "{article}\n===\n{question}"
_TYPES = {
    "alpaca_chat": _Kind(_CHAT),
    "alpaca_chat.load_concise": _Kind(_CHAT, _CONCISE_SYSTEMS),
    "alpaca_chat.load_qa": _Kind(_CHAT, _CONCISE_SYSTEMS, "{question}", None, "answer"),
    "alpaca_chat.load_camel_ai": _Kind(_CHAT, _CONCISE_SYSTEMS, "{message_1}", None, "message_2"),
    "alpaca_chat.load_no_prompt": _Kind(_CHAT, _NO_SYSTEMS),
    "alpaca_instruct": _Kind(),
    "alpaca_instruct.load_no_prompt": _Kind(_INSTRUCT, _NO_SYSTEMS),
    "alpaca_w_system": _Kind(_WITH_SYSTEM, _OWN_SYSTEM),
    "alpaca_w_system.load_chat": _Kind(_WITH_SYSTEM, _OWN_SYSTEM),
    "alpaca_w_system.load_instruct": _Kind(
        _Style(*_INSTRUCT_TURNS, "### System:\n{system}\n\n"), _OWN_SYSTEM
    ),
    "alpaca_w_system.load_open_orca": _Kind(_ORCA, **_ORCA_COLUMNS),
    "alpaca_w_system.load_open_orca_chatml": _Kind(_CHATML, **_ORCA_COLUMNS),
    "orcamini": _Kind(
        _Style("", "### User:\n{instruction}\n\n### Response:\n", "### System:\n{system}\n\n"),
        **_ORCA_COLUMNS,
    ),
    "context_qa": _Kind(_CHAT, (_CONTEXT, _CONTEXT), _ARTICLE, None, "answer"),
    "context_qa.load_v2": _Kind(
        _PLAIN, _NO_SYSTEMS, "Context: {context}\nQuestion: {question}\n", None, "Answer: {answer}"
    ),
}
"""The types without a style."""
_FAMILIES = {
    "alpaca": _Kind(),
    "gpteacher": _Kind(output="response"),
    "jeopardy": _Kind(instruction="{question}", input="{category}", output="what is {answer}"),
    "oasst": _Kind(instruction="{INSTRUCTION}", input=None, output="RESPONSE"),
}
"""The types that may be followed by a style, such as `alpaca:chat`."""


def columns_of_type(kind: str) -> dict[str, Any] | None:
    """Return the columns of a type such as `alpaca:chat`; None for a type that is not known."""
    family, _, style = kind.partition(":")
    if family == "summarizetldr":
        return _Kind(_PLAIN_SUMMARY, _NO_SYSTEMS, "{article}", None, "summary").columns
    if family in _FAMILIES:
        found, styled = _FAMILIES[family], _STYLES.get(style or "instruct")
        return None if styled is None else replace(found, style=styled).columns
    known = _TYPES.get(family.removesuffix(".load"))
    if known is None or (style and style not in _STYLES):
        return None
    return replace(known, style=_STYLES[style] if style else known.style).columns
