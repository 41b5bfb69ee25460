from __future__ import annotations

from fttui.engine.core.anomaly.record import PER_RANK, STEP_FIELDS, detector_record
from fttui.engine.protocol.events import StepFinished

EVENT = StepFinished(
    loss=2.0,
    grad_norm=0.5,
    lr=1e-4,
    epoch=0.25,
    parts={"ce": 1.5},
    extra={"loss_scale": 1024.0},
    tokens=96,
    tokens_per_s=900.0,
    mem_allocated_bytes=7,
    rank_s=[1.0, 1.1],
    rank_mem_bytes=[7, 8],
)


def test_every_row_of_the_table_names_a_field_of_the_event() -> None:
    assert set(STEP_FIELDS.values()) <= set(StepFinished.__struct_fields__)
    assert set(STEP_FIELDS) >= PER_RANK


def test_the_record_has_the_keys_that_logs_use() -> None:
    assert detector_record(EVENT, 3, leads=True) == {
        "step": 3,
        "loss": 2.0,
        "grad_norm": 0.5,
        "lr": 1e-4,
        "epoch": 0.25,
        "ce": 1.5,
        "loss_scale": 1024.0,
        "tokens": 96,
        "tok_s": 900.0,
        "mem_allocated": 7,
        "rank_s": [1.0, 1.1],
        "rank_mem": [7, 8],
    }


def test_ranks_differ_only_in_what_each_measures_of_its_own_machine() -> None:
    leading, other = (detector_record(EVENT, 3, leads=leads) for leads in (True, False))
    assert {key for key in leading if leading[key] != other[key]} == {"tok_s", "mem_allocated"}
    assert other["tok_s"] is other["mem_allocated"] is None
