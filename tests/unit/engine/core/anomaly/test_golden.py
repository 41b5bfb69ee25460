"""The detector raises the same alerts, with the same numbers, as when they were recorded.

`python -m tests.unit.engine.core.anomaly.test_golden` records them anew, after a wanted change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from fttui.engine.core.anomaly import Detector
from tests.unit.engine.core.anomaly.scenes import Scene, scenes

GOLDEN = Path(__file__).with_name("golden_alerts.json")
SNAPSHOT_EVERY = 50
"""Records between two digests of the detector's state."""


def told(scene: Scene) -> Iterator[str]:
    """Every alert and verdict of a scene, in words; and digests of what the detector knows."""
    detector = Detector(**scene.settings)
    for n, record in enumerate(scene.records, 1):
        for alert in detector.update(dict(record)):
            yield f"{n}: {alert.severity} {alert.kind}: {alert.headline}"
        for verdict in detector.take_verdicts():
            yield f"{n}: {verdict.id} {verdict.verdict}, {_plain(verdict.level_after)}"
        if n % SNAPSHOT_EVERY == 0 or n == len(scene.records):
            state = [detector.state(), detector.usual_up_to()]
            yield f"{n}: state {_digest(state)}"
    for verdict in detector.last_verdicts():
        yield f"end: {verdict.id} {verdict.verdict}, {_plain(verdict.level_after)}"


def _plain(value: Any) -> Any:
    """Numbers with nine digits: the last ones differ between machines."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _digest(state: Any) -> str:
    text = json.dumps(_plain(state), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def test_alerts_verdicts_and_state_are_as_recorded() -> None:
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert [scene.name for scene in scenes()] == list(recorded)
    for scene in scenes():
        for now, then in zip_longest(told(scene), recorded[scene.name]):
            assert now == then, f"scene {scene.name!r}"


def test_every_kind_of_alert_is_among_them() -> None:
    lines = [line for found in json.loads(GOLDEN.read_text("utf-8")).values() for line in found]
    kinds = {line.split()[2].rstrip(":") for line in lines if "state" not in line.split()[1]}
    assert kinds >= {
        "nonfinite", "spike", "divergence", "grad_explosion", "dead", "plateau", "overfit",
        "collapse", "lr_misconfig", "throughput_drop", "straggler", "vram_leak",
    }  # fmt: skip


if __name__ == "__main__":
    golden = {scene.name: list(told(scene)) for scene in scenes()}
    GOLDEN.write_bytes(msgspec.json.format(msgspec.json.encode(golden), indent=1) + b"\n")
