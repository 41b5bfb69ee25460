"""Read the losses of TRL's trainer DPO, which axolotl and alignment-handbook pass on by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..tasks import REFERENCE_LOSSES, traits_of
from .draft import Draft, number

_SUPERVISED = "sft"
"""The loss of TRL that is the next-token loss of the chosen completions."""


def read_losses(draft: Draft, key: str, names: Sequence[str], weights_key: str) -> None:
    """Read one loss, or several that are added up with weights.

    Args:
        draft: the configuration; its numbers of the section `preference` have been read.
        key: the key that names the losses.
        names: the losses; none leaves the default one.
        weights_key: the key of their weights; absent, each is 1.
    """
    wrong = [name for name in names if name not in (*REFERENCE_LOSSES, _SUPERVISED)]
    if wrong:
        draft.refused(key, f"the loss {' + '.join(wrong)} is not supported")
        return
    if names and set(names) == {_SUPERVISED}:
        draft.refused(key, "the loss sft alone compares nothing; import it with --task sft")
        return
    chosen = list(names) or ["sigmoid"]
    weights = [float(number(one)) for one in _listed(draft, weights_key)] or [1.0] * len(chosen)
    if len(weights) != len(chosen):
        draft.refused(weights_key, f"has {len(weights)} weights for {len(chosen)} losses")
        return
    draft.read_with(weights_key, key)
    sums: dict[str, float] = {}
    for name, weight in zip(chosen, weights, strict=True):
        sums[name] = sums.get(name, 0.0) + weight
    supervised = sums.pop(_SUPERVISED, 0.0)
    _set_losses(draft, key, sums, given=bool(names))
    if supervised:
        draft.default("preference.ce_weight", supervised, f"the loss sft of {key}")


def _set_losses(draft: Draft, key: str, sums: dict[str, float], *, given: bool) -> None:
    value = next(iter(sums)) if list(sums.values()) == [1.0] else sums
    if given:
        draft.same(key, "preference.loss", value)
    elif value != "sigmoid":
        draft.default("preference.loss", value, "the weight of the default loss")


def leave_out_unused(draft: Draft, tool: str) -> None:
    """Unset the keys of the section that the imported losses do not use."""
    given: Any = draft.values.get("preference.loss", "sigmoid")
    names: Iterable[Any] = (given,) if isinstance(given, str) else given
    traits = traits_of(names)
    for path, used in {
        "preference.label_smoothing": traits.smoothing,
        "preference.gamma": traits.margin,
        "preference.discopop_tau": traits.sharpness,
        "preference.reward_alpha": traits.shape,
    }.items():
        if not used:
            draft.leave_out(path, "no effect", f"{tool} does not use it with this loss")


def _listed(draft: Draft, key: str) -> Sequence[float]:
    found = draft.get(key)
    if found is None:
        return []
    return found if isinstance(found, list) else [found]
