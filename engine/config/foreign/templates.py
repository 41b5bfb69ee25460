"""Chat templates that other tools have by name, written out as Jinja texts.

Source: OpenAI's ChatML; the model cards of Llama, Gemma, Mistral, Phi, DeepSeek, Qwen, SmolLM2,
Vicuna and Zephyr; stanford_alpaca; what the tools' own templates render.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"\{(bos|eos)\}")


@dataclass(frozen=True)
class _Turns:
    """The texts that a template puts around messages; `{bos}` and `{eos}` are special tokens."""

    system: tuple[str, str]
    """Before and after a system message."""
    user: tuple[str, str]
    """Before and after a message of the user."""
    opening: str
    """Before an answer; it is the generation prompt, too."""
    closing: str
    """After an answer."""
    start: str = ""
    """At the beginning of a conversation."""
    between: str = ""
    """Between two messages."""
    first: str = ""
    """System message for a conversation that begins without one."""
    in_user: bool = False
    """Whether the system message stands inside the next message of the user."""

    @property
    def text(self) -> str:
        """The template as Jinja."""
        content, rules = "message['content']", "{% set ns = namespace(rules='') %}"
        system = _value(self.system[0], content, self.system[1])
        user = [self.user[0], content, self.user[1]]
        if self.in_user:
            told = f"{{% set ns.rules = {system} %}}"
            asked = f"{{{{ {_value(user[0], 'ns.rules', '')} ~ {_value('', content, user[2])} }}}}"
            asked += "{% set ns.rules = '' %}"
        else:
            told, asked, rules = f"{{{{ {system} }}}}", f"{{{{ {_value(*user)} }}}}", ""
        answer = f"{{{{ {_value(self.opening, content, self.closing)} }}}}"
        between = f"{{% if not loop.last %}}{_shown(self.between)}{{% endif %}}"
        usual = f"{self.system[0]}{self.first}{self.system[1]}"
        return "".join(
            (
                _shown(self.start),
                f"{{% if messages[0]['role'] != 'system' %}}{_shown(usual)}{{% endif %}}"
                if self.first
                else "",
                f"{rules}{{% for message in messages %}}",
                f"{{% if message['role'] == 'system' %}}{told}",
                f"{{% elif message['role'] == 'user' %}}{asked}",
                f"{{% elif message['role'] == 'assistant' %}}{answer}",
                "{% else %}{{ raise_exception('this template has no role ' ~ message['role']) }}",
                f"{{% endif %}}{between if self.between else ''}{{% endfor %}}",
                f"{{% if add_generation_prompt %}}{_shown(self.opening)}{{% endif %}}",
            )
        )


def _quoted(text: str) -> str:
    """Return a text as a Jinja expression, in which `{bos}` and `{eos}` are the tokens."""
    parts = []
    for place, part in enumerate(_TOKEN.split(text)):
        literal = part.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        parts.append(f"{part}_token" if place % 2 else f"'{literal}'")
    return " ~ ".join(part for part in parts if part != "''") or "''"


def _value(before: str, content: str, after: str) -> str:
    return " ~ ".join(one for one in (_quoted(before), content, _quoted(after)) if one != "''")


def _shown(text: str) -> str:
    return f"{{{{ {_quoted(text)} }}}}" if text else ""


_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}"
    "<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_LLAMA4 = (
    _LLAMA3.replace("start_header_id", "header_start")
    .replace("end_header_id", "header_end")
    .replace("eot_id", "eot")
)
OWN_TEMPLATES = {"chatml": _CHATML, "llama3": _LLAMA3}
"""Name → Jinja text of the templates that axolotl also uses in names of types of preferences."""


def _chatml_with(system: str) -> str:
    usual = f"<|im_start|>system\n{system}<|im_end|>\n"
    return f"{{% if messages[0]['role'] != 'system' %}}{_shown(usual)}{{% endif %}}{_CHATML}"


def _phi(start: str, line: str) -> str:
    parts = {role: (f"<|{role}|>{line}", f"<|end|>{line}") for role in ("system", "user")}
    opening, closing = f"<|assistant|>{line}", f"<|end|>{line}"
    return _Turns(parts["system"], parts["user"], opening, closing, start).text


_IN_GEMMA = "<end_of_turn>\n"
_GEMMA = _Turns(
    ("", "\n\n"), ("<start_of_turn>user\n", _IN_GEMMA), "<start_of_turn>model\n", _IN_GEMMA,
    "{bos}", in_user=True,
).text  # fmt: skip
_ASK = "Below is an instruction that describes a task. Write a response that appropriately "
_SMOLLM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
AXOLOTL = {
    **OWN_TEMPLATES,
    "falcon_h1": f"{{{{ bos_token }}}}{_CHATML}",
    "phi_3": _phi("{bos}", "\n"),
    "phi_35": _phi("", "\n"),
    "alpaca": _Turns(
        ("", ""), ("### Instruction:\n", ""), "### Response:\n", "{eos}", "{bos}", "\n\n"
    ).text,
    "qwen_25": "qwen2_5",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma3": "gemma3",
    "gemma3n": "gemma3",
    "gemma4": "gemma4",
    "gemma4_unified": "gemma4",
    "deepseek_v3": "deepseekv3",
    "cohere": "cohere",
    "aya": "cohere",
}
"""Name in axolotl → Jinja text, or the name in TRL's collection that renders the same text."""
LLAMA_FACTORY = {
    **dict.fromkeys(
        ("chatml", "qwen3_nothink", "qwen3_vl_nothink", "qwen3_5_nothink", "smollm", "yi"), _CHATML
    ),
    "qwen": _chatml_with("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    "smollm2": _chatml_with(_SMOLLM),
    "llama3": _LLAMA3.replace(" | trim", ""),
    "llama4": _LLAMA4.replace(" | trim", ""),
    "gemma": _GEMMA,
    "gemma3": _GEMMA,
    "llama2": _Turns(
        ("<<SYS>>\n", "\n<</SYS>>\n\n"), ("{bos}[INST] ", " [/INST]"), "", "{eos}", in_user=True
    ).text,
    "mistral": _Turns(
        ("", "\n\n"), ("[INST] ", "[/INST]"), " ", "{eos}", "{bos}", in_user=True
    ).text,
    "ministral": _Turns(
        ("", "\n\n"), ("[INST]", "[/INST]"), "", "{eos}", "{bos}", in_user=True
    ).text,
    "phi": _phi("", "\n"),
    "phi4_mini": _phi("", ""),
    "deepseek": _Turns(
        ("", "\n\n"), ("User: ", "\n\n"), "Assistant:", "{eos}", "{bos}"
    ).text,
    "deepseek3": _Turns(
        ("", ""), ("<｜User｜>", ""), "<｜Assistant｜>", "{eos}", "{bos}"
    ).text,
    "zephyr": _Turns(
        ("<|system|>\n", "{eos}"), ("<|user|>\n", "{eos}"), "<|assistant|>\n", "{eos}",
        first="You are Zephyr, a helpful assistant.",
    ).text,
    "vicuna": _Turns(("", ""), ("USER: ", " "), "ASSISTANT:", "{eos}", first=_VICUNA).text,
    "alpaca": _Turns(
        ("", ""), ("### Instruction:\n", "\n\n"), "### Response:\n", "{eos}\n\n",
        first=f"{_ASK}completes the request.\n\n",
    ).text,
    "default": _Turns(
        ("System: ", "{eos}\n"), ("Human: ", "{eos}\n"), "Assistant:", "{eos}\n"
    ).text,
}  # fmt: skip
"""Name in LLaMA-Factory → Jinja text."""
EXACT = {"llama2", "llama3", "llama4", "ministral", "phi4_mini", "deepseek", "deepseek3", "zephyr",
         "vicuna"}  # fmt: skip
"""Templates of LLaMA-Factory with no white space around an answer, so that all of it is learned."""


OTHER_ENDS = {"gemma", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "cohere", "aya"}
"""Templates of axolotl whose end of a turn is not the end token of their models."""


def template_for(name: str) -> str:
    """Return the Jinja text of a template of `OWN_TEMPLATES` by its name."""
    return OWN_TEMPLATES[name]
