from __future__ import annotations

import subprocess
import sys

import pytest

from fttui.engine.config.hardware import probe_hardware, visible_indices

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]


@pytest.mark.parametrize(
    ("setting", "visible"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 ", [1]),
        ("-1", []),
        ("0,-1,1", [0]),
        ("1,7,0", [1]),
        ("GPU-cc,0", [2, 0]),
        ("GPU-a", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_follow_cuda(setting, visible):
    assert visible_indices(UUIDS, setting) == visible


def test_probe_sees_the_host():
    hardware = probe_hardware()
    assert 0 < hardware.host_free_bytes <= hardware.host_total_bytes
    assert hardware.count >= 1
    assert hardware.kind == ("cuda" if hardware.devices else "cpu")


def test_the_package_loads_no_training_stack():
    code = (
        "import sys; import fttui.engine.config.load, fttui.engine.config.hardware as h;"
        "import fttui.engine.config.plan; h.probe_hardware();"
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
