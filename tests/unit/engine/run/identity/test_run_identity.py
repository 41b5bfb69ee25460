"""A run records what it is made of, and refuses checkpoints of other content until accepted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fttui.engine.config.schema import RunConfig
from fttui.engine.errors import CheckpointError, ContentChanged
from fttui.engine.run.checkpoint_store import Manifest
from fttui.engine.run.identity import run_identity
from fttui.engine.run.identity.comparison import compare_with_start, content_identity
from fttui.engine.run.identity.hash_cache import HashCache
from fttui.engine.run.identity.recorded import read_recorded
from fttui.engine.run.identity.run_identity import RunIdentity
from fttui.engine.run.run_dir import RunDirectory


class Bench:
    """A run folder with a model and a data file, and the starts of its engine."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder / "run")
        self.run.path.mkdir()
        self.data = folder / "train.jsonl"
        self.data.write_text('{"text": "one"}\n')
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        sections = {
            "model": {"id": str(folder / "model")},
            "data": {"train": str(self.data)},
            "train": {"steps": 1},
        }
        self.config = msgspec.convert(sections, RunConfig)
        self.logged: list[str] = []
        self.incarnation = 0

    def start(self, accept: frozenset[str] = frozenset(), wait_s: float = 10.0) -> RunIdentity:
        """Start an engine, whose model and data load at once."""
        self.incarnation += 1
        found = self.loading(accept, wait_s)
        found.loaded()
        return found

    def loading(self, accept: frozenset[str] = frozenset(), wait_s: float = 10.0) -> RunIdentity:
        return RunIdentity(
            self.run,
            self.config,
            self.incarnation,
            accept,
            lambda source: "",
            lambda level, text: self.logged.append(text),
            wait_s,
        )

    def manifest(self, name: str, identity: RunIdentity | None) -> Manifest:
        """A checkpoint of the newest start."""
        return Manifest(
            name=name,
            step=4,
            timeline=1,
            time=0.0,
            world_size=1,
            incarnation=self.incarnation,
            files={},
            identity=identity.known() if identity else None,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_start_is_recorded_once_model_and_data_are_loaded(bench: Bench) -> None:
    """Data that fail to load can be mended, and the run started again, without a question."""
    loading = bench.loading(wait_s=0.1)
    assert loading.known() is None
    assert read_recorded(bench.run).starts == []
    found = bench.start().known()
    (start,) = read_recorded(bench.run).starts
    assert (start.incarnation, start.identity) == (1, found)
    loading.loaded()


def test_a_change_is_refused_until_it_is_accepted_and_then_known(bench: Bench) -> None:
    old = bench.manifest("step-000004", bench.start())
    bench.data.write_text('{"text": "two"}\n')
    with pytest.raises(ContentChanged) as refused:
        bench.start().require_same(old)
    text = str(refused.value)
    assert text.startswith("content changed since checkpoint step-000004: data: train train.jsonl")
    assert text.endswith("fttui run --resume run@4 --accept-changed data")
    with pytest.raises(ContentChanged):
        bench.start(frozenset({"base"})).require_same(old)

    accepting = bench.start(frozenset({"data"}))
    accepting.require_same(old)
    assert len(accepting.accepted) == 1
    assert "accepted change since step-000004: data: train train.jsonl was" in bench.logged[-1]

    again = bench.start()
    again.require_same(old)
    assert "changed since checkpoint step-000004, as accepted before: data: " in bench.logged[-1]
    assert again.accepted == [], "a rollback to before the change needs no second consent"
    bench.data.write_text('{"text": "three"}\n')
    with pytest.raises(ContentChanged):
        bench.start().require_same(old)


def test_an_older_checkpoint_gives_a_notice(bench: Bench) -> None:
    older = bench.manifest("step-000002", None)
    bench.start().require_same(older)
    (text,) = bench.logged
    assert text.startswith("checkpoint step-000002 was written by an earlier version")


def test_a_checkpoint_written_before_the_hashes_is_known_by_its_start(bench: Bench) -> None:
    first = bench.start()
    early = bench.manifest("step-000000", None)
    first.known()
    bench.data.write_text('{"text": "two"}\n')
    with pytest.raises(ContentChanged):
        bench.start().require_same(early)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hashing waits until the event is set."""
    release = threading.Event()
    original = content_identity

    def waiting(*arguments):
        release.wait()
        return original(*arguments)

    monkeypatch.setattr(run_identity, "content_identity", waiting)
    yield release
    release.set()


def test_hashes_that_take_long_hold_up_neither_steps_nor_checkpoints(
    bench: Bench, stuck: threading.Event
) -> None:
    first = bench.start(wait_s=0.01)
    early = bench.manifest("step-000000", first)
    assert early.identity is None
    with pytest.raises(CheckpointError, match="still being hashed"):
        first.require_same(early)
    stuck.set()
    while bench.manifest("step-000004", first).identity is None:
        pass


def test_a_run_folder_that_cannot_be_written_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_identity, "add_start", full)
    found = bench.start()
    assert found.known() is not None
    (text,) = bench.logged
    assert "not noticed later: OSError: " in text


def test_a_damaged_record_counts_as_none(bench: Bench) -> None:
    bench.run.content_identities.write_text("{")
    bench.start().known()
    assert len(read_recorded(bench.run).starts) == 1


def test_a_run_without_a_checkpoint_is_compared_with_its_start(bench: Bench) -> None:
    found = content_identity(bench.config, HashCache())
    compare_with_start(bench.run, found, frozenset(), "")
    bench.start().known()
    compare_with_start(bench.run, found, frozenset(), "")
    bench.data.write_text('{"text": "two"}\n')
    changed = content_identity(bench.config, HashCache())
    with pytest.raises(ContentChanged, match=r"the start of run: data: .* --accept-changed data"):
        compare_with_start(bench.run, changed, frozenset(), "fttui run --resume run")
    compare_with_start(bench.run, changed, frozenset({"data"}), "")
