from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import LogEmitted, Record, StepFinished
from fttui.engine.run.journal import frame, frames_in
from fttui.tui.view_model.branches import needed_whole
from fttui.tui.view_model.reducer import apply_batch, apply_many
from fttui.tui.view_model.run_view import RunView
from fttui.tui.view_model.step_batch import RecordBatch, Steps, decode_batch
from tests.support.session_double import Script, eventful

_NUMBER = st.floats(width=64)
_STEP = st.builds(
    StepFinished,
    loss=_NUMBER,
    parts=st.dictionaries(st.sampled_from(["ce", "contrastive"]), _NUMBER),
    grad_norm=st.none() | _NUMBER,
    clipped=st.booleans(),
    tokens=st.sampled_from([0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**40]),
    mem_allocated_bytes=st.none() | st.integers(0, 2**40),
    rank_s=st.lists(st.floats(0, 10), max_size=3),
    rank_power_w=st.lists(st.floats(0, 700), max_size=3),
    pcie_bytes_per_s=st.none() | st.floats(0, 1e11),
    extra=st.dictionaries(st.sampled_from(["top1", "pos_cos"]), _NUMBER),
)
_EVENT = _STEP | st.builds(LogEmitted, level=st.just("info"), text=st.text(max_size=60))


def _records(events: list[StepFinished | LogEmitted]) -> list[Record]:
    return [
        Record(seq=n, time=1e9 + n, step=n, timeline=1 + (n > 7), event=event)
        for n, event in enumerate(events, 1)
    ]


@settings(max_examples=30)
@given(st.lists(_EVENT, max_size=30))
def test_frames_in_one_buffer_are_decoded_alike(events) -> None:
    payloads = [encode(record) for record in _records(events)]
    frames = frames_in(b"".join(map(frame, payloads)), 1 << 30)
    assert list(frames) == payloads
    one, other = (apply_batch(RunView(), decode_batch(each)) for each in (payloads, frames))
    assert _curves(one) == _curves(other)


@settings(max_examples=30)
@given(st.lists(_EVENT, min_size=1, max_size=30))
def test_sparse_columns_become_the_same_curves(events) -> None:
    batch = decode_batch([encode(record) for record in _records(events)])
    parts = [p if isinstance(p, Record) else p.with_sparse(needed_whole) for p in batch.parts]
    sparse = RecordBatch(parts, batch.unknown)
    view = apply_batch(RunView(), batch)
    assert _curves(apply_batch(RunView(), sparse)) == _curves(view)
    assert _curves(apply_batch(apply_batch(RunView(), sparse), sparse)) == _curves(view)
    half = next((p for p in parts if isinstance(p, Steps) and len(p) > 1), None)
    if half is not None:
        rest = half.after(int(half.seq[0]))
        assert rest is not None
        for places, values in rest.sparse.values():
            assert len(places) == len(values)
            assert (places >= 0).all()


def _curves(view: RunView) -> list[tuple[str, str, str]]:
    """Return the curves of all branches as text, in which NaN equals NaN."""
    return sorted(
        (f"{number} {name}", str(series.xs.tolist()), str(series.ys.tolist()))
        for number, branch in enumerate(view.branches)
        for name, series in branch.curves.items()
    )


def test_an_incomplete_block_is_thinned_if_wanted() -> None:
    steps: list[StepFinished | LogEmitted] = [
        StepFinished(loss=float(n % 7), lr=0.1, grad_norm=None, clip=None) for n in range(26)
    ]
    (part,) = decode_batch([encode(r) for r in _records(steps)[7:]]).parts
    assert isinstance(part, Steps)
    whole, short = (part.thinned(8, whole_end=end).present["loss"] for end in (True, False))
    assert whole[16:].all()
    assert short[:16].tolist() == whole[:16].tolist()
    assert short[16:].sum() <= 3
    losses = part.columns["loss"][16:]
    assert set(losses[short[16:]]) >= {losses.min(), losses.max()}


@settings(max_examples=30)
@given(st.lists(_EVENT, max_size=30))
def test_columns_hold_what_the_records_hold(events) -> None:
    records = _records(events)
    batch = decode_batch([encode(record) for record in records])
    seen: list[int] = []
    for part in batch.parts:
        if isinstance(part, Record):
            assert not isinstance(part.event, StepFinished)
            seen.append(part.seq)
            continue
        seen.extend(part.seq.tolist())
        for row, seq in enumerate(part.seq.tolist()):
            _compare(part, row, records[seq - 1])
    assert seen == [record.seq for record in records]
    assert batch.unknown == 0


def _compare(steps: Steps, row: int, record: Record) -> None:
    event = record.event
    assert isinstance(event, StepFinished)
    assert (steps.time[row], steps.step[row]) == (record.time, record.step)
    assert steps.timeline == record.timeline
    known = {
        "loss": event.loss, "grad_norm": event.grad_norm, "clipped": float(event.clipped),
        "tokens": float(event.tokens), "mem_allocated_bytes": event.mem_allocated_bytes,
        **{f"parts.{k}": v for k, v in event.parts.items()},
        **{f"extra.{k}": v for k, v in event.extra.items()},
        **{f"rank_s.{k}": v for k, v in enumerate(event.rank_s)},
        **{f"rank_power_w.{k}": v for k, v in enumerate(event.rank_power_w)},
        "pcie_bytes_per_s": event.pcie_bytes_per_s,
    }  # fmt: skip
    for name, column in steps.columns.items():
        present = name not in steps.present or steps.present[name][row]
        if name not in known:
            continue
        assert present == (known[name] is not None), name
        if present:
            np.testing.assert_equal(column[row], known[name])
    missing = {name for name, value in known.items() if value is not None} - steps.columns.keys()
    assert not missing


def test_whole_runs_give_the_same_view_either_way() -> None:
    records = eventful().records
    one = apply_many(RunView(), records)
    batch = decode_batch([encode(record) for record in records])
    other = apply_batch(apply_batch(RunView(), batch), batch)
    assert (one.step, one.seq, one.steps_seen) == (other.step, other.seq, other.steps_seen)
    assert one.last == other.last
    assert one.marks == other.marks
    assert one.branch.curves["loss"].tail(50) == other.branch.curves["loss"].tail(50)


def test_what_is_no_record_is_counted() -> None:
    step = encode(_records([StepFinished(loss=1.0)])[0])
    found = decode_batch([b"nonsense", step, step[:-3], b""])
    assert found.unknown == 3
    assert sum(len(part) for part in found.parts if isinstance(part, Steps)) == 1


def test_steps_before_one_that_cannot_be_read_are_kept() -> None:
    steps = [
        encode(record) for record in _records([StepFinished(loss=float(n)) for n in range(1, 4)])
    ]
    loss = msgspec.msgpack.encode({"loss": 3.0})[1:]
    assert loss in steps[-1]
    odd = steps[-1].replace(loss, msgspec.msgpack.encode({"loss": "high"})[1:])
    found = decode_batch([*steps[:-1], odd])
    view = apply_batch(RunView(), found)
    assert (view.step, view.unknown) == (2, 1)
    assert view.branch.curves["loss"].tail(5) == [1.0, 2.0]


@pytest.mark.parametrize("width", [1, 4, 64])
def test_thinning_keeps_every_extreme_and_gap(width) -> None:
    rng = random.Random(5)
    script = Script().start().run().train(1000)
    payloads = []
    for record in script.records:
        event = record.event
        if isinstance(event, StepFinished) and rng.random() < 0.01:
            odd = math.nan if rng.random() < 0.5 else 50 * rng.random()
            record = Record(
                seq=record.seq, time=record.time, step=record.step, timeline=1,
                event=StepFinished(loss=odd, step_s=1.0),
            )  # fmt: skip
        payloads.append(encode(record))
    batch = decode_batch(payloads)
    full = apply_batch(RunView(), batch)
    parts = [part.thinned(width) if isinstance(part, Steps) else part for part in batch.parts]
    thin = apply_batch(RunView(), RecordBatch(parts))
    whole, less = full.branch.curves["loss"], thin.branch.curves["loss"]
    assert len(less) <= len(whole)
    assert (np.nanmin(less.ys), np.nanmax(less.ys)) == (np.nanmin(whole.ys), np.nanmax(whole.ys))
    gaps = whole.trace(0, 1000, 1000 // max(width, 4)).gaps
    assert len(less.trace(0, 1000, 1000 // max(width, 4)).gaps) >= min(1, len(gaps))
    assert thin.branch.averages == full.branch.averages
    assert thin.tokens_seen == full.tokens_seen


@pytest.mark.parametrize("odd", [math.nan, math.inf, None])
def test_a_block_keeps_its_extremes_and_its_first_odd_value(odd: float | None) -> None:
    losses = [3.0, 1.0, 2.0, 4.0, 8.0, 7.0, 6.0, 5.0]
    if odd is not None:
        losses[6] = odd
    records = [
        Record(seq=n, time=1e9 + n, step=n, timeline=1, event=StepFinished(loss=loss))
        for n, loss in enumerate(losses, 1)
    ]
    (steps,) = decode_batch(list(map(encode, records))).parts
    assert isinstance(steps, Steps)
    kept = np.flatnonzero(steps.thinned(4, whole_end=False).present["loss"])
    # Of the first block the first, least and greatest value; of the second one likewise.
    assert kept.tolist() == [0, 1, 3, 4, *([] if odd is None else [6]), 7]
