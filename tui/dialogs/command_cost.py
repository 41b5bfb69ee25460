"""The work that a rollback loses, and what the rollback will do, in words."""

from __future__ import annotations

from dataclasses import dataclass

from fttui.engine.protocol.commands import Rollback
from fttui.engine.protocol.states import RunState
from fttui.engine.protocol.usage.amounts import Usage

from ..text import format as fmt
from ..text.usage import energy_and_money
from ..view_model.app_state import AppState
from ..view_model.branches import lineage, live_ends, value_on
from ..view_model.run_view import CheckpointView, RunView


@dataclass(frozen=True)
class LostWork:
    """The work that a rollback to a checkpoint loses."""

    steps: int
    seconds: float | None
    """Wall time of those steps; None if it is unknown."""
    used: Usage | None = None
    """What the run has used for them; None if it is unknown."""

    @property
    def words(self) -> str:
        """The work as text, such as `412 steps, 34 m 10 s`."""
        took = f", {fmt.duration(self.seconds)}" if self.seconds is not None else ""
        return f"{fmt.plural(self.steps, 'step')}{took}"


def given_up(state: AppState, checkpoint: CheckpointView) -> LostWork:
    """Return the work that a rollback to a checkpoint would lose.

    That is the work since the checkpoint or, if it was written on an abandoned timeline, since the
    newest step that both timelines have in common.
    """
    run, newest = state.run, state.run.last_step_at
    common = min(_common_step(run, checkpoint), run.step)
    since: float | None = checkpoint.time
    if not on_lineage(state, checkpoint):
        since = value_on(run.branches, len(run.branches) - 1, "time", common) or run.started_at
    if newest is None or since is None:
        return LostWork(run.step - common, None)
    before = checkpoint.used if on_lineage(state, checkpoint) else run.used_at(common)
    used = None if before is None else run.used.since(before)
    return LostWork(run.step - common, max(0.0, newest - since), used)


def meant(state: AppState, command: Rollback) -> CheckpointView | None:
    """Return the checkpoint that a rollback returns to; None if there is no such checkpoint.

    The mean of other checkpoints is meant by its name only.
    """
    wanted, known = command.checkpoint, state.run.checkpoints
    named = [c for c in known if c.name == wanted]
    trained = [c for c in known if wanted in ("last", str(c.step)) and not c.mean]
    found = named or trained
    return found[-1] if found else None


def on_lineage(state: AppState, checkpoint: CheckpointView) -> bool:
    """Whether the current weights descend from a checkpoint."""
    return _common_step(state.run, checkpoint) >= checkpoint.step


def _common_step(run: RunView, checkpoint: CheckpointView) -> int:
    """Return the newest step that a checkpoint and the current weights have in common."""
    own = [
        index
        for index, branch in enumerate(run.branches)
        if branch.timeline == checkpoint.timeline and branch.start <= checkpoint.step
    ]
    if not own:
        return checkpoint.step
    ends = live_ends(run.branches)
    shared = ((end, ends[at]) for at, end in lineage(run.branches, own[-1]) if at in ends)
    return int(min(checkpoint.step, *next(shared, (0.0, 0.0))))


def consequence(state: AppState, command: Rollback, checkpoint: CheckpointView) -> list[str]:
    """Describe what a rollback to `checkpoint` will do, one line each.

    The lines are about lost work, timeline and learning rate, and about clip and data if the
    command changes them.
    """
    loss = given_up(state, checkpoint)
    schedule = state.run.last.lr_schedule if state.run.last else 0.0
    scale = state.run.lr_scale if command.lr_scale is None else command.lr_scale
    spent = energy_and_money(loss.used, state.run.tally.price) if loss.used else []
    work = ", ".join([loss.words, *spent])
    rows = [
        f"Back to step {checkpoint.step:,}; the rollback loses {work} of work.",
        f"{_afterwards(state)} as timeline {_next_timeline(state)}; the base model stays loaded.",
    ]
    kept = "" if command.lr_scale is not None else " (unchanged)"
    rate = fmt.learning_rate(schedule * scale)
    rows.append(f"LR scale ×{fmt.factor(scale)}{kept}: a learning rate of about {rate}.")
    if command.clip is not None:
        rows.append(f"Gradient clip (max norm) {fmt.number(command.clip)}.")
    if command.skip:
        first = checkpoint.step + 1
        rows.append(f"The data of steps {first:,}–{checkpoint.step + command.skip:,} is skipped.")
    return rows


def _afterwards(state: AppState) -> str:
    """Return the first words of the sentence on what follows a rollback.

    A rollback ends a halt, but not a pause.
    """
    paused = state.state is RunState.PAUSED
    return "The run stays paused there," if paused else "Training continues from there"


def _next_timeline(state: AppState) -> int:
    return max(branch.timeline for branch in state.run.branches) + 1
