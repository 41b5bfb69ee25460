from __future__ import annotations

import pytest

from fttui.engine.bench.device import Gpu, chosen_device
from fttui.engine.errors import ConfigError, ModelError

GIB = 2**30
TWO = [Gpu(0, 1 * GIB), Gpu(1, 20 * GIB)]


@pytest.mark.parametrize(
    ("wanted", "gpus", "size", "device"),
    [
        ("auto", [], 4 * GIB, "cpu"),
        ("auto", TWO, 4 * GIB, "cuda:1"),
        ("auto", TWO, 40 * GIB, "cpu"),
        ("auto", TWO, None, "cuda:1"),
        ("auto", [Gpu(0, None)], 40 * GIB, "cuda:0"),
        ("cpu", TWO, 4 * GIB, "cpu"),
        ("cuda:1", TWO, 4 * GIB, "cuda:1"),
        ("cuda", [Gpu(0, 9 * GIB)], 4 * GIB, "cuda:0"),
    ],
)
def test_the_device_has_room(wanted: str, gpus: list[Gpu], size: int | None, device: str) -> None:
    assert chosen_device(wanted, gpus, size, "my-run", live=False) == device


def test_a_gpu_without_room_is_refused_with_the_ways_out() -> None:
    said = r"cuda:0 has 1\.0 GiB of free memory.*about 5\.9 GiB.*fttui ctl my-run pause release"
    with pytest.raises(ModelError, match=said):
        chosen_device("cuda:0", TWO, 4 * GIB, "my-run", live=True)


@pytest.mark.parametrize("wanted", ["cuda:2", "tpu", "gpu"])
def test_an_unknown_device_is_refused_with_the_known_ones(wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"got {wanted}, expected one of: auto, cpu, cuda:0, c"):
        chosen_device(wanted, TWO, 4 * GIB, "my-run", live=False)
