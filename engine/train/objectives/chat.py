"""Chats: one prompt answered by the base, with the adapter off, and by the current weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from ...config.model_limits import ModelLimits
from ...config.schema import RunConfig
from ...model.adapter.switch import adapter_off
from ...model.hidden import base_model_of
from ...protocol.chat.events import ChatAnswered, ChatAsked, ChatContinued
from ...protocol.commands import Chat
from ...protocol.events import AnyEvent
from ..control.command_scheduler import Impossible
from ..distributed.agreement import Agreement, attempt
from ..patches import stoppable

BASE, ADAPTER, MODEL = "base", "adapter", "model"
TOGETHER_TOKENS = 4
"""Tokens between two looks for a stop where all ranks generate together."""
EVERY_S = 0.5
"""Seconds between two events of a growing answer, and between two looks for a stop."""

Record = Callable[[AnyEvent], None]


@dataclass(frozen=True)
class ChatModel:
    """The model that answers, and what it needs to generate."""

    model: Any
    """The model, wrapped in its adapter if it has one."""
    tokenizer: Any
    device: torch.device
    running: Callable[[], AbstractContextManager[None]]
    """Context in which the model generates; mode and random generators are restored after it."""
    no_base: str = ""
    """Why the model without its adapter is not the base; empty if it is."""
    sharded: bool = False
    """Whether each rank has a part of the model, so that all must generate."""
    notes: Sequence[str] = ()
    """Notes about the answers for the user."""

    @property
    def answerers(self) -> list[str]:
        """Who can answer, in this order."""
        return [MODEL] if self.no_base else [BASE, ADAPTER]

    def encode(self, chat: Chat, who: str) -> Any:
        """Return the tokens of the conversation as an answerer has seen it, each [1, tokens].

        Raises:
            Impossible: the chat template does not take the conversation.
        """
        if not self.tokenizer.chat_template:
            said = [message["content"] for message in messages_of(chat, who)]
            return self.tokenizer("\n".join(said), return_tensors="pt")
        try:
            return self.tokenizer.apply_chat_template(
                messages_of(chat, who),
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
        except Exception as error:  # templates raise errors of any kind
            about = f"the chat template of the model does not take this conversation: {error}"
            raise Impossible(f"{about}; leave the system prompt out if it has none") from error

    def ends(self) -> list[int]:
        """Return the tokens that end an answer."""
        config = getattr(self.model, "generation_config", None)
        named = getattr(config, "eos_token_id", None)
        found = {self.tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
        return sorted(token for token in found if token is not None)


def messages_of(chat: Chat, who: str) -> list[dict[str, str]]:
    """Return the messages of a conversation in which the earlier answers are those of `who`."""
    found = [{"role": "system", "content": chat.system}] if chat.system else []
    for turn in chat.turns:
        found.append({"role": "user", "content": turn.prompt})
        found.append({"role": "assistant", "content": turn.base if who == BASE else turn.now})
    return [*found, {"role": "user", "content": chat.prompt}]


def why_no_base(config: RunConfig) -> str:
    """Return why no base model is in memory beside the trained weights; empty if there is one."""
    if config.adapter.kind == "none":
        return "the weights of the model itself are trained, so that no base is in memory"
    if config.adapter.starts_beside_base:
        return (
            f"adapter.init: {config.adapter.init} takes a part of the base weights into the "
            "adapter, so that the model without it is not the base"
        )
    return ""


def chat_notes(config: RunConfig) -> list[str]:
    """Return notes about the answers of a run for the user."""
    notes = []
    if config.adapter.start is not None and config.adapter.merge_first:
        notes.append("the base is the model with the adapter that was merged at the start")
    if config.train.ema:
        notes.append("the trained weights are their moving average (train.ema)")
    return notes


class GrowingAnswer(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped
    """Follows a text while it is generated: reports its growth, and ends it on request."""

    def __init__(
        self,
        decode: Callable[[Tensor], str],
        prompt_tokens: int,
        grown: Callable[[int, str], None],
        interrupted: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow an answer.

        Args:
            decode: returns the text of tokens, [tokens].
            prompt_tokens: number of tokens before the answer.
            grown: called with the number of characters that are unchanged, and what follows.
            interrupted: asked every `EVERY_S` seconds; True ends the answer.
            clock: returns seconds.
        """
        self._decode = decode
        self._prompt_tokens = prompt_tokens
        self._grown = grown
        self._interrupted = interrupted
        self._clock = clock
        self._next = clock() + EVERY_S
        self._told = ""
        self.tokens = torch.empty(0, dtype=torch.int64)
        """The tokens of the answer so far, [tokens]."""
        self.stopped = False
        """Whether it was ended because it was interrupted."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Take the tokens so far, [1, tokens], and return whether each text is to end, [1]."""
        self.take(input_ids)
        if self._clock() >= self._next:
            self._tell()
            self.stopped = self._interrupted()
            self._next = self._clock() + EVERY_S
        return torch.full((len(input_ids),), self.stopped, device=input_ids.device)

    def take(self, input_ids: Tensor) -> None:
        """Take the tokens of prompt and answer, [1, tokens]."""
        self.tokens = input_ids[0, self._prompt_tokens :]

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._decode(self.tokens)

    def _tell(self) -> None:
        # The last character may be only a part of one so far.
        text = self.text.rstrip("\ufffd")
        start = _equal_characters(self._told, text)
        if text != self._told:
            self._grown(start, text[start:])
        self._told = text


class ChatResponder:
    """Answers prompts by the base and by the current weights; every rank enters this together.

    Rank 0 generates while the other ranks wait, unless the model is split over the ranks.
    """

    def __init__(
        self,
        answering: ChatModel,
        agreement: Agreement,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answering = answering
        self._agreement = agreement
        self._clock = clock

    def answer(self, chat: Chat, record: Record, interrupted: Callable[[], bool]) -> str:
        """Answer a prompt, and return how many tokens each answer has, in words.

        Args:
            chat: the prompt and how to answer it.
            record: called with the events of the chat, on rank 0.
            interrupted: asked by all ranks together; True ends the chat.

        Raises:
            Impossible: the prompt cannot be answered; nothing was changed.
        """
        answering = self._answering
        inputs = {who: answering.encode(chat, who) for who in answering.answerers}
        longest = max(one["input_ids"].shape[1] for one in inputs.values())
        tokens, notes = self._tokens(chat, longest)
        record = record if self._agreement.rank == 0 else (lambda _event: None)
        record(_asked(chat, tokens, answering.answerers, notes))
        told: list[str] = []
        for who, encoded in inputs.items():
            answer = self._generate(who, encoded, chat, tokens, record, interrupted)
            told.append(f"{who} {answer.tokens} tokens")
            if answer.ending == "stopped":
                break
        return ", ".join(told)

    def _tokens(self, chat: Chat, longest: int) -> tuple[int, list[str]]:
        """Return how many tokens an answer may have, and the notes about the answers."""
        answering, wanted = self._answering, max(1, chat.tokens)
        notes = [*([answering.no_base] if answering.no_base else []), *answering.notes]
        if not answering.tokenizer.chat_template:
            notes.append("the tokenizer has no chat template, so the texts are only joined")
        positions = ModelLimits.of(answering.model.config.get_text_config().to_dict()).positions
        room = wanted if positions is None else positions - longest
        if room < 1:
            raise Impossible(
                f"the conversation has {longest:,} tokens, and the model takes {positions:,}; "
                "begin a new conversation"
            )
        if room < wanted:
            notes.append(f"room for {room:,} of {wanted:,} tokens is left in the model's context")
        return min(room, wanted), notes

    def _generate(
        self,
        who: str,
        encoded: Any,
        chat: Chat,
        tokens: int,
        record: Record,
        interrupted: Callable[[], bool],
    ) -> ChatAnswered:
        answering, started = self._answering, self._clock()
        waits = not answering.sharded
        growing = GrowingAnswer(
            lambda ids: str(answering.tokenizer.decode(ids, skip_special_tokens=True)),
            encoded["input_ids"].shape[1],
            lambda start, text: record(ChatContinued(answerer=who, start=start, text=text)),
            (lambda: self._go_on(interrupted)) if waits else (lambda: False),
            self._clock,
        )
        with answering.running(), adapter_off(answering.model) if who == BASE else nullcontext():
            error, stopped = self._on_ranks(
                lambda: generate(answering, encoded, chat, tokens, growing), growing, interrupted
            )
        answer = ChatAnswered(
            answerer=who,
            text=growing.text,
            tokens=len(growing.tokens),
            seconds=self._clock() - started,
            ending="failed" if error else _ending(growing, stopped, tokens, answering.ends()),
        )
        record(answer)
        if error:
            raise Impossible(f"the {who} could not answer: {error}")
        return answer

    def _on_ranks(
        self, action: Callable[[], None], growing: GrowingAnswer, interrupted: Callable[[], bool]
    ) -> tuple[str, bool]:
        """Generate on rank 0, or on all; return the error and whether it was interrupted."""
        if self._answering.sharded:
            return self._together(action, interrupted)
        error, stopped = None, False
        if self._agreement.rank == 0:
            error = attempt(action)
            stopped = growing.stopped
            self._agreement.rows([0.0])
        else:
            while self._agreement.rows([0.0])[0][0]:
                stopped = interrupted()
        return self._agreement.share((error or "").encode()).decode(), stopped

    def _together(
        self, action: Callable[[], None], interrupted: Callable[[], bool]
    ) -> tuple[str, bool]:
        """Generate on all ranks, which ask together every few tokens whether they continue."""
        calls, stopped = 0, False

        def stops() -> bool:
            nonlocal calls, stopped
            calls += 1
            stopped = stopped or (calls % TOGETHER_TOKENS == 0 and interrupted())
            return stopped

        with stoppable(base_model_of(self._answering.model), stops):
            error = attempt(action)
        return "; ".join(self._agreement.errors(error)), stopped

    def _go_on(self, interrupted: Callable[[], bool]) -> bool:
        """Signal the waiting ranks that the answer continues, and agree on whether it may."""
        self._agreement.rows([1.0])
        return interrupted()


def generate(
    answering: ChatModel, encoded: Any, chat: Chat, tokens: int, growing: GrowingAnswer
) -> None:
    """Generate an answer of at most `tokens` tokens, which `growing` follows."""
    if chat.temperature > 0:
        torch.default_generator.manual_seed(chat.seed)
        if answering.device.type == "cuda":
            torch.cuda.manual_seed(chat.seed)
    sampling = {"temperature": chat.temperature} if chat.temperature > 0 else {}
    with torch.no_grad():
        output = answering.model.generate(
            input_ids=encoded["input_ids"].to(answering.device),
            attention_mask=encoded["attention_mask"].to(answering.device),
            max_new_tokens=tokens,
            do_sample=chat.temperature > 0,
            synced_gpus=answering.sharded,
            use_cache=True,
            pad_token_id=answering.tokenizer.pad_token_id,
            eos_token_id=answering.ends() or None,
            stopping_criteria=[growing],
            **sampling,
        )
    growing.take(output)


def _asked(chat: Chat, tokens: int, answerers: list[str], notes: list[str]) -> ChatAsked:
    return ChatAsked(
        conversation=chat.conversation,
        prompt=chat.prompt,
        checkpoint=chat.checkpoint,
        system=chat.system,
        temperature=max(0.0, chat.temperature),
        tokens=tokens,
        answerers=tuple(answerers),
        notes=tuple(notes),
    )


def _equal_characters(text: str, other: str) -> int:
    """Return how many characters at the beginning of two texts are the same."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(text), len(other)))


def _ending(growing: GrowingAnswer, stopped: bool, tokens: int, ends: Sequence[int]) -> str:
    if stopped:
        return "stopped"
    whole = len(growing.tokens) >= tokens and int(growing.tokens[-1]) not in ends
    return "limit" if whole else "end"
