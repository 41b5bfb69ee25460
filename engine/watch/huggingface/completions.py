"""Completions that TRL's online trainers generate, shown as samples of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Completion(NamedTuple):
    """A text that was generated for training."""

    prompt: str
    text: str


class NewestCompletion:
    """Reads the newest completion of trainers that keep theirs for their log (GRPO, RLOO)."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._shown: Completion | None = None

    def take(self) -> Completion | None:
        """Return the newest completion; None if there is none, or it was returned before."""
        kept = getattr(self._trainer, "_logs", None)
        prompts, texts = (_last(kept, name) for name in ("prompt", "completion"))
        if prompts is None or texts is None:
            return None
        found = Completion(_plain(prompts), _plain(texts))
        if found == self._shown:
            return None
        self._shown = found
        return found


def _last(kept: Any, name: str) -> Any:
    """Return the last entry of a list in a mapping; None without one."""
    values = kept.get(name) if isinstance(kept, dict) else None
    return values[-1] if values else None


def _plain(text: Any) -> str:
    """Return a text, or the texts of the messages of a conversation, each after its role."""
    if isinstance(text, str) or not isinstance(text, Sequence):
        return str(text)
    said = (turn if isinstance(turn, dict) else {"content": turn} for turn in text)
    return "\n".join(_turn(one) for one in said)


def _turn(turn: dict[str, Any]) -> str:
    content = turn.get("content") or ""
    if not isinstance(content, str):
        parts = (part.get("text", "") if isinstance(part, dict) else part for part in content)
        content = " ".join(str(part) for part in parts if part)
    return f"{turn['role']}: {content}" if "role" in turn else content
