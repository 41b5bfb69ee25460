"""Findings: counting, shares, consent, and the same table in configuration and reports."""

from __future__ import annotations

import msgspec
import pytest

from fttui.engine.config.checks import check_config
from fttui.engine.config.data_reasons import CUT, NAMES, NO_TARGET, REASONS, UNLEARNED_TURNS
from fttui.engine.config.schema import RunConfig
from fttui.engine.data.findings import Findings
from fttui.engine.errors import DataError


def _findings(total: int, **counts: int) -> Findings:
    made = Findings()
    made.counted("records", total)
    for reason in REASONS:
        made.note(reason, "d.jsonl:1", count=counts.get(reason.name.replace("-", "_"), 0))
    return made


def test_a_reason_that_never_applied_is_no_finding() -> None:
    assert list(_findings(10)) == []
    assert _findings(10).facts() == {}


def test_the_first_place_of_several_parts_is_kept() -> None:
    first, second = Findings(), Findings()
    for part, place in ((first, "a.jsonl:3"), (second, "b.jsonl:1")):
        part.counted("records", 4)
        part.note(CUT, place, "2,000 tokens")
        part.note(CUT, "later")
    first.add(second)
    (found,) = first
    assert (found.count, found.total, found.place, found.detail) == (
        *(4, 8),
        *("a.jsonl:3", "2,000 tokens"),
    )
    assert found.line == (
        "4 of 8 records (50 %) truncated to data.max_length; first: a.jsonl:3, 2,000 tokens"
    )


@pytest.mark.parametrize(("count", "needed"), [(5, False), (6, True)])
def test_consent_is_needed_above_the_limit_only(count: int, needed: bool) -> None:
    assert NO_TARGET.limit == 0.05
    found = _findings(100, no_target=count)
    assert [one.needs_consent(()) for one in found] == [needed]
    if needed:
        with pytest.raises(DataError, match=r"set data\.accept: \[no-target\]"):
            found.require_consent(["cut"])
    found.require_consent(["no-target"])
    found.require_consent(["all"])


def test_a_limit_of_zero_asks_at_the_first_unit() -> None:
    made = Findings()
    made.counted("turns", 10_000)
    made.note(UNLEARNED_TURNS, "d.jsonl:9")
    with pytest.raises(DataError, match=r"1 of 10,000 turns \(0\.01 %\)"):
        made.require_consent([])


def test_more_units_than_were_counted_are_all_of_them() -> None:
    (found,) = _findings(0, cut=3)
    assert (found.amount, found.share) == ("3 of 3 records (100 %)", 1.0)


def test_findings_travel_with_every_field() -> None:
    (sent,) = _findings(10, cut=3).to_structs()
    assert msgspec.structs.asdict(sent) == {
        "reason": "cut",
        "text": CUT.text,
        "unit": "records",
        "count": 3,
        "total": 10,
        "place": "d.jsonl:1",
        "detail": "",
        "remedy": CUT.remedy,
    }


def test_names_are_unique_and_checked_in_the_configuration() -> None:
    assert len(set(NAMES)) == len(NAMES)
    base = {"model": {"id": "m"}, "train": {"steps": 1}}
    config = msgspec.convert({**base, "data": {"train": "d", "accept": ["cutt"]}}, RunConfig)
    (problem,) = [one for one in check_config(config) if one.key == "data.accept"]
    assert "did you mean cut?" in problem.text
    known = msgspec.convert({**base, "data": {"train": "d", "accept": [*NAMES, "all"]}}, RunConfig)
    assert not [one for one in check_config(known) if one.key == "data.accept"]
