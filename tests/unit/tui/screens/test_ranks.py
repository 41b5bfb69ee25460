"""Many ranks: the slow one is named, the worst comes first, and nodes stay together."""

from __future__ import annotations

import msgspec
import pytest
from textual.widgets import DataTable

from fttui.engine.protocol.events import RunStarted, StepFinished
from fttui.tui.dialogs.rank_text import slow_words
from fttui.tui.plot.strip import strip
from fttui.tui.screens.tables.ranks import RanksScreen
from fttui.tui.view_model.ranks.standing import ORDERS, Standing, by_node, standings
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import GIB, FakeSession, Script
from tests.unit.tui.app.driving import driven

PER_NODE = 8


def many_ranks(ranks: int = 64, *, slow: int = 37, after: int = 60, steps: int = 160) -> Script:
    """A run of eight ranks per node, of which one becomes slow."""
    script = Script().start().run().train(1)
    started = script.records[0].event
    assert isinstance(started, RunStarted)
    more = msgspec.structs.replace(
        started,
        world_size=ranks,
        devices=[f"cuda:{rank % PER_NODE} NVIDIA H100 80.0 GiB" for rank in range(ranks)],
        rank_hosts=[f"{rank // PER_NODE} gpu-{rank // PER_NODE:02}" for rank in range(ranks)],
    )
    script.add(more)
    for step in range(1, steps + 1):
        script.train(1)
        newest = script.records[-1]
        assert isinstance(newest.event, StepFinished)
        seconds = [1.0 + 0.01 * ((7 * rank + step) % 5) for rank in range(ranks)]
        seconds[slow] *= 1.25 if step > after else 1.0
        listed = msgspec.structs.replace(
            newest.event,
            rank_s=seconds,
            rank_tokens=[1000] * ranks,
            rank_mem_bytes=[(60 + rank % 3) * GIB for rank in range(ranks)],
            rank_util=[97.0] * ranks,
        )
        if step % 4 == 0:
            script.records[-1] = msgspec.structs.replace(newest, event=listed)
    return script


@pytest.fixture(scope="module")
def run() -> RunView:
    return apply_many(RunView(), many_ranks().records)


def test_the_slow_rank_is_named_with_its_node_by_how_much_and_since_when(run: RunView) -> None:
    (words,) = slow_words(standings(run))
    assert words.startswith("rank 37 on node 4 (gpu-04) is slow: ")
    late = next(one for one in standings(run) if one.slow)
    assert 0.1 < late.behind < 0.25
    assert late.slow_since is not None
    assert 61 < late.slow_since < 110
    assert late.slow_steps == 161 - late.slow_since + 1


def test_a_node_whose_ranks_are_all_slow_is_named_once() -> None:
    ranks = [
        Standing(rank, rank // 8, f"gpu-{rank // 8:02}", behind=0.2, slow_steps=9 * (rank > 7))
        for rank in range(16)
    ]
    assert slow_words(ranks) == [
        "node 1 (gpu-01) is slow, all its 8 ranks: up to 20 % behind the median of the others "
        "for 9 steps or more"
    ]
    alone = [Standing(rank, behind=0.5, slow_steps=3, slow_since=7) for rank in range(5)]
    assert len(slow_words(alone)) == 4
    assert slow_words(alone)[-1] == "and 2 more"


def test_no_rank_is_slow_before_the_lead_is_clear_of_noise() -> None:
    run = apply_many(RunView(), many_ranks(slow=0, after=1000).records)
    assert slow_words(standings(run)) == []


@pytest.mark.parametrize("order", ORDERS)
def test_the_ranks_of_a_node_stay_together_in_every_order(run: RunView, order) -> None:
    nodes = by_node(standings(run), order)
    assert [len({one.node for one in node}) for node in nodes] == [1] * 8
    assert sorted(one.rank for node in nodes for one in node) == list(range(64))
    if order in ("slowest", "throughput"):
        assert nodes[0][0].rank == 37


def test_throughput_is_that_of_the_rank_not_of_the_step(run: RunView) -> None:
    late = standings(run)[37]
    assert late.tokens_per_s == pytest.approx(1000 / 1.275, rel=0.02)
    assert standings(run)[36].tokens_per_s == pytest.approx(1000 / 1.02, rel=0.02)


def test_a_strip_has_a_bar_per_rank_or_the_worst_of_several_where_room_is_scarce() -> None:
    values, nodes = [10.0] * 64, [rank // 8 for rank in range(64)]
    values[37] = 5.0
    marked = [rank == 37 for rank in range(64)]
    cells, share = strip(values, marked, nodes, 76, highest_is_worst=False)
    assert (len(cells), share, sum(one.gap for one in cells)) == (64, 1, 7)
    assert [at for at, one in enumerate(cells) if one.marked] == [37]
    assert (cells[37].sign, cells[36].sign) == ("▄", "█")
    cells, share = strip(values, marked, nodes, 40, highest_is_worst=False)
    assert (len(cells), share) == (32, 2)
    assert (cells[18].sign, cells[18].marked, cells[17].sign) == ("▄", True, "█")


def test_a_rank_that_nothing_is_known_of_is_neither_slow_nor_a_bar() -> None:
    assert standings(RunView()) == ()
    cells, _ = strip([None, 2.0], [False, False], [0, 0], 10, highest_is_worst=True)
    assert [one.sign for one in cells] == ["·", "█"]


async def test_the_table_is_filtered_and_ordered_by_keys() -> None:
    async with driven(FakeSession(many_ranks())) as (app, pilot):
        await pilot.press("W")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, RanksScreen)
        table = screen.query_one(DataTable)
        assert table.row_count == 72
        assert screen.key_under_cursor() == "node 4"
        await pilot.press("O")
        await pilot.pause()
        assert screen._rows is not None
        assert screen._rows[0].key == "node 0"
        await pilot.press("slash", *"slow", "enter")
        await pilot.pause()
        assert [row.key for row in screen._rows if row.key.startswith("rank")] == ["rank 37"]
