"""Targets with generated templates and conversations: exactly what the assistant writes.

A generated template is built twice: as Jinja, and as the text that it should give, with the targets
known by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.data.chat.targets import TargetFinder
from fttui.engine.data.chat.template import ChatTemplate
from tests.support.tokenizer import tiny_tokenizer

HEADERS = {
    "chatml": ("<|im_start|>{role}\n", "<|im_start|>"),
    "two tokens": ("<|head|>{role}<|/head|>\n\n", "<|head|>"),
    "token of the role": ("<|{role}|>\n", None),
    "words": ("### {role}:\n", None),
    "brackets": ("[{role}] ", None),
}
ENDS = ("<|im_end|>\n", "<|eot|>", "</s>", " </s>\n", "<|end|>\n\n")
THINKS = {"none": "", "open": "<think>\n", "closed": "<think>\n\n</think>\n\n"}
TOKENS = ("<|head|>", "<|/head|>", "<|eot|>", "</s>", "<|end|>", "<|user|>", "<|assistant|>")


@dataclass(frozen=True)
class Style:
    """How a generated template writes conversations."""

    header: str
    end: str
    trims: bool
    opener: str
    """What the generation prompt adds behind the header."""
    thinks_last: bool
    """Whether the last turn has an empty think block."""
    default_system: bool

    def jinja(self) -> str:
        """Return the template."""
        content = "m.content | trim" if self.trims else "m.content"
        header = HEADERS[self.header][0].format(role="' + m.role + '")
        asked = HEADERS[self.header][0].format(role="assistant")
        think = f"{{{{- '{THINKS['closed']}' if loop.last -}}}}" if self.thinks_last else ""
        parts = [
            f"{{{{- '{self.system}' -}}}}" if self.default_system else "",
            f"{{%- for m in messages -%}}{{{{- '{header}' -}}}}",
            f"{{%- if m.role == 'assistant' -%}}{think}{{%- endif -%}}",
            f"{{{{- ({content}) + '{self.end}' -}}}}{{%- endfor -%}}",
            f"{{%- if add_generation_prompt -%}}{{{{- '{asked}{self.opener}' -}}}}{{%- endif -%}}",
        ]
        return "".join(parts).replace("\n", "\\n")

    @property
    def system(self) -> str:
        """The system message that the template writes by itself."""
        return HEADERS[self.header][0].format(role="system") + "You answer." + self.end

    def target(self, turn: dict[str, Any], *, last: bool) -> str:
        """Return the text that is learned of an assistant turn."""
        text = turn["content"].strip() if self.trims else turn["content"]
        think = THINKS["closed"] if self.thinks_last and last else ""
        # The model is given what the generation prompt shares with the text.
        shared = next(n for n in range(len(think), -1, -1) if self.opener.startswith(think[:n]))
        return think[shared:] + text + self.end.rstrip()


words = st.text(alphabet="ab \n.<|>[]#:/é中", min_size=1, max_size=12).filter(str.strip)
named = st.sampled_from(["user", "assistant", "### user:", "[assistant] hi", "x = [1]\n  y", "<|"])
contents = words | named
styles = st.builds(
    Style,
    header=st.sampled_from(sorted(HEADERS)),
    end=st.sampled_from(ENDS),
    trims=st.booleans(),
    opener=st.sampled_from(sorted(THINKS.values())),
    thinks_last=st.booleans(),
    default_system=st.booleans(),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A conversation of one to four exchanges, at times after a system message."""
    pairs = draw(st.lists(st.tuples(contents, contents), min_size=1, max_size=4))
    turns = [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    if draw(st.booleans()):
        turns = [{"role": "system", "content": draw(contents)}, *turns]
    return turns


@given(style=styles, turns=conversations())
def test_targets_are_what_the_assistant_writes_and_end_marks(
    style: Style, turns: list[dict[str, Any]]
) -> None:
    tokenizer = tiny_tokenizer(style.jinja())
    template = ChatTemplate(tokenizer)
    finder = TargetFinder(template, (*TOKENS, "<|im_start|>", "<|im_end|>"), "<|im_end|>")
    rendered = template.render(turns, (), "here")
    wanted = [n for n, turn in enumerate(turns) if turn["role"] == "assistant"]
    found = finder.find(turns, (), rendered, wanted)
    spans = [span for target in found.turns for span in target.spans]
    texts = [rendered.text[start:end] for start, end in spans]
    expected = [style.target(turns[n], last=n == len(turns) - 1) for n in wanted]
    assert texts == expected
    assert not found.lost
    assert not found.left_out
    assert spans == sorted(spans)
    header = HEADERS[style.header][0].format(role="assistant")
    assert all(header in rendered.text[:start] for start, _ in spans)
