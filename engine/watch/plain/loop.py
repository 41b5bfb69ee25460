"""A plain PyTorch loop under control, through the hooks of its optimizer and its batches.

    run = fttui.watch(model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in range(3):
        for batch in run.batches(loader):
            loss = loss_of(model(batch))
            loss.backward()
            run.log(loss=loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

The boundary between two steps is where the loop takes the first batch after an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import torch
from torch import nn

from ...protocol.commands import (
    AverageCheckpoints,
    Chat,
    Command,
    Evaluate,
    FindCulprits,
    GenerateSample,
    ProfileSteps,
    Quarantine,
    Recover,
    Rollback,
    SetMix,
    SkipBatches,
)
from ...train.checkpoint.optimizer_state import bare
from ..refusals import DATA_OF_SCRIPT, MIX_OF_SCRIPT, OF_RECIPE, OWN_CHECKPOINTS
from ..script_run import plan_for, say
from ..watch_options import WatchOptions
from .loop_run import LoopParts, LoopRun
from .prepared_loader import Marked, PreparedLoader

B = TypeVar("B")

REFUSED: dict[type[Command], str] = {
    ProfileSteps: "a watched script cannot be profiled",
    Quarantine: DATA_OF_SCRIPT,
    SetMix: MIX_OF_SCRIPT,
    **OF_RECIPE,
    FindCulprits: DATA_OF_SCRIPT,
    AverageCheckpoints: OWN_CHECKPOINTS,
    Evaluate: "the loop evaluates by itself",
    GenerateSample: "the loop has no tokenizer that fttui knows",
    Chat: "the loop has no tokenizer that fttui knows",
}
"""Commands that a plain loop cannot obey, with the reason."""


PREFETCHING = (
    "the loop takes a batch between the forward pass and the update of the one before; take each "
    "batch right before its forward pass"
)
"""Why a loop cannot go back whose batches do not begin its steps."""


class PlainRun(LoopRun):
    """The run of a plain loop; `batches` and `log` are all that the loop has to call."""

    def __init__(self, parts: LoopParts, options: WatchOptions) -> None:
        plan = plan_for(parts.model, options.keep, options.checkpoint_every)
        super().__init__(parts, plan, REFUSED, options, keeps_batches=True)
        self._epoch = -1
        self._forward_passed = False
        """Whether a forward pass for training has begun since the last update."""
        own = bare(parts.optimizer)
        self._hooks += [
            own.register_step_pre_hook(self._before_update),
            own.register_step_post_hook(self._after_update),
            parts.model.register_forward_pre_hook(self._note_forward),
            parts.model.register_forward_hook(self._note_output),
        ]

    def batches(self, loader: Iterable[B]) -> Iterator[B]:
        """Yield the batches of one pass over a loader; after a rollback, the earlier ones again.

        Args:
            loader: makes the batches; anything that can be iterated over.
        """
        prepared = PreparedLoader(loader)
        try:
            for one in self._served(loader, prepared.marked()):
                yield prepared.serve(one)
        finally:
            prepared.close()

    def _served(self, loader: Iterable[Any], live: Iterator[Marked]) -> Iterator[Marked]:
        self._epoch += 1
        epoch, tape = self._epoch, self._tape
        tape.open(epoch, live, len(loader) if isinstance(loader, Sized) else 0)
        while not self.stopped:
            if not self._in_step and not self._shield.call(self._begin_step, True):
                self.stopped = True
                return
            if not self._shield.broken:
                tape.load(1)
            found = self._fetch()
            if found:
                yield found[0]
            elif tape.serving < epoch:
                tape.serving += 1
            elif self._shield.broken:
                for one in live:  # noqa: UP028 -- the loader is not closed with this generator
                    yield one
                return
            else:
                return

    def _fetch(self) -> list[Marked]:
        """Return the next batch, counted for the step; empty at the end of the pass."""
        hooks = self._step_loop
        served = self._shield.call(lambda: hooks.fetch(1), None) if hooks is not None else None
        if served is None:
            served = self._tape.fetch(1)
        return [one["batch"] for one in served]

    def _begin_step(self) -> bool:
        """Handle the boundary between two steps; False if the run ends here."""
        if self._session is None:
            self._session = self._begin()
            self._session.step_loop.begin_training(None, None)
        if self._forward_passed and self.step:
            self._refuse_going_back()
        return super()._begin_step()

    def _refuse_going_back(self) -> None:
        """From now on, refuse commands that would change weights between forward and backward."""
        if Rollback in self._refused:
            return
        self._refused.update(dict.fromkeys((Rollback, Recover, SkipBatches), PREFETCHING))
        if self._record_start is not None:
            self._record_start()
        self._event_log.log("warning", f"no rollback, recover or skip: {PREFETCHING}")

    def _note_forward(self, model: nn.Module, *_: Any) -> None:
        self._forward_passed |= model.training and torch.is_grad_enabled()

    def _note_output(self, model: nn.Module, _: Any, output: Any) -> None:
        """Keep the loss in an output of a model of transformers, which computes it from labels.

        Outputs outside of a step, such as after the end of the watching, belong to no update.
        """
        if self._in_step:
            self._shield.call(lambda: self._keep_loss(model, output), None)

    def _keep_loss(self, model: nn.Module, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if model.training and torch.is_tensor(loss) and loss.requires_grad and loss.numel() == 1:
            self._returned.append(loss.detach().float().reshape(()))

    def _before_update(self, *_: Any) -> None:
        """Scale the rate, clip and check the update; remove the gradients of a refused one."""
        if self._in_step and not self._shield.call(self._judge, True):
            self._refuse_update()

    def _after_update(self, *_: Any) -> None:
        self._restore_lr()
        self._forward_passed = False
        if self._in_step and not self._shield.broken:
            self._in_step = False
            self._shield.call(self._end_step, None)
        else:
            self._memory.move_to(self.step + 1)


def watch_loop(
    model: nn.Module,
    optimizer: Any,
    scheduler: Any,
    options: WatchOptions,
    *,
    scaler: Any = None,
) -> PlainRun | None:
    """Return the run of a plain loop, or None, with a line that says why, if that fails."""
    schedules = [] if scheduler is None else [scheduler]
    scaler = scaler or getattr(optimizer, "scaler", None)  # accelerate keeps it there
    try:
        parts = LoopParts(model=model, optimizer=optimizer, schedules=schedules, scaler=scaler)
        return PlainRun(parts, options)
    except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's script
        say(f"this loop is not watched: {type(error).__name__}: {error}")
        return None
