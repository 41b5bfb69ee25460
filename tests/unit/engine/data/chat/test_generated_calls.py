"""Targets with generated templates for tools: calls, parts, reasoning and results in any form.

The expected text is built beside the template, with the targets and the losses known by
construction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.data.chat.targets import TargetFinder
from fttui.engine.data.chat.template import ChatTemplate
from tests.support.tokenizer import tiny_tokenizer

END = "<|im_end|>"
TOKENS = ("<|im_start|>", END, "<call>", "</call>", "<result>", "</result>", "[CALLS]")
CALLS = {
    "tags": ("<call>{name}\n{arguments}</call>\n", "<call>' + f.name + '\n' + {json} + '</call>\n"),
    "list": ("[CALLS][{name}] {arguments}", "[CALLS][' + f.name + '] ' + {json} + '"),
    "words": ("Call {name}: {arguments}.\n", "Call ' + f.name + ': ' + {json} + '.\n"),
}
HEADERS = ("<|im_start|>{role}\n", "### {role}: ", "<|{role}|>")
OPENERS = ("", "<think>\n", "<think>\n\n</think>\n\n", "<|reply|>")
REASONING = ("all", "last", "none")


@dataclass(frozen=True)
class ToolStyle:
    """How a generated template writes conversations with tools."""

    header: str
    opener: str
    """What the generation prompt adds behind the header."""
    call: str
    most_calls: int
    """Calls of a turn that are written."""
    ascii: bool
    """Whether arguments are escaped to ASCII."""
    reasoning: str
    parts: bool
    """Whether only a list of parts is read."""
    result_in_turn: bool
    """Whether a result follows the call without a header."""
    result_names_call: bool

    @property
    def arguments(self) -> str:
        """The expression that writes the arguments of a call."""
        return f"(f.arguments | tojson(ensure_ascii={str(self.ascii).lower()}))"

    def jinja(self) -> str:
        """Return the template."""
        asked = self.header.format(role="assistant")
        whole = "(m.content | map(attribute='text') | join('|'))" if self.parts else "m.content"
        headed = "m.role == 'tool'" if self.result_in_turn else "false"
        inner = [
            f"{{%- if not ({headed}) -%}}",
            "{{- '" + self.header.format(role="' + m.role + '") + "' -}}{%- endif -%}",
            self._reasoning(),
            "{%- if m.role == 'tool' -%}{{- '<result>' -}}",
            "{{- messages[loop.index0 - 1].tool_calls[0].function.name + ' = ' -}}"
            if self.result_names_call
            else "",
            f"{{{{- {whole} + '</result>{END}' -}}}}{{%- else -%}}",
            f"{{%- if m.content -%}}{{{{- {whole} -}}}}{{%- endif -%}}",
            f"{{%- for c in (m.tool_calls or [])[:{self.most_calls}] -%}}",
            "{%- set f = c.function -%}{{- '",
            CALLS[self.call][1].replace("{json}", self.arguments),
            f"' -}}}}{{%- endfor -%}}{{{{- '{END}' -}}}}{{%- endif -%}}",
        ]
        return "".join(
            [
                "{%- for m in messages -%}",
                *inner,
                "{%- endfor -%}{%- if add_generation_prompt -%}",
                f"{{{{- '{asked}{self.opener}' -}}}}{{%- endif -%}}",
            ]
        ).replace("\n", "\\n")

    def _reasoning(self) -> str:
        when = {"all": "true", "last": "loop.last", "none": "false"}[self.reasoning]
        return (
            f"{{%- if m.reasoning_content and {when} -%}}"
            "{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}"
        )

    def target(self, turn: dict[str, Any], *, last: bool) -> str:
        """Return the text that is learned of an assistant turn."""
        text = ""
        if turn.get("reasoning_content") and self.keeps(last=last):
            text = f"<think>\n{turn['reasoning_content']}\n</think>\n\n"
            # The model is given what the generation prompt shares with the text.
            text = text.removeprefix("<think>\n" if self.opener.startswith("<think>") else "")
        content = turn["content"] or ""
        joined = content if isinstance(content, str) else "|".join(p["text"] for p in content)
        calls = [
            CALLS[self.call][0].format(
                name=call["function"]["name"],
                arguments=json.dumps(call["function"]["arguments"], ensure_ascii=self.ascii),
            )
            for call in turn.get("tool_calls", [])[: self.most_calls]
        ]
        return text + joined + "".join(calls) + END

    def keeps(self, *, last: bool) -> bool:
        """Whether the reasoning of a turn is written."""
        return self.reasoning == "all" or (self.reasoning == "last" and last)

    def left_out(self, turn: dict[str, Any], *, last: bool) -> set[str]:
        """Return the kinds of strings of a turn that are not written."""
        lost = set()
        if turn.get("reasoning_content") and not self.keeps(last=last):
            lost.add("reasoning")
        if len(turn.get("tool_calls", [])) > self.most_calls:
            lost.add("call")
        return lost


words = st.text(alphabet="ab \n.{}:/é中😀\"'", min_size=1, max_size=10).filter(
    lambda text: text == text.strip() and "|" not in text
)
contents = words | st.sampled_from(["assistant", "area", "a", "size: 3"])
calls = st.builds(
    lambda name, values: {
        "type": "function",
        "function": {"name": name, "arguments": values},
    },
    name=st.sampled_from(["area", "size", "a"]),
    values=st.dictionaries(st.sampled_from(["of", "by", "n"]), contents | st.integers(0, 9)),
)
styles = st.builds(
    ToolStyle,
    header=st.sampled_from(HEADERS),
    opener=st.sampled_from(OPENERS),
    call=st.sampled_from(sorted(CALLS)),
    most_calls=st.sampled_from([1, 9]),
    ascii=st.booleans(),
    reasoning=st.sampled_from(REASONING),
    parts=st.booleans(),
    result_in_turn=st.booleans(),
    result_names_call=st.booleans(),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """One to three exchanges, some of them with calls and a result, and with reasoning."""
    turns: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        turns.append({"role": "user", "content": draw(contents)})
        if draw(st.booleans()):
            made = draw(st.lists(calls, min_size=1, max_size=3))
            turns.append(_reasoned(draw, draw(contents | st.none()), tool_calls=made))
            turns.append({"role": "tool", "content": draw(contents)})
        texts = draw(st.lists(contents, min_size=1, max_size=3))
        parts = [{"type": "text", "text": text} for text in texts]
        turns.append(_reasoned(draw, parts if draw(st.booleans()) else texts[0]))
    return turns


def _reasoned(draw: st.DrawFn, content: Any, **more: Any) -> dict[str, Any]:
    reasoning = {"reasoning_content": draw(contents)} if draw(st.booleans()) else {}
    return {"role": "assistant", "content": content, **reasoning, **more}


@given(style=styles, turns=conversations())
def test_targets_are_what_the_assistant_writes_and_losses_are_known(
    style: ToolStyle, turns: list[dict[str, Any]]
) -> None:
    if not style.parts:  # only text is read
        for turn in turns:
            if isinstance(turn["content"], list):
                turn["content"] = "|".join(part["text"] for part in turn["content"])
    template = ChatTemplate(tiny_tokenizer(style.jinja()))
    finder = TargetFinder(template, (*TOKENS, "<|assistant|>", "<|user|>", "<|reply|>"), END)
    rendered = template.render(turns, (), "here")
    wanted = [n for n, turn in enumerate(turns) if turn["role"] == "assistant"]
    found = finder.find(turns, (), rendered, wanted)
    last = len(turns) - 1
    texts = [rendered.text[a:b] for target in found.turns for a, b in target.spans]
    assert texts == [style.target(turns[n], last=n == last) for n in wanted]
    assert not found.lost
    lost = {n: style.left_out(turns[n], last=n == last) for n in wanted}
    assert found.left_out == {n: kinds for n, kinds in lost.items() if kinds}
