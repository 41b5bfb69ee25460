"""Checks of the section `preference`: its losses, and the keys that they use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ..memory.contrastive_candidates import pairs_at_once
from ..schema import RunConfig
from ..sections.preference import PreferenceConfig
from ..tasks import PREFERENCE_TASKS, pair_losses_with
from .problem import Problem

_TRAIT_OF = {
    "label_smoothing": "smoothing",
    "gamma": "margin",
    "f_divergence": "divergence",
    "discopop_tau": "sharpness",
    "reward_alpha": "shape",
}
"""The trait of a loss of task dpo that each key needs."""
_OF_DPO = ("loss", *_TRAIT_OF, "f_alpha", "ld_alpha")
"""Keys that task kto does not use."""
_OF_KTO = ("desirable_weight", "undesirable_weight", "rated_loss")
"""Keys that task dpo does not use."""


def check_preference(config: RunConfig) -> Iterator[Problem]:
    """Yield the keys of the section that the task or its losses do not use, or that conflict."""
    own, task = config.preference, config.task
    changed = _changed(own)
    if task not in PREFERENCE_TASKS:
        if changed:
            yield Problem(
                "preference",
                f"the section is set, but task {task} does not use it; set task: dpo or kto, or "
                "remove the section",
            )
        return
    others = _OF_DPO if task == "kto" else _OF_KTO
    for key in others:
        if key in changed:
            yield Problem(
                f"preference.{key}",
                f"got {_shown(changed[key])}, but task {task} does not use it; remove the key, or "
                f"set task: {'dpo' if task == 'kto' else 'kto'}",
            )
    if task == "kto" and not (own.desirable_weight or own.undesirable_weight):
        yield Problem(
            "preference.desirable_weight",
            "both weights are 0, so there is no loss; raise one of them",
        )
    if task == "dpo":
        yield from _check_sum(own)
        yield from _check_keys(own, changed)
        yield from _check_order(config)
    yield from _check_next_token(config)


def _changed(own: PreferenceConfig) -> Mapping[str, object]:
    """Return the keys whose values are not the default ones."""
    default = msgspec.structs.asdict(PreferenceConfig())
    values = msgspec.structs.asdict(own)
    return {key: value for key, value in values.items() if value != default[key]}


def _check_sum(own: PreferenceConfig) -> Iterator[Problem]:
    if not own.losses:
        yield Problem("preference.loss", "names no loss; set a loss, such as sigmoid")
    elif len(own.losses) > 1 and not all(one.reference for one in own.every_traits):
        yield Problem(
            "preference.loss",
            f"got {own.named}, but only losses with a reference are added up; choose a single one "
            "without reference (preference.ce_weight adds the next-token loss)",
        )


def _check_keys(own: PreferenceConfig, changed: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the keys of task dpo that none of its losses uses, or one of them cannot."""
    for key, trait in _TRAIT_OF.items():
        used = [getattr(one, trait) for one in own.every_traits]
        enough = all(used) if key == "f_divergence" else any(used)
        if key in changed and used and not enough:
            yield _unused(own, key, changed[key], trait)
    if own.f_divergence != "alpha_divergence" and "f_alpha" in changed:
        yield Problem(
            "preference.f_alpha",
            f"got {own.f_alpha:g}, but f_divergence is {own.f_divergence}; remove the key, or set "
            "preference.f_divergence: alpha_divergence",
        )
    if "exo_pair" in own.losses and not own.label_smoothing:
        yield Problem(
            "preference.label_smoothing",
            "got 0, but loss exo_pair needs more than 0; set it to 0.001, as its authors do",
        )
    if own.ld_alpha is not None and own.next_token_on_prompt:
        yield Problem(
            "preference.ld_alpha",
            f"got {own.ld_alpha:g}, but the next-token loss covers prompts here; set "
            "preference.ce_tokens: completion",
        )


def _unused(own: PreferenceConfig, key: str, got: object, trait: str) -> Problem:
    return Problem(
        f"preference.{key}",
        f"got {_shown(got)}, but loss {own.named} does not use it; remove the key, or use it with "
        f"one of the losses {pair_losses_with(trait)} of task dpo",
    )


def _check_order(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem if a loss that sorts pairs has only one pair in a step."""
    own, train = config.preference, config.train
    if own.traits.ordered and pairs_at_once(config) * train.accumulation < 2:
        yield Problem(
            "preference.loss",
            f"got {own.named}, which sorts the pairs of a step, but a step has a single one, so it "
            "would be the loss sigmoid; set train.batch or train.accumulate to 2 or more",
        )


def _check_next_token(config: RunConfig) -> Iterator[Problem]:
    own = config.preference
    if own.ce_tokens != "auto" and not own.next_token_weight:
        loss = "task kto" if config.task == "kto" else f"loss {own.named}"
        yield Problem(
            "preference.ce_tokens",
            f"got {own.ce_tokens}, but {loss} has no next-token loss here; set "
            "preference.ce_weight above 0, or remove the key",
        )


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
