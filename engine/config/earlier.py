"""Configurations resolved by earlier versions: their data are read as these versions read them.

Such a configuration lacks the keys that were added later. The earlier versions had a fixed
behaviour where these keys now give a choice, and a run that is resumed keeps that behaviour.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from .schema import DataConfig, RunConfig

_CONTEXT = ("tools", "functions", "system", "system_prompt", "system_message", "history")
"""Columns of conversations that were not read before `data.columns` existed."""
_LABELS = ("gold_label", "labels", "is_duplicate", "is_paraphrase", "entailment_judgment")
"""Columns of two texts that were not read as their label before `data.columns` existed."""
_SCORES = ("similarity", "similarity_score", "sim_score", "relatedness_score", "relatedness")
_GOOD = ("1", "+1", "true", "yes", "good", "desirable", "chosen")
"""Labels that said that a completion is good before `data.yes_labels` existed."""


def read_as_before(config: RunConfig, keys: Collection[str]) -> RunConfig:
    """Return a configuration whose data are read as by the version that resolved it.

    Args:
        config: The configuration; what it sets stays.
        keys: The keys that the section `data` has in the resolved file.
    """
    data = config.data
    if "columns" not in keys:
        data = _before_columns(data, config.task)
    if "yes_labels" not in keys:
        data = _before_yes_labels(data, config.task)
    return replace(config, data=data)


def _before_columns(data: DataConfig, task: str) -> DataConfig:
    """Return a `data` section without the columns and labels that `data.columns` made readable.

    For task contrastive, a label is a class unless configured, and only the first positive is used.
    """
    if task == "contrastive":
        label = "class" if data.label == "auto" else data.label
        unread = dict.fromkeys((*_LABELS, *_SCORES))
        return replace(data, label=label, positives="first", columns=unread | data.columns)
    names = (*_CONTEXT, "label") if task == "sft" and data.label == "auto" else _CONTEXT
    return replace(data, columns=dict.fromkeys(names) | data.columns)


def _before_yes_labels(data: DataConfig, task: str) -> DataConfig:
    """Return a `data` section that passes unknown roles to the chat template under their own names.

    For task kto, it also has the positive labels that were fixed before.
    """
    roles = {"*": "*"} | data.roles
    yes = list(_GOOD) if task == "kto" and data.yes_labels is None else data.yes_labels
    return replace(data, roles=roles, yes_labels=yes)
