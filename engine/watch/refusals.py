"""Refusals: trainers that are not watched, and commands that a trainer cannot carry out."""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol.commands import (
    COMMANDS,
    Command,
    KeepPrompt,
    SetDropout,
    SetSchedule,
    SetWeightDecay,
)

DATA_OF_SCRIPT = "the script chooses its samples, so fttui cannot leave one out; drop it there"
"""Why no sample of a watched script can be kept out or replaced."""
OWN_CHECKPOINTS = "fttui averages only checkpoints of its own trainers"
"""Why checkpoints of a watched script are not averaged."""
MIX_OF_SCRIPT = "the script mixes its data by itself; change the weights there"
"""Why the sources of a watched script cannot be mixed by other weights."""

RECIPE_OF_SCRIPT = "the script sets it by itself; change it there"
"""Why weight decay, dropout and schedule of a watched script cannot be changed."""
OF_RECIPE: dict[type[Command], str] = dict.fromkeys(
    (SetWeightDecay, SetDropout, SetSchedule), RECIPE_OF_SCRIPT
)
OF_RECIPE[KeepPrompt] = "the script evaluates by itself, and fttui samples at no evaluation of it"
"""The commands that change the recipe of a script, with the reason why they cannot."""


class Unwatchable(Exception):
    """A trainer that fttui does not watch at all; the text says why."""


def refused_verbs(refused: Mapping[type[Command], str]) -> dict[str, str]:
    """Return the reasons for refused commands by the verbs, in the order of `COMMANDS`."""
    return {spec.verb: refused[spec.command] for spec in COMMANDS if spec.command in refused}
