"""Checkpoints of a run on two nodes, whose second one has another run folder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fttui.engine.errors import CheckpointError
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest, seal_files
from fttui.engine.train.checkpoint import node_files
from fttui.engine.train.checkpoint.node_files import NodeFiles, write_files, written_files
from fttui.engine.train.distributed.agreement import Agreement
from fttui.engine.train.distributed.nodes import NodePlace
from tests.support.engine_double import make_run
from tests.support.rank_threads import in_threads

PLACES = [NodePlace(0, 2, 0), NodePlace(0, 2, 1), NodePlace(1, 2, 0), NodePlace(1, 2, 1)]


def _stores(tmp_path: Path) -> list[CheckpointStore]:
    """The store of each rank: two on one node, two on the other."""
    stores = [CheckpointStore(make_run(tmp_path / name)) for name in ("first", "second")]
    return [stores[place.node] for place in PLACES]


def _checkpoint(store: CheckpointStore) -> Manifest:
    folder = store.make_folder("step-000004")
    write_files(folder, {"weights": bytes(range(256)) * 5, "empty": b""})
    manifest = Manifest(
        name="step-000004", step=4, timeline=1, time=time.time(), world_size=4, incarnation=1,
        files=seal_files(folder),
    )  # fmt: skip
    store.commit(manifest)
    return manifest


def test_ranks_of_other_nodes_send_their_files_to_rank_0(tmp_path: Path) -> None:
    stores = _stores(tmp_path)

    def collect(agreement: Agreement) -> dict[str, bytes]:
        rank = agreement.rank
        own = written_files(lambda folder: _write(folder / f"rng-{rank}.pt", rank))
        return NodeFiles(stores[rank], agreement, PLACES[rank]).collect(own)

    found = in_threads(4, collect)
    assert found == [{"rng-2.pt": b"\2", "rng-3.pt": b"\3"}, {}, {}, {}]


def _write(file: Path, rank: int) -> None:
    file.write_bytes(bytes([rank]))


def test_a_checkpoint_is_on_every_node_while_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files, "CHUNK_BYTES", 500)
    stores = _stores(tmp_path)
    manifest = _checkpoint(stores[0])

    def restore(agreement: Agreement) -> tuple[str, bytes]:
        store = stores[agreement.rank]
        with NodeFiles(store, agreement, PLACES[agreement.rank]).copied("last") as name:
            content = (store.verify(store.find(name)) / "weights").read_bytes()
            agreement.gather(b"")  # as the comparison of the restored states does
            return name, content

    assert in_threads(4, restore) == [("step-000004", bytes(range(256)) * 5)] * 4
    assert stores[0].all() == [manifest]
    assert stores[2].all() == []
    assert not stores[2].is_taken("step-000004")


def test_a_damaged_checkpoint_is_refused_on_all_ranks(tmp_path: Path) -> None:
    stores = _stores(tmp_path)
    _checkpoint(stores[0])
    (stores[0].path("step-000004") / "weights").write_bytes(b"x")

    def restore(agreement: Agreement) -> str:
        files = NodeFiles(stores[agreement.rank], agreement, PLACES[agreement.rank])
        with pytest.raises(CheckpointError) as caught, files.copied("4"):
            pass
        return str(caught.value)

    (text,) = set(in_threads(4, restore))
    assert text.startswith("checkpoint step-000004: weights has 1 bytes, expected 1280")


def test_a_node_that_cannot_write_is_named_and_nothing_waits(tmp_path: Path) -> None:
    stores = _stores(tmp_path)
    _checkpoint(stores[0])
    stores[2].folder.rmdir()
    stores[2].folder.write_text("a file in the way")

    def restore(agreement: Agreement) -> str:
        files = NodeFiles(stores[agreement.rank], agreement, PLACES[agreement.rank])
        with pytest.raises(CheckpointError) as caught, files.copied("4"):
            pass
        return str(caught.value)

    (text,) = set(in_threads(4, restore))
    assert text.startswith("step-000004 was not copied: rank 2:")


def test_a_single_node_copies_nothing(tmp_path: Path) -> None:
    (store, *_) = _stores(tmp_path)
    (name,) = in_threads(1, lambda agreement: _copied(NodeFiles(store, agreement, NodePlace())))
    assert name == "last"


def _copied(files: NodeFiles) -> str:
    with files.copied("last") as name:
        assert files.collect({"a": b""}) == {}
        return name
