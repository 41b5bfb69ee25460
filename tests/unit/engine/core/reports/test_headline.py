from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from fttui.engine.core.reports.advice import CAUSES
from fttui.engine.core.reports.anomaly_report import AnomalyReport, build_report
from fttui.engine.core.reports.headline import NAMES, title, what_happened
from fttui.engine.core.reports.page import to_markdown
from fttui.engine.core.reports.row_losses import (
    BATCH,
    ONE_RECORD,
    ROWS,
    UNCLEAR,
    WEIGHTS,
    RowEvidence,
    RowSpan,
)

from .test_anomaly_report import alert, evidence

SPAN = RowSpan(rows=8, lowest=3.9, median=4.2, highest=20.0, mean=6.1)


def rows(origin: str, **more: Any) -> RowEvidence:
    whole: dict[str, Any] = {
        "current": SPAN,
        "previous": SPAN,
        "previous_loss": 4.2,
        "odd": ["a.jsonl:3"],
    }
    return RowEvidence(**{**whole, **more}, origin=origin)


def report(kind: str = "spike", origin: str = UNCLEAR, **more: Any) -> AnomalyReport:
    found = rows(origin)
    raised = msgspec.structs.replace(alert(kind), explained_by=found.explained_by)
    return msgspec.structs.replace(build_report(raised, evidence(rows=found)), **more)


def test_every_kind_has_a_name() -> None:
    assert set(NAMES) == set(CAUSES)


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_the_first_line_says_what_happened_and_what_to_do(kind: str) -> None:
    found = build_report(alert(kind), evidence())
    assert title(found).startswith(f"{NAMES[kind]} at step 123: `{found.actions[0].command}`")
    assert to_markdown(found).startswith(f"# {title(found)}\n")


@pytest.mark.parametrize(
    ("change", "todo"),
    [
        ({"initiated": "step 123 → 120"}, "rolled back"),
        ({"verdict": "recovered"}, "recovered, nothing to do"),
        ({"verdict": "not recovered"}, "`recover spike-123`"),
        ({"actions": []}, "no command helps"),
    ],
)
def test_what_was_done_meanwhile_changes_what_to_do(change: dict[str, Any], todo: str) -> None:
    assert title(report(**change)) == f"Loss spike at step 123: {todo}"


def test_an_alert_that_one_record_explains_asks_for_nothing() -> None:
    found = report(origin=ONE_RECORD)
    assert found.actions == []
    assert title(found) == "Loss spike at step 123: nothing to do, one odd record explains it"
    page = to_markdown(found)
    assert "The losses of all rows but `a.jsonl:3`" in page
    assert "No command is needed" in page
    assert "rollback" not in page.split("## Tried before")[0]
    assert found.causes[0].startswith("an outlier batch")
    assert "all rows but one record have their usual loss" in found.causes[0]


@pytest.mark.parametrize(
    ("origin", "words", "cause"),
    [
        (BATCH, "All 8 rows", "an outlier batch"),
        (WEIGHTS, "a loss of 6.1 now and had 4.2 when", "a learning rate too high"),
        (ROWS, "All 8 rows", ""),
        (UNCLEAR, "have their usual losses", ""),
    ],
)
def test_what_the_rows_say_is_told_and_ranks_the_causes(
    origin: str, words: str, cause: str
) -> None:
    found = report(origin=origin)
    assert words in " ".join(what_happened(found))
    assert found.actions[0].command == "recover spike-123"
    assert found.causes[0].startswith(cause)


def test_weights_without_a_known_loss_before_are_told_without_it() -> None:
    found = report()
    odd = msgspec.structs.replace(found.evidence, rows=rows(WEIGHTS, previous_loss=None))
    text = " ".join(what_happened(msgspec.structs.replace(found, evidence=odd)))
    assert "The weights are damaged: the losses of the previous step's rows are higher than" in text


def test_rank_and_source_of_odd_rows_and_a_blocked_explanation_are_told() -> None:
    found = report()
    told = rows(ONE_RECORD, rank=3, source="b.jsonl", blocked="the learning rate was raised")
    odd = msgspec.structs.replace(found.evidence, rows=told)
    text = " ".join(what_happened(msgspec.structs.replace(found, evidence=odd)))
    assert "All odd rows are on rank 3." in text
    assert "All odd rows are from b.jsonl." in text
    assert "probably not the cause, because the learning rate was raised." in text


def test_a_divergence_is_told_by_its_levels() -> None:
    text = " ".join(what_happened(report("divergence")))
    assert text.startswith("The loss has risen from 1 to 6.52 and stays there.")


def test_a_level_of_zero_and_values_that_are_not_finite_are_told() -> None:
    flat = msgspec.structs.replace(report(), level_before=0.0)
    assert what_happened(flat)[0] == "Loss 6.52 is ×6.5 its usual 1 (z 14)."
    broken = report("nonfinite", value=math.nan, level_before=None, issue="loss nan")
    assert what_happened(broken)[0] == "Loss nan."


def test_samples_are_told_with_their_losses_and_odd_ones_are_marked() -> None:
    found = report(origin=BATCH)
    seen = found.evidence
    samples = [
        msgspec.structs.replace(seen.samples[0], loss=4.0),
        msgspec.structs.replace(seen.samples[0], loss=20.0, place="a.jsonl:3"),
        msgspec.structs.replace(seen.samples[1], loss=math.nan),
    ]
    page = to_markdown(
        msgspec.structs.replace(found, evidence=msgspec.structs.replace(seen, samples=samples))
    )
    lines = [line for line in page.splitlines() if line.startswith(("- current", "- previous"))]
    assert lines == [
        "- current, rank 0: **odd**, loss 20, `a.jsonl:3`, 120 tokens: `def 'j' x`",
        "- current, rank 0: loss 4, `os.path:join`, 120 tokens: `def 'j' x`",
        "- previous, rank 0: loss nan, `json:loads`, 80 tokens",
    ]
    assert "this step: 8 rows, 3.9 to 20, half of them below 4.2; step before:" in page


def test_losses_that_are_not_known_are_no_silence() -> None:
    page = to_markdown(build_report(alert(), evidence(rows_missing="out of memory")))
    assert "The losses of individual rows are not known: out of memory." in page
