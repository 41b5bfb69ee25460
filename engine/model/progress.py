"""Report loading progress to a callback instead of a progress bar on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

Progress = Callable[[str, float, float], None]
"""Called with (label, done, total)."""


def ignore_progress(label: str, done: float, total: float) -> None:
    """Discard a progress report."""


@contextmanager
def weights_progress(label: str, progress: Progress) -> Iterator[None]:
    """Report how many tensors a `from_pretrained` in the block has loaded, at most 21 times.

    Its own progress bars are not drawn.
    """

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and hasattr(args[0], "__len__"):
            args = (_reported(args[0], len(args[0]), label, progress), *args[1:])
        return factory(*args, **{**kwargs, "disable": True})

    previous = transformers_logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)


def _reported(items: Iterable[Any], total: int, label: str, progress: Progress) -> Iterator[Any]:
    stride = max(1, -(-total // 20))
    for index, item in enumerate(items):
        if index % stride == 0:
            progress(label, index, total)
        yield item
    progress(label, total, total)
