"""Chat templates that other tools have by name, and that are short enough to write out."""

from __future__ import annotations

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
OWN_TEMPLATES = {"chatml": _CHATML, "llama3": _LLAMA3}
"""Name → Jinja text. Source: OpenAI's ChatML; the model card of Llama 3."""


def template_for(name: str) -> str:
    """Return the Jinja text of a template of `OWN_TEMPLATES` by its name."""
    return OWN_TEMPLATES[name]
