"""The model of a contrastive run with the methods of sentence-transformers' embedding models.

So its evaluators (information retrieval, similarity, triplets and others) take it as a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ....config.sections.contrastive import ContrastiveConfig
from ....data.tokens.encoding import Encoder
from ....data.tokens.endings import embedded_ids
from ....losses.pooling import pool

Embed = Callable[[Tensor, Tensor], Tensor]
"""Returns the last hidden states [B, T, H] of token ids and attention mask, [B, T] each."""


class NoModelCard:
    """Takes the place of the model card in which an evaluator notes its results."""

    def set_evaluation_metrics(self, *_: Any, **__: Any) -> None:
        """Note nothing: the run keeps its own record of metrics."""


class Embedder:
    """Embeds texts as the evaluation of the run does: cut, pooled, and of length 1."""

    similarity_fn_name = "cosine"

    def __init__(
        self,
        config: ContrastiveConfig,
        tokenizer: Any,
        max_length: int,
        states: Embed,
        device: torch.device,
    ) -> None:
        self._config = config
        self._max_length = max_length
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._states = states
        self.device = device
        self.model_card_data = NoModelCard()
        self.prompts = {"query": config.instruction, "document": config.passage_instruction}

    def encode_query(self, sentences: Any, **options: Any) -> Any:
        """Embed texts as anchors, with `contrastive.instruction` before them; see `encode`."""
        return self.encode(sentences, prompt=self.prompts["query"], **_without_prompt(options))

    def encode_document(self, sentences: Any, **options: Any) -> Any:
        """Embed texts as positives, with `contrastive.passage_instruction`; see `encode`."""
        return self.encode(sentences, prompt=self.prompts["document"], **_without_prompt(options))

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        convert_to_tensor: bool = False,
        truncate_dim: int | None = None,
        **_: Any,
    ) -> Any:
        """Return the vectors of texts: [N, H], or [H] for a single text.

        Args:
            sentences: one text or several.
            prompt_name: `query` or `document`, for the instruction of anchors or positives.
            prompt: text before each text; it has precedence over `prompt_name`.
            batch_size: texts at once.
            convert_to_tensor: whether to return a tensor on the device instead of an array.
            truncate_dim: numbers to keep of each vector; None keeps all.
        """
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        before = self.prompts.get(prompt_name or "", "") if prompt is None else prompt
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        parts = [
            self._vectors([texts[n] for n in order[start : start + batch_size]], before)
            for start in range(0, len(texts), batch_size)
        ]
        vectors = torch.cat(parts) if parts else torch.zeros(0, 0, device=self.device)
        vectors = F.normalize(vectors[:, :truncate_dim], dim=-1)
        back = torch.tensor(order, device=vectors.device).argsort()
        found = vectors[back] if texts else vectors
        found = found[0] if single else found
        return found if convert_to_tensor else found.cpu().numpy()

    def _vectors(self, texts: list[str], before: str) -> Tensor:
        eos = self._tokenizer.eos_token_id
        rows = list(embedded_ids(texts, before, self._encoder, eos, self._max_length))
        width = max(len(ids) for ids, _ in rows)
        pad = self._tokenizer.pad_token_id or 0
        ids = torch.tensor([[*one, *[pad] * (width - len(one))] for one, _ in rows])
        mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one, _ in rows])
        pooled = mask.clone()
        for row, (_, prompt) in enumerate(rows):
            pooled[row, : prompt if self._config.exclude_prompt else 0] = 0
        device = self.device
        states = self._states(ids.to(device), mask.to(device))
        return pool(states, pooled.to(device), self._config.pooling)

    def similarity(self, one: Any, other: Any) -> Tensor:
        """Return the cosines of each vector [N, H] with each of others [M, H], [N, M]."""
        return _unit(one) @ _unit(other).T

    def similarity_pairwise(self, one: Any, other: Any) -> Tensor:
        """Return the cosines of vectors [N, H] with others [N, H], [N]."""
        return (_unit(one) * _unit(other)).sum(dim=-1)


def _without_prompt(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in ("prompt", "prompt_name")}


def _unit(vectors: Any) -> Tensor:
    return F.normalize(torch.as_tensor(vectors), dim=-1)
