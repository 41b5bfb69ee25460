"""Screens of a terminal, one after the other, as one animated SVG.

Pieces of rows that are equal are stored once, and a piece that stays while others change is drawn
once for that time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from textual.strip import Strip

from tests.bench.screens import CELL, opening, row_of

_SIDES = re.compile("[│┤]")
"""Signs at which rows are cut: what is between them changes alone."""
_LOOK = re.compile(
    ' (?:fill|stroke)="#[0-9a-fA-F]{6}"(?: font-weight="bold")?(?: [a-z]+-opacity="0.65")?'
)
_SHORTER = (('<path class="d" ', "<path "), (' x="0"', ""), (' y="12.5"', ' y="12"'))
_PATHS = "path{stroke-width:2;stroke-dasharray:2}"


@dataclass(frozen=True)
class Piece:
    """A part of a row of cells, and its place in pixels."""

    svg: str
    x: int
    y: int


@dataclass(frozen=True)
class Frame:
    """What a screen shows, and for how long."""

    pieces: frozenset[Piece]
    seconds: float


def frame_of(strips: Sequence[Strip], ground: str, seconds: float) -> Frame:
    """A screen of the colour `ground` as a frame."""
    return Frame(frozenset(_pieces(strips, ground)), seconds)


def _pieces(strips: Sequence[Strip], ground: str) -> Iterator[Piece]:
    for y, strip in enumerate(strips):
        signs = (found.start() for found in _SIDES.finditer(strip.text))
        cuts = {cut for sign in signs for cut in (sign, sign + 1)} - {0}
        left = 0
        for part in strip.divide(sorted(cuts | {strip.cell_length})):
            if svg := row_of(part, ground):
                yield Piece(svg, left * CELL[0], y * CELL[1])
            left += part.cell_length


def animated(frames: Sequence[Frame], size: tuple[int, int], ground: str) -> str:
    """Frames of so many cells as an SVG that repeats them.

    What cannot animate shows the last frame.
    """
    names: dict[str, str] = {}
    stays: dict[tuple[int, int], list[str]] = defaultdict(list)
    for piece in dict.fromkeys(p for f in frames for p in sorted(f.pieces, key=_place)):
        name = names.setdefault(piece.svg, f"r{len(names)}")
        left = f' x="{piece.x}"' if piece.x else ""
        use = f'<use href="#{name}"{left} y="{piece.y}"/>'
        for stay in _stays([piece in frame.pieces for frame in frames]):
            stays[stay].append(use)
    times = [0.0, *accumulate(frame.seconds for frame in frames)]
    rules, shown = [], []
    for number, ((first, end), uses) in enumerate(sorted(stays.items())):
        start, stop, total = times[first], times[end], times[-1]
        if stop - start < total:
            rules.append(_rule(number, start, (stop - start) / total, total))
        hidden = "" if end == len(frames) else ' visibility="hidden"'
        shown.append(f'<g id="f{number}"{hidden}>{"".join(uses)}</g>')
    defined, looks = _with_classes("".join(f'<g id="{n}">{svg}</g>' for svg, n in names.items()))
    style = f"<style>{''.join(rules)}{_PATHS}{looks}</style>"
    back = f'<rect width="100%" height="100%" fill="{ground}"/>'
    return f"{opening(*size)}{style}<defs>{defined}</defs>{back}{''.join(shown)}</svg>"


def _place(piece: Piece) -> tuple[int, int]:
    return piece.y, piece.x


def _stays(shown: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The spans of frames, from the first to the one after the last, in which a piece is shown."""
    for number, here in enumerate(shown):
        if here and (number == 0 or not shown[number - 1]):
            gone = (n for n in range(number, len(shown)) if not shown[n])
            yield number, next(gone, len(shown))


def _rule(number: int, start: float, share: float, total: float) -> str:
    return (
        f"@keyframes k{number}{{0%{{visibility:visible}}{100 * share:.3f}%,"
        f"100%{{visibility:hidden}}}}"
        f"#f{number}{{animation:k{number} {total:.2f}s step-end {start - total:.2f}s infinite}}"
    )


def _with_classes(drawn: str) -> tuple[str, str]:
    """A drawing with a class in place of each look, and the rules of the classes.

    The most frequent colour of paths, and that of texts, are those of elements without a class.
    """
    looks = {look: f"c{number}" for number, look in enumerate(sorted(set(_LOOK.findall(drawn))))}
    rules = {name: _declared(look) for look, name in looks.items()}
    drawn = _LOOK.sub(lambda found: f' class="{looks[found[0]]}"', drawn)
    for tag in ("path", "text"):
        classed = re.compile(f'(<{tag} [^>]*)( class="c[0-9]+")')
        plain = Counter(
            name for _, name in classed.findall(drawn) if ";" not in rules[name.split('"')[1]]
        )
        usual = plain.most_common(1)[0][0]
        rules[tag] = rules[usual.split('"')[1]]
        drawn = re.sub(f"(<{tag} [^>]*){usual}", r"\1", drawn)
    for long, short in _SHORTER:
        drawn = drawn.replace(long, short)
    selectors = {name: name if name in ("path", "text") else f".{name}" for name in rules}
    return drawn, "".join(f"{selectors[name]}{{{rule}}}" for name, rule in rules.items())


def _declared(look: str) -> str:
    """Attributes as declarations of a style sheet."""
    return look.strip().replace("=", ":").replace('"', "").replace(" ", ";")
