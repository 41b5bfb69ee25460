"""What a search for culprits has found, in words: for reports, headless output and the log."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from .event_parts import Culprit, CulpritSearch
from .events import CulpritsFound

_GROUP_SHOWN = 8
SEARCHED = frozenset({"spike", "divergence", "grad_explosion", "nonfinite"})
"""Kinds of anomalies whose step is searched for culprits."""
CULPRITS_HEADING = "## Culprits"
"""Heading of the section of a report with the result of a search."""


def culprit_headline(event: CulpritsFound) -> str:
    """Return what the search for culprits has found about an anomaly's step, in one line."""
    found, step = event.search, f"step {event.anomaly_step}"
    names = ", ".join(one.id for one in found.culprits)
    where = "" if found.cause_step in (0, event.anomaly_step) else f" of step {found.cause_step}"
    match found.verdict:
        case "found":
            gone = "most of the rise of loss and gradient norm disappears"
            return f"{step}: without {names}{where} {gone}"
        case "spread":
            unchanged = "replacing all of them changes loss and norm too little"
            of = f" of it or of the {found.earlier} steps before" if found.earlier else ""
            return f"{step}: no sample{of} is the cause; {unchanged}"
        case "together":
            return f"{step}: no single sample{where} is the cause, but some of them together are"
        case "unfinished":
            so_far = f"found {names or 'no sample'}{where} before the search ended"
            return f"{step}: {so_far}; loss or gradient norm are still too high without them"
        case _:
            reason = f": {found.reason}" if found.reason else ""
            return f"{step}: the search for culprits ended early ({found.verdict}){reason}"


def culprit_lines(event: CulpritsFound) -> list[str]:
    """Return what was found as Markdown: the result, the samples, what to send, and how."""
    found = event.search
    lines = [f"- **Result:** {culprit_headline(event)}"]
    lines += [line for one in found.culprits for line in _sample(one)]
    if found.group:
        more = " …" if len(found.group) > _GROUP_SHOWN else ""
        ids = ", ".join(map(_code, found.group[:_GROUP_SHOWN]))
        lines.append(f"- **Smallest group that raises them:** {ids}{more}")
    if found.culprits and found.why_not_quarantined:
        lines.append(f"- **They cannot be put in quarantine:** {found.why_not_quarantined}")
    elif found.culprits:
        ids = shlex.join(one.id for one in found.culprits)
        lines.append(f"- **To keep them out of training:** `quarantine {ids}`")
    return [*lines, *(f"- {text}" for text in _notes(found))]


def _sample(one: Culprit) -> Iterator[str]:
    rank = f", rank {one.rank}" if one.rank else ""
    place = f" in {_code(one.place)}" if one.place and one.place != one.id else ""
    loss = f"{_change(one.loss, one.loss_without)}{_share(one.loss_share)}"
    norm = f"{_change(one.grad_norm, one.grad_norm_without)}{_share(one.grad_norm_share)}"
    yield (
        f"- {_code(one.id)}{place}, {one.tokens:,} tokens{rank}: loss {loss}, gradient norm {norm}"
    )
    if one.text:
        yield f"  - text: {_code(one.text)}"
    if one.pieces:
        yield f"  - first tokens: {_code('|'.join(repr(piece)[1:-1] for piece in one.pieces))}"


def _code(text: str) -> str:
    """Return a text of the data as a span of code in one line."""
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"


def _change(present: float, absent: float) -> str:
    return f"{present:.4g} → {absent:.4g} without it"


def _share(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%} of the rise that all samples of the step cause)"


def _notes(found: CulpritSearch) -> Iterator[str]:
    """Yield how the result was found, and what may be wrong with it."""
    if found.checkpoint:
        yield (
            f"**How:** {found.steps} steps were repeated from {found.checkpoint}, and then the "
            f"step {found.tests} times with some of its {found.samples} samples replaced by "
            f"others, in {found.seconds:.1f} s. The state of the run was restored."
        )
    if found.earlier:
        yield (
            f"**Earlier steps:** the samples of the step were not the cause, so those of the "
            f"{found.earlier} steps before it were searched too, by repeating the steps after them."
        )
    if found.reason and found.verdict == "spread":
        yield f"**Not complete:** {found.reason}"
    if found.loss_replaced is not None and found.grad_norm_replaced is not None:
        norm = math.nan if found.grad_norm is None else found.grad_norm
        loss = math.nan if found.loss is None else found.loss
        yield (
            f"**With all samples replaced:** loss {loss:.4g} → {found.loss_replaced:.4g}, gradient "
            f"norm {norm:.4g} → {found.grad_norm_replaced:.4g}."
        )
    if found.difference:
        yield (
            f"**Not exact:** repeated steps differ from the run by up to {found.difference:.1g} of "
            "their loss or norm; train.deterministic: true makes a GPU exact."
        )
    if found.in_batch_negatives and found.tests > 1:
        yield (
            "**In-batch negatives:** a replaced sample is no longer a negative of others, so their "
            "loss changes a little too."
        )
