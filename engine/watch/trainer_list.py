"""The commands that the trainers of the installed libraries can carry out, for `fttui doctor`.

    python -m fttui.engine.watch.trainer_list

It is a process of its own because it imports the libraries. Each line is a class, a tab and what
fttui can do with it. The arguments of a trainer can limit it further; they are listed last, and the
start of its run says so.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from inspect import isclass
from typing import Any

from .refusals import refused_verbs

_MODULES = (
    "transformers",
    "trl",
    "sentence_transformers",
    "sentence_transformers.cross_encoder",
    "sentence_transformers.sparse_encoder",
)
"""Modules whose public trainers are listed."""
_ALL = "every command but profiles, with exact rollback"
_TESTED = ("SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO", "SentenceTransformer", "CrossEncoder",
           "SparseEncoder", "MultiVectorEncoder")  # fmt: skip
"""Classes that a test trains and rolls back, without the ending `Trainer`."""


def trainer_lines() -> Iterator[tuple[str, str]]:
    """Yield the name of every kind of training and what can be done with it; none without torch.

    Arguments that limit every trainer of transformers follow.
    """
    if find_spec("torch") is None:
        return
    yield "plain loop", _plain_loop()
    for package in ("lightning", "pytorch_lightning"):
        if find_spec(package) is not None:
            yield package, _lightning(package)
    if find_spec("transformers") is not None:
        for name, kind in _trainers():
            yield name, what_works(kind)
        from .huggingface.capabilities import argument_limits

        yield from argument_limits()


def _plain_loop() -> str:
    from .plain.loop import REFUSED

    missing = ", ".join(refused_verbs(REFUSED))
    return f"torch {version('torch')}: every command but {missing}, with exact rollback"


def _lightning(package: str) -> str:
    from .lightning.run import REFUSED

    missing = ", ".join(refused_verbs(REFUSED))
    return f"{package.replace('_', '-')} {version(package)}: every command but {missing}"


def _trainers() -> Iterator[tuple[str, type[Any]]]:
    """Yield the trainers of the libraries that are installed, each class once."""
    from transformers import Trainer

    seen: set[type[Any]] = set()
    for module in _installed():
        for name in sorted(set(dir(module)) | set(getattr(module, "__all__", ()))):
            kind = getattr(module, name, None) if name.endswith("Trainer") else None
            if isclass(kind) and issubclass(kind, Trainer) and kind not in seen:
                seen.add(kind)
                yield name, kind


def _installed() -> Iterator[Any]:
    for name in _MODULES:
        if find_spec(name.partition(".")[0]) is None:
            continue
        try:
            yield importlib.import_module(name)
        except ImportError as error:  # a library that lacks something hides no other
            sys.stderr.write(f"{name} cannot be imported: {error}\n")


def what_works(kind: type[Any]) -> str:
    """Return what fttui can do with the trainers of a class, with the version of their library."""
    from .huggingface.capabilities import why_class_not_back, why_not_watched

    library = kind.__module__.partition(".")[0]
    named = f"{library.replace('_', '-')} {version(library)}"
    if reason := why_not_watched(kind):
        return f"{named}: not watched: {reason}"
    if reason := why_class_not_back(kind):
        return f"{named}: no rollback, recover or skip: {reason}"
    tested = kind.__name__ == "Trainer" or kind.__name__.removesuffix("Trainer") in _TESTED
    return f"{named}: {_ALL}{'' if tested else '; no test of fttui trains it'}"


if __name__ == "__main__":
    for each in trainer_lines():
        print("\t".join(each), flush=True)  # noqa: T201 -- the output is what it is for
