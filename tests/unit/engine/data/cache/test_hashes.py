"""Hashes of data files, and revisions of hub datasets."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.data.cache.hashes import dataset_revision, file_hashes


def test_files_are_named_by_their_hash(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("{}")
    expected = hashlib.sha256(b"{}").hexdigest()[:16]
    assert file_hashes([str(file), None, "owner/texts"]) == {"sha256 of train.jsonl": expected}


def test_the_revision_is_that_of_the_chosen_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def builder(*arguments: Any) -> SimpleNamespace:
        asked.append(arguments)
        return SimpleNamespace(hash="c" * 40)

    monkeypatch.setattr("datasets.load_dataset_builder", builder)
    assert dataset_revision("owner/texts:main") == "c" * 40
    assert dataset_revision("owner/texts") == "c" * 40
    assert asked == [("owner/texts", "main"), ("owner/texts", None)]


def test_a_revision_that_cannot_be_found_is_a_reason() -> None:
    with pytest.raises(ValueError, match="the revision of owner/no-such-texts is not known: "):
        dataset_revision("owner/no-such-texts")
