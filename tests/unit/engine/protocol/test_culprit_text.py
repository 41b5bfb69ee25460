"""What a search has found is told in words, whatever the data hold."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from fttui.engine.protocol.commands import Quarantine, parse_command
from fttui.engine.protocol.culprit_text import culprit_headline, culprit_lines
from fttui.engine.protocol.event_parts import Culprit, CulpritSearch
from fttui.engine.protocol.events import CulpritsFound

CULPRIT = Culprit(
    id="it's `odd`",
    place="train.jsonl:7",
    rank=1,
    tokens=812,
    text="one\ntwo `three`",
    pieces=["one", "\n", "two"],
    loss=6.5,
    loss_without=1.0,
    grad_norm=40.0,
    grad_norm_without=1.5,
    loss_share=0.97,
)
SEARCH = CulpritSearch(
    verdict="found",
    checkpoint="step-000100",
    steps=19,
    tests=6,
    samples=8,
    loss=6.5,
    grad_norm=40.0,
    loss_replaced=0.9,
    grad_norm_replaced=1.4,
    culprits=[CULPRIT],
    in_batch_negatives=True,
    seconds=12.34,
)
FOUND = CulpritsFound(anomaly="spike-120", anomaly_step=120, search=SEARCH)


def test_a_culprit_is_shown_with_its_place_text_tokens_shares_and_command() -> None:
    lines = culprit_lines(FOUND)
    assert lines[1] == (
        "- `it's 'odd'` in `train.jsonl:7`, 812 tokens, rank 1: loss 6.5 → 1 without it "
        "(97% of the rise that all samples of the step cause), gradient norm 40 → 1.5 without it"
    )
    assert lines[2:4] == ["  - text: `one two 'three'`", "  - first tokens: `one|\\n|two`"]
    command = lines[4].split("`", 1)[1][:-1]
    assert parse_command(command) == Quarantine(ids=("it's `odd`",))
    assert "19 steps were repeated from step-000100" in lines[5]
    assert "loss 6.5 → 0.9, gradient norm 40 → 1.4" in lines[6]
    assert "In-batch negatives" in lines[7]
    assert all("\n" not in line for line in lines)


def test_an_earlier_step_and_what_cannot_be_put_in_quarantine_are_told() -> None:
    search = replace(SEARCH, cause_step=118, earlier=2, why_not_quarantined="the data are streamed")
    event = replace(FOUND, search=search)
    assert culprit_headline(event).startswith("step 120: without it's `odd` of step 118 most")
    lines = culprit_lines(event)
    assert any("cannot be put in quarantine:** the data are streamed" in line for line in lines)
    assert not any("`quarantine " in line for line in lines)
    assert any("those of the 2 steps before it were searched too" in line for line in lines)
    spread = replace(search, verdict="spread", cause_step=120, culprits=[], reason="a file is gone")
    event = replace(FOUND, search=spread)
    assert "no sample of it or of the 2 steps before is the cause" in culprit_headline(event)
    assert any(line.endswith("a file is gone") for line in culprit_lines(event))


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (SEARCH, "without it's `odd` most of the rise of loss and gradient norm disappears"),
        (CulpritSearch(verdict="spread"), "no sample is the cause; replacing all of them"),
        (
            CulpritSearch(verdict="together", group=["a", "b"]),
            "no single sample is the cause",
        ),
        (CulpritSearch(verdict="unfinished"), "found no sample before the search"),
        (
            CulpritSearch(verdict="interrupted", reason="a stop"),
            "early (interrupted): a stop",
        ),
    ],
)
def test_the_first_line_says_what_was_found(search: CulpritSearch, words: str) -> None:
    event = replace(FOUND, search=search)
    assert words in culprit_headline(event)
    assert culprit_headline(event).startswith("step 120: ")
    assert culprit_lines(event)[0].endswith(culprit_headline(event))


def test_a_replay_that_is_not_exact_says_so() -> None:
    event = replace(FOUND, search=replace(SEARCH, difference=2e-5, grad_norm=math.inf))
    assert any("differ from the run by up to 2e-05" in line for line in culprit_lines(event))
