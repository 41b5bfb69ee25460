"""Orders of mixes whose weights change: exact from any position, and without early repetition."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.data.batches.batch_source import BatchSource, InMemoryBatches
from fttui.engine.data.batches.mixing import MixChange, MixSchedule, same_mix, shares_of
from fttui.engine.data.batches.sampler import BatchStream, Mix
from fttui.engine.data.batches.streaming import InterleavedRows, ShuffledRows
from fttui.engine.data.records.formats import TextRecord
from fttui.engine.data.tokens.examples import TextExample

WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=3, max_size=3).filter(any)
COUNTS = st.lists(st.integers(1, 30), min_size=3, max_size=3)
CHANGES = st.lists(st.tuples(st.integers(0, 60), WEIGHTS), max_size=4, unique_by=lambda one: one[0])


def made(pairs) -> tuple[MixChange, ...]:
    return tuple(MixChange(at, tuple(weights)) for at, weights in sorted(pairs))


def source_of(index: int, counts) -> int:
    return next(n for n in range(len(counts)) if index < sum(counts[: n + 1]))


@given(COUNTS, CHANGES, st.integers(0, 9))
def test_a_position_is_the_same_however_it_is_reached(counts, pairs, seed) -> None:
    mix, changes = Mix.of(counts, None), made(pairs)
    walked = BatchStream(sum(counts), 1, mix=mix, seed=seed)
    in_order = [walked.indices(n, changes=changes) for n in range(80)]
    jumped = BatchStream(sum(counts), 1, mix=mix, seed=seed)
    assert [jumped.indices(n, changes=changes) for n in reversed(range(80))] == in_order[::-1]


@given(COUNTS, CHANGES)
def test_no_record_is_repeated_before_all_of_its_source_were_used(counts, pairs) -> None:
    """Micro-batches of one record on one rank leave no record out of a cycle."""
    stream = BatchStream(sum(counts), 1, mix=Mix.of(counts, None), seed=3)
    changes = made(pairs)
    drawn: list[Counter[int]] = [Counter() for _ in counts]
    for position in range(150):
        (index,) = stream.indices(position, changes=changes)
        source = source_of(index, counts)
        drawn[source][index] += 1
        least = min(drawn[source].values()) if len(drawn[source]) == counts[source] else 0
        # A source may draw ahead within a cycle, by the records that the cycle holds of it.
        ahead = -(-sum(counts) // counts[source])
        assert drawn[source][index] - least <= ahead + 1


def test_a_change_in_the_middle_of_an_epoch_goes_on_with_the_records_that_are_left() -> None:
    counts = (40, 40)
    stream = BatchStream(80, 1, mix=Mix.of(counts, None), seed=1)
    changes = made([(30, (1, 3)), (50, (1, 0))])
    first = [stream.indices(n)[0] for n in range(30)]
    second = [stream.indices(n, changes=changes)[0] for n in range(30, 50)]
    third = [stream.indices(n, changes=changes)[0] for n in range(50, 60)]
    drawn = first + second + third
    assert len(set(drawn)) == len(drawn), "nothing is repeated while records are left"
    assert all(index < 40 for index in third), "a weight of 0 leaves a source out"


def test_shares_follow_the_weights_from_the_change_on() -> None:
    counts = (500, 500)
    stream = BatchStream(1000, 4, mix=Mix.of(counts, [1, 1]), seed=2)
    changes = made([(10, (1, 4))])
    late = [index < 500 for n in range(10, 260) for index in stream.indices(n, changes=changes)]
    assert sum(late) == 200, "a cycle of 1,000 records holds one fifth of the first source"
    same = BatchStream(1000, 4, mix=Mix.of(counts, [1, 1]), seed=2)
    assert [stream.indices(n) for n in range(10)] == [same.indices(n) for n in range(10)]


@given(CHANGES, st.integers(1, 3))
def test_ranks_share_the_records(pairs, ranks) -> None:
    counts, changes = (20, 30, 10), made(pairs)
    alone = BatchStream(60, 2 * ranks, mix=Mix.of(counts, None), seed=4)
    shared = [BatchStream(60, 2, 1, r, ranks, 4, Mix.of(counts, None)) for r in range(ranks)]
    for position in range(0, 70, 7):
        together = [i for one in shared for i in one.indices(position, changes=changes)]
        assert together == alone.indices(position, changes=changes)


def test_an_earlier_run_of_constant_weights_keeps_its_order() -> None:
    """Pinned, because checkpoints of earlier versions go on with it."""
    stream = BatchStream(8, 2, mix=Mix.of([5, 3], [1, 1]), seed=3)
    assert [stream.indices(n) for n in range(8)] == PINNED


PINNED = [[3, 7], [6, 1], [5, 6], [0, 4], [2, 5], [2, 3], [1, 6], [7, 5]]


def test_shares_of_zero_weights() -> None:
    assert shares_of(10, [1, 0, 1]) == (5, 0, 5)
    assert shares_of(3, [0, 0, 2]) == (0, 0, 3)


@given(WEIGHTS, st.floats(0.1, 10))
def test_weights_in_proportion_are_the_same_mix(weights, factor) -> None:
    assert same_mix(weights, [one * factor for one in weights])
    assert not same_mix([1, 0, 0], [0, 1, 0])


SCHEDULE = MixSchedule(("a", "b"), (MixChange(0, (1, 1)), MixChange(4, (1, 3))))


def test_a_schedule_adds_a_change_only_where_the_weights_change() -> None:
    at = SCHEDULE.after
    assert at((), 0, {}) == ()
    assert at((), 3, {}) == ()
    later = at((), 4, {})
    assert later == (MixChange(4, (1, 3)),)
    assert at(later, 6, {}) == later
    assert at(later, 6, {"b": 3, "a": 1}) == later
    assert at(later, 6, {"b": 0, "a": 1}) == (*later, MixChange(6, (1, 0)))
    assert at(later, 2, {}) == (), "a step that begins earlier drops what lies behind it"
    assert at((MixChange(1, (1, 2, 3)),), 5, {}) == (MixChange(5, (1, 3)),)


def text(number: int) -> TextExample:
    return TextExample(str(number), [number], [number])


def source(chosen: dict[str, float]) -> BatchSource:
    stream = BatchStream(40, 1, mix=Mix.of([20, 20], None), seed=0)
    batches = InMemoryBatches([text(n) for n in range(40)], stream)
    return BatchSource(
        batches,
        lambda examples: {"n": [one.id for one in examples]},
        schedule=SCHEDULE,
        chosen_mix=lambda: chosen,
    )


def fetched(one: BatchSource, count: int) -> list[str]:
    return [batch["n"][0] for _ in range(count) for batch in one.fetch(1)]


def test_a_source_goes_on_exactly_from_a_position_and_its_changes() -> None:
    chosen: dict[str, float] = {}
    live = source(chosen)
    fetched(live, 6)
    held, changes = live.position, live.mix_changes
    chosen |= {"a": 1, "b": 0}
    straight = fetched(live, 8)
    assert all(int(one) < 20 for one in straight)
    other = source(chosen)
    other.return_to(held, changes)
    assert fetched(other, 8) == straight
    live.return_to(held, changes)
    chosen.clear()
    assert fetched(live, 8) != straight, "the configured weights are in force again"
    assert live.mix_changes == changes


def test_a_prefetched_step_is_made_again_after_a_change_of_the_mix() -> None:
    chosen: dict[str, float] = {}
    one, other = source(chosen), source(chosen)
    fetched(one, 2)
    fetched(other, 2)
    one.prepare(1)
    chosen |= {"a": 0, "b": 1}
    assert fetched(one, 5) == fetched(other, 5)


def rows() -> InterleavedRows:
    def opened(name: str):
        return lambda start: (TextRecord(f"{name}{n}", "x") for n in range(start, 10**6))

    return InterleavedRows([ShuffledRows(n, opened(n), 8, 0) for n in "ab"], [1, 1], 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 2500), WEIGHTS.map(lambda w: tuple(w[:2])).filter(any)),
        max_size=3,
        unique_by=lambda one: one[0],
    )
)
def test_streamed_sources_go_on_where_they_are(pairs) -> None:
    changes = sorted(pairs)
    mixed = rows().mixed(changes)
    taken = {"a": 0, "b": 0}
    for number in range(3000):
        place, own = mixed._place(number)
        name = "ab"[place]
        assert own == taken[name], "each row of a source comes once, in its order"
        taken[name] += 1


def test_streamed_shares_follow_a_change() -> None:
    mixed = rows().mixed([(700, (1, 3))])
    found = [mixed.row(n).id[0] for n in range(700, 1700)]
    assert Counter(found) == {"a": 250, "b": 750}
    assert [mixed.row(n).id for n in range(700)] == [rows().row(n).id for n in range(700)]
