"""The rollback dialog: choose a checkpoint and options, see the consequence, confirm."""

from __future__ import annotations

from typing import ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.widgets import DataTable, Input, Label

from fttui.engine.protocol.command_args import CommandError
from fttui.engine.protocol.commands import Rollback, parse_command

from ...app_base import AppBase
from ...dialogs.command_cost import consequence, given_up, on_lineage
from ...text import format as fmt
from ...text.control_characters import escape_control_characters
from ...view_model.app_state import AppState
from ...view_model.run_view import CheckpointView
from ...widgets.table import Layout, TableRow, cell, fill
from ...widgets.text_line import ALARM, BOLD, DIM, TextLine, assemble, lines, plain
from .confirm import send_typed
from .modal import Modal


def ask_rollback(app: AppBase, checkpoint: str | None = None) -> None:
    """Open the rollback dialog and send the command that the user confirms.

    The named checkpoint is selected; without a name, the newest good one, or the newest if none is
    good.
    """

    def answer(command: Rollback | None) -> None:
        if command is not None:
            send_typed(app, command)

    app.push_screen(RollbackScreen(app.state, app.clock(), checkpoint), answer)


class RollbackScreen(Modal[Rollback]):
    """A table of checkpoints, the options of the command, and the consequence of pressing enter."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "cancel")]
    OPTIONS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("lr", "LR scale (0.5 = half the schedule)"),
        ("clip", "gradient clip (max norm)"),
        ("skip", "steps of data to skip after rollback"),
    )

    def __init__(self, state: AppState, now: float, chosen: str | None = None) -> None:
        """Build the dialog; `now` is in Unix seconds, `chosen` names the checkpoint to select."""
        super().__init__()
        self._state = state
        self._now = now + state.link.clock_offset_s
        doubtful = [c for c in reversed(state.run.checkpoints) if not c.good]
        self._offered = [*state.run.good_checkpoints, *doubtful]
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """Compose table, options and consequence."""
        dialog = Container(id="dialog", classes="-alarm")
        dialog.border_title = "roll back"
        dialog.border_subtitle = "↑ ↓ choose   tab options   ⏎ roll back   esc cancel"
        with dialog:
            yield DataTable(cursor_type="row")
            with Container(id="options"):
                for name, words in self.OPTIONS:
                    with Horizontal():
                        yield Label(words)
                        yield Input(
                            placeholder=self._as_now(name), id=f"option-{name}", compact=True
                        )
            yield TextLine(id="consequence")

    def _as_now(self, name: str) -> str:
        run = self._state.run
        shown = {
            "lr": f"unchanged: {fmt.factor(run.lr_scale)}",
            "clip": f"unchanged: {'off' if run.clip is None else fmt.number(run.clip)}",
        }
        return shown.get(name, "none")

    def on_mount(self) -> None:
        """Fill the table and select the chosen checkpoint."""
        table: DataTable[Content] = self.query_one(DataTable)
        rows = [TableRow(c.name, self._cells(c)) for c in self._offered]
        fill(table, Layout.of("step", "age", "loss", "lost work", ""), rows)
        names = [c.name for c in self._offered]
        if self._chosen in names:
            table.move_cursor(row=names.index(self._chosen))
        table.focus()

    def _cells(self, checkpoint: CheckpointView) -> tuple[Content, ...]:
        words = [
            "mean" if checkpoint.mean else "" if checkpoint.good else "△ doubtful",
            "" if on_lineage(self._state, checkpoint) else f"timeline {checkpoint.timeline}",
            "pinned" if checkpoint.pinned else "",
            checkpoint.note,
        ]
        return (
            cell(f"{checkpoint.step:>7,}", BOLD),
            cell(f"{fmt.age(self._now - checkpoint.time):>5} ago", DIM),
            cell(f"{fmt.number(checkpoint.loss):>7}"),
            cell(given_up(self._state, checkpoint).words),
            cell("  ".join(word for word in words if word), DIM),
        )

    def _read(self) -> tuple[Rollback | None, str]:
        """Return the command of the current choices, or None and the error."""
        row = self.query_one(DataTable).cursor_row
        if not 0 <= row < len(self._offered):
            return None, "no checkpoint to roll back to"
        words = ["rollback", self._offered[row].name]
        for name, _ in self.OPTIONS:
            if value := self.query_one(f"#option-{name}", Input).value.strip().lstrip("×*x="):
                words.append(f"{name}={value}")
        try:
            command = parse_command(words)
        except CommandError as error:
            return None, str(error).split(" (usage")[0]
        return (command, "") if isinstance(command, Rollback) else (None, "not a rollback")

    @on(DataTable.RowHighlighted)
    @on(Input.Changed)
    def _explain(self) -> None:
        command, error = self._read()
        line = self.query_one("#consequence", TextLine)
        if command is None:
            line.put(assemble((error, ALARM)))
            return
        checkpoint = self._offered[self.query_one(DataTable).cursor_row]
        rows = consequence(self._state, command, checkpoint)
        line.put(lines(assemble((rows[0], BOLD)), *(plain(row) for row in rows[1:])))

    @on(DataTable.RowSelected)
    @on(Input.Submitted)
    def _confirm(self) -> None:
        command, _ = self._read()
        if command is not None and self._still_there(command):
            self.dismiss(command)

    def _still_there(self, command: Rollback) -> bool:
        """Return whether the checkpoint still exists; if not, offer the others and say so.

        Retention may remove it while the dialog is open.
        """
        present = {c.name for c in cast(AppBase, self.app).state.run.checkpoints}
        if command.checkpoint in present:
            return True
        self._offered = [c for c in self._offered if c.name in present]
        self.on_mount()
        words = f"checkpoint {command.checkpoint} has been removed by retention; choose another one"
        self.notify(escape_control_characters(words), severity="warning", markup=False)
        return False

    def action_back(self) -> None:
        """Move the focus from an option to the table, or cancel the dialog."""
        if isinstance(self.focused, Input):
            self.query_one(DataTable).focus()
        else:
            self.dismiss(None)
