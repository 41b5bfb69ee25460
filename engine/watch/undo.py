"""Replaced attributes of foreign objects, recorded so that all of them can be restored.

| object and attribute | replaced by | reason |
|---|---|---|
| `trainer.train` | `huggingface.watch` | opens and ends the run |
| `trainer._inner_training_loop` | `huggingface.watch` | the same if `train` is replaced later |
| `trainer.get_batch_samples` | `huggingface.loop` | the boundary before a step; its batches |
| `trainer.training_step` | `huggingface.loop` | the loss of a micro-batch; may drop the step |
| `trainer._clip_grad_norm` | `huggingface.loop` | the verdict on an update before it is made |
| `trainer._get_grad_norm` | `huggingface.loop` | the same for a trainer that does not clip |
| `trainer._run_epoch` | `huggingface.loop` | enters an epoch again at another position |
| `accelerator.backward` | `train.patches` | a loss that is not finite has to reach every rank |
| `accelerator.clip_grad_norm_` | `huggingface.closed_loop` | the verdict, before transformers 5.6 |
| `optimizer.step` | `train.patches` | a refused update changes neither weights nor state |

Only instances are changed, never a class, so that other trainers of the process stay as they are.
"""

from __future__ import annotations

from typing import Any

ABSENT = object()
"""Stands for an attribute that the instance itself did not have."""


class Undo:
    """Replaces attributes of instances and restores the earlier ones."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._ours: dict[tuple[int, str], Any] = {}
        """The values in place of earlier ones, by owner and name, where they are known."""

    def remember(self, owner: Any, name: str) -> None:
        """Remember an attribute of an instance that other code is about to replace."""
        self._before.append((owner, name, vars(owner).get(name, ABSENT)))

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute of an instance and return what it was."""
        before = getattr(owner, name)
        self.remember(owner, name)
        self._ours[id(owner), name] = value
        setattr(owner, name, value)
        return before

    def all(self) -> None:
        """Restore the attributes, newest first, except those that other code has replaced since."""
        while self._before:
            owner, name, value = self._before.pop()
            now = vars(owner).get(name, ABSENT)
            if self._ours.pop((id(owner), name), now) is not now:
                continue
            if value is ABSENT:
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, value)
