"""The soak as a row of the table."""

from __future__ import annotations

from .book import Box, Figures, fault


@fault(
    "F34",
    "soak: random faults, one after another, commands meanwhile",
    "gaps, doubles, unexplained exits 0; descriptors and memory flat",
    "-",
)
def short_soak(box: Box) -> Figures:
    from .soak import Options, soak  # deferred: it is also a program of its own

    options = Options(seconds=box.count(4, 1800), per_minute=20, rng=box.rng)
    _, figures = soak(box.folder, box, options)
    return Figures(figures, ok=True)
