"""Each process that is started for a trial sees one device alone."""

from __future__ import annotations

import os

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.connection.race.devices import (
    only_visible,
    parse_devices,
    require_present,
    threads_of,
)


@pytest.mark.parametrize(
    ("device", "visible", "seen"),
    [("1", None, "1"), ("1", "4, 7", "7"), ("cpu", "4,7", ""), ("cpu", None, ""), ("2", "4,7", "")],
)
def test_a_device_is_counted_among_the_visible_ones(
    device: str, visible: str | None, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with only_visible(device):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_trials_on_the_processor_share_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = [threads_of(one, 8) for one in (("cpu",), ("cpu", "cpu"), ("cpu", "0"), ("0", "1"))]
    assert found == [None, 4, None, None]
    assert threads_of(["cpu"] * 9, 8) == 1
    with only_visible("cpu", 3):
        assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_of(("cpu", "cpu"), 8) is None


def test_devices_are_gpus_once_each_or_the_processor() -> None:
    assert parse_devices(None, 4) == ()
    assert parse_devices("0, 1", 1) == ("0", "1")
    assert parse_devices("cpu,cpu", 1) == ("cpu", "cpu")


@pytest.mark.parametrize(
    ("text", "per_run", "why"),
    [
        ("0,0", 1, "GPU 0 is there twice"),
        ("cuda:0", 1, "expected GPUs such as 0,1, or cpu"),
        ("", 1, "expected GPUs such as 0,1, or cpu"),
        ("0,1", 2, "train.devices is 2"),
    ],
)
def test_what_cannot_train_side_by_side_is_refused(text: str, per_run: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_devices(text, per_run)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    require_present(("cpu", "cpu"))
    with pytest.raises(ConfigError, match="there is no GPU 99"):
        require_present(("cpu", "99"))
