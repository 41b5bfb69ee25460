"""The lines of an open proposal, shown on all screens until somebody confirms or declines it."""

from __future__ import annotations

from textual.content import Content

from ..actions import key_of, refusal_of
from ..dialogs.command_text import in_words
from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.interventions import OpenProposal
from .text_line import ACCENT, BOLD, DIM, WATCH, Piece, TextLine, assemble, lines, spread


class ProposalLine(TextLine):
    """Shows the oldest open proposal: who proposes what, why, and the keys that answer it."""

    def show(self, state: AppState, now: float) -> None:
        """Draw the proposal that is open at `now` (Unix seconds), or hide without one."""
        found = state.run.open_proposals(now)
        shown = bool(found) and not state.state.ended
        self.set_class(shown, "-open")
        if shown:
            self.put(proposal_lines(state, found[0], len(found) - 1, now, self.app.size.width - 2))


def proposal_lines(
    state: AppState, proposal: OpenProposal, more: int, now: float, width: int
) -> Content:
    """Return a proposal as two lines of `width` cells: what with the keys, then why and by whom.

    `more` is the number of other open proposals.
    """
    left = assemble(("? ", WATCH), ("proposed: ", DIM), (proposal.text, BOLD))
    words = in_words(state, proposal.command) if proposal.command is not None else []
    why = f"{proposal.issuer}: {proposal.reason}" if proposal.reason else proposal.issuer
    below, effect = assemble("  ", (why, DIM)), assemble((words[0] if words else "", DIM))
    if below.cell_length + effect.cell_length + 2 > width:
        effect = Content("")  # who and why come first
    width = max(20, width)
    return lines(
        spread(left, _keys(state, proposal, more, now), width), spread(below, effect, width)
    )


def _keys(state: AppState, proposal: OpenProposal, more: int, now: float) -> Content:
    others = f"{more} more   " if more else ""
    left = f"{others}{fmt.duration(max(0.0, proposal.expires_at - now))} left"
    pieces: list[Piece] = []
    if refusal_of(proposal.command, state) is None:
        pieces += [(f"{key_of('proposal.confirm', state)} ", ACCENT), "confirm   "]
        pieces += [(f"{key_of('proposal.decline', state)} ", ACCENT), "decline   "]
    return assemble(*pieces, (left, DIM))
