"""Conclude which of TRL's trainers a configuration is for; they share most of their keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..tasks import REFERENCE_LOSSES
from .draft import Draft, keys_by_reason, shown

_TASK_OF_KEY = keys_by_reason(
    {
        "kto": "desirable_weight undesirable_weight",
        "reward": "center_rewards_coefficient num_labels",
        "dpo": """
            cpo_alpha simpo_gamma rpo_alpha f_divergence_type f_alpha_divergence_coef loss_weights
            ld_alpha use_weighting discopop_tau reference_free alpha force_use_ref_model
        """,
    }
)
"""Keys that only the trainers of one task have."""
_COMPARING = (
    *("beta", "label_smoothing", "max_prompt_length", "max_completion_length", "truncation_mode"),
    *("precompute_ref_log_probs", "sync_ref_model", "generate_during_eval", "loss_type"),
)
"""Keys that the trainers DPO, ORPO, CPO and KTO share."""
_SUPERVISED = (
    *("packing", "packing_strategy", "eval_packing", "dataset_text_field", "max_seq_length"),
    *("completion_only_loss", "assistant_only_loss", "dataset_kwargs", "shuffle_dataset"),
)
"""Keys that suggest the trainer SFT if there are none of the other trainers."""
_RATED_LOSSES = ("kto", "apo_zero_unpaired")
_DPO_LOSSES = (*sorted(set(REFERENCE_LOSSES) - {"sigmoid", "hinge", "ipo"}), "simpo", "alphapo")
"""Losses of TRL's trainers DPO and CPO that no other trainer has."""
_SUPERVISED_LOSSES = ("nll", "chunked_nll", "dft")
_NAMES = ("hub_model_id", "run_name", "output_dir")
_METHOD = re.compile(r"(?<![a-z])(dpo|orpo|simpo|cpo|kto|bco|reward)(?![a-z])")


@dataclass(frozen=True)
class TaskFound:
    """The task of a configuration, and what is uncertain about it."""

    task: str
    open: str = ""
    """What the keys leave open, and the option that decides it; empty if they decide the task."""
    named: str = ""
    """The name in the file that suggests another method, such as `hub_model_id: org/x-orpo`."""


def task_of(draft: Draft, file: str) -> TaskFound:
    """Return the task that follows from the keys, or the likeliest one and what stays uncertain.

    A name of the file, the run or the model decides nothing. If the keys do not decide either, a
    name that suggests another method than the likeliest one is returned, so that the user decides.

    Args:
        draft: the configuration.
        file: the last parts of its path.
    """
    known = next((task for key, task in _TASK_OF_KEY.items() if draft.get(key) is not None), None)
    loss = draft.get("loss_type")
    loss = loss[0] if isinstance(loss, list) and len(loss) == 1 else loss
    if not isinstance(loss, list) and loss in _RATED_LOSSES:
        known = "kto"
    elif isinstance(loss, list) or loss in _DPO_LOSSES:
        known = known or "dpo"  # one trainer has such a loss, and one takes several
    elif str(draft.get("lora_task_type")) == "SEQ_CLS":
        known = known or "reward"
    if known is not None:
        return TaskFound(known)
    if not isinstance(loss, list) and loss in _SUPERVISED_LOSSES:
        return TaskFound("sft")
    if any(draft.get(key) is not None for key in _COMPARING):
        why = (
            "TRL's DPO, ORPO, CPO and KTO have these keys alike, and it is read as DPO; say which "
            "one it is with --task dpo, --task kto or --set preference.loss=orpo (or cpo, slic)"
        )
        return TaskFound("dpo", why, _name_of_other(draft, file, ("dpo",)))
    if any(draft.get(key) is not None for key in _SUPERVISED):
        return TaskFound("sft")
    why = (
        "no key shows which trainer it is for, so it is read as supervised; say which one it is "
        "with --task sft, dpo, kto or reward, or with --set preference.loss=orpo (or cpo)"
    )
    return TaskFound("sft", why, _name_of_other(draft, file, ()))


def _name_of_other(draft: Draft, file: str, expected: tuple[str, ...]) -> str:
    """Return the key and the value, or the file, whose name contains another method."""
    names = {key: draft.get(key) for key in _NAMES if draft.get(key) is not None}
    for key, name in {**names, "file": file}.items():
        if set(_METHOD.findall(str(name).lower())) - set(expected):
            return f"{key}: {shown(name)}"
    return ""
