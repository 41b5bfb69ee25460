"""The engine's control around a trainer that fttui has not built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import nn

from ..config.schema import RunConfig
from ..protocol.commands import Command, SaveCheckpoint, SetPolicy
from ..run.journal_summary import summarize_journal
from ..run.run_dir import RunDirectory
from ..train.control.controlled_trainer import ControlledTrainer
from ..train.controlled_session import Controlled, ControlSetup
from ..train.distributed.agreement import Agreement
from ..train.distributed.place import RankPlace
from ..train.event_log import EventLog
from ..train.loop.memory_meter import SHARED_S
from ..train.session_start import SessionStart
from ..train.signals import StopSignals
from .foreign_state import ForeignState
from .refusals import Unwatchable, refused_verbs
from .script_run import ScriptRun


def control_trainer(
    config: RunConfig,
    run: RunDirectory,
    event_log: EventLog,
    agreement: Agreement,
    place: RankPlace,
    trainer: ControlledTrainer,
    model: nn.Module,
    tokenizer: Any,
) -> Controlled:
    """Build the control around a trainer; every rank calls this together.

    Args:
        config: what is known of the run.
        run: folder of the run, the same on every rank.
        event_log: records the events of the run.
        agreement: agreement of the ranks.
        place: rank and device of this process.
        trainer: the trainer to control.
        model: the model whose gradients are measured.
        tokenizer: tokenizer for reports; None shows token ids.
    """
    setup = ControlSetup(
        start=SessionStart(run, summarize_journal(())),
        config=config,
        agreement=agreement,
        event_log=event_log,
        signals=StopSignals(launched=False),
        device=place.device,
        finishes=False,
        memory_every_s=SHARED_S,
        guards=SetPolicy not in trainer.refuses,
    )
    found = setup.over(trainer, model, tokenizer or _Ids())
    if config.checkpoint.at_start and event_log.step:
        reason = "the script resumed by its own means"
        found.control.demand(SaveCheckpoint(), "fttui", reason)
    return found


def broadcast_run(script_run: ScriptRun | None, agreement: Agreement) -> RunDirectory:
    """Return the run folder that rank 0 has opened, on every rank.

    Raises:
        Unwatchable: rank 0 could not open one.
    """
    path = agreement.share(str(script_run.run.path).encode() if script_run else b"").decode()
    if not path:
        raise Unwatchable("rank 0 could not open a run folder; its own line says why")
    return script_run.run if script_run else RunDirectory(Path(path))


def record_start(
    script_run: ScriptRun | None,
    agreement: Agreement,
    place: RankPlace,
    model: nn.Module,
    state: ForeignState,
    facts: Mapping[str, str],
    refused: Mapping[type[Command], str],
    **known: int,
) -> None:
    """Record the start again, with what is known once everything is loaded; every rank calls this.

    Args:
        script_run: the open run; None on every rank but 0.
        agreement: agreement of the ranks.
        place: rank and device of this process.
        model: the model that is trained.
        state: its exact state.
        facts: what the start of the run lists, besides the refused commands.
        refused: commands that the trainer cannot obey, with the reason.
        **known: further fields of `RunStarted`.
    """
    devices = [one.decode() for one in agreement.gather(place.description.encode())]
    if script_run is None:
        return
    verbs = refused_verbs(refused)
    script_run.event_log.record(
        replace(
            script_run.started,
            devices=devices,
            trainable_params=state.trained,
            total_params=sum(one.numel() for one in model.parameters()),
            facts={**facts, **{f"no {verb}": reason for verb, reason in verbs.items()}},
            refused=verbs,
            **known,
        )
    )


class _Ids:
    """Decodes token ids as their numbers, for a trainer without a tokenizer."""

    def decode(self, ids: list[int], **options: Any) -> str:
        """Return the ids, separated by spaces."""
        return " ".join(map(str, ids))
