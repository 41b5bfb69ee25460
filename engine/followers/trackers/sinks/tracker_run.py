"""How the tracker run of a timeline is named, and a nested configuration as flat names."""

from __future__ import annotations

from collections.abc import Iterator

from ..deliveries import RunFacts, Timeline


def tracker_run_name(run: RunFacts, timeline: Timeline, attempt: int) -> str:
    """Return the name of a tracker run, such as `demo-20260701-101500 · timeline 2`."""
    again = f" · delivery {attempt}" if attempt > 1 else ""
    return f"{run.id} · timeline {timeline.number}{again}"


def flat(config: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys of a configuration as paths, such as `train.lr`, with their values."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
