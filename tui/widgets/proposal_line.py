"""The lines of an open proposal, shown on all screens until somebody confirms or declines it."""

from __future__ import annotations

from textual.content import Content

from ..actions import key_of, refusal_of
from ..dialogs.command_text import in_words
from ..text import format as fmt
from ..text.control_characters import one_line
from ..view_model.app_state import AppState
from ..view_model.interventions import OpenProposal
from .text_line import ACCENT, BOLD, DIM, WATCH, Piece, TextLine, assemble, lines, spread

_PADDING = 2
_LEAST = 20


class ProposalLine(TextLine):
    """Shows the oldest open proposal: who proposes what, why, and the keys that answer it."""

    def show(self, state: AppState, now: float) -> None:
        """Draw the proposal that is open at `now` (Unix seconds), or hide without one."""
        found = state.open_proposals(now)
        self.set_class(bool(found), "-open")
        if found:
            self.put(proposal_lines(state, found, now, self.app.size.width))


def proposal_lines(
    state: AppState, found: tuple[OpenProposal, ...], now: float, columns: int
) -> Content:
    """Return the first of the open proposals as two lines for a terminal of so many columns.

    The first line has the command and the keys that answer it, the second who proposes it and why,
    what it would do if there is room, and how long it stays open.
    """
    proposal, width = found[0], _width(columns)
    more = f"{len(found) - 1} more   " if len(found) > 1 else ""
    left = f"{more}{fmt.duration(max(0.0, state.left_s(proposal, now)))} left"
    words = in_words(state, proposal.command) if proposal.command is not None else []
    why = assemble("  ", (origin(proposal), DIM))
    right = assemble((f"{words[0]}   {left}" if words else left, DIM))
    if why.cell_length + right.cell_length + 2 > width:
        right = assemble((left, DIM))  # who and why come before what it would do
    return lines(
        spread(_command(proposal), _keys(state, proposal), width), spread(why, right, width)
    )


def is_cut(state: AppState, proposal: OpenProposal, columns: int) -> bool:
    """Whether the lines of a proposal have no room for its whole command."""
    room = _width(columns) - _keys(state, proposal).cell_length
    return _command(proposal).cell_length > room - 1


def origin(proposal: OpenProposal) -> str:
    """Return who made a proposal and why, on one line."""
    return one_line(": ".join(filter(None, (proposal.issuer, proposal.reason))))


def _width(columns: int) -> int:
    return max(_LEAST, columns - _PADDING)


def _command(proposal: OpenProposal) -> Content:
    return assemble(("? ", WATCH), ("proposed: ", DIM), (one_line(proposal.text), BOLD))


def _keys(state: AppState, proposal: OpenProposal) -> Content:
    if refusal_of(proposal.command, state) is not None:
        return Content("")
    pieces: list[Piece] = [(f"{key_of('proposal.confirm', state)} ", ACCENT), "confirm   "]
    pieces += [(f"{key_of('proposal.decline', state)} ", ACCENT), "decline"]
    return assemble(*pieces)
