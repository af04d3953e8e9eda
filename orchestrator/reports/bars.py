"""Bar charts as self-contained SVG. Text stays text, in the reader's own font. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import ROUND_CEILING, Decimal
from html import escape
from typing import NamedTuple
from unicodedata import east_asian_width

from orchestrator.core.sanitize import escape_controls, one_line

WIDTH = 480.0
_FONT, _GAP = 13.0, 8.0
"""Font size, and space between a text and its bar or axis."""
_WIDTHS = {
    **dict.fromkeys("ijl.,:;'|!", 4.8),
    **dict.fromkeys("ftrI()[]-/ ", 6.2),
    **dict.fromkeys("mwMW@%…—≈", 13.1),
}
_NAME = 20
"""Maximum letters of a name on an axis."""
_SMALL, _CAPITAL = 8.4, 10.2
"""Widths of small and capital letters in the widest common font. Narrower fonts leave extra space."""
_ROW, _PAIR_ROW = 28.0, 36.0
_LEGEND, _AXIS, _COLUMNS = 28.0, 24.0, 170.0
_TICKS_BELOW, _TICKS_BESIDE, _NAMES = 3, 5, 7
"""Maximum ticks of an axis (below, at the side), and maximum names along an axis."""
Words = Callable[[Decimal], str]


class Bar(NamedTuple):
    name: str
    size: Decimal
    colour: str


class Series(NamedTuple):
    """Bars of one colour: a size for each group."""

    label: str
    colour: str
    sizes: Sequence[Decimal]


def bars(given: Sequence[Bar], words: Words) -> str:
    """Draw horizontal bars, each with its figure formatted by `words`. Return "" if there are no bars."""
    if not given:
        return ""
    left = _room(short(bar.name) for bar in given)
    figures = [words(bar.size) for bar in given]
    scale = _scale((bar.size for bar in given), WIDTH - left - _room(figures))
    parts = []
    for number, (bar, figure) in enumerate(zip(given, figures, strict=True)):
        top, length = number * _ROW, scale(bar.size)
        parts.append(_text(left - _GAP, top + _ROW / 2, short(bar.name), "end"))
        parts.append(_rect(left, top + 4, length, _ROW - 8, bar.colour))
        parts.append(_text(left + length + _GAP, top + _ROW / 2, figure, "start"))
    return _svg(len(given) * _ROW, parts)


def groups_below(names: Sequence[str], series: Sequence[Series], words: Words) -> str:
    """Draw groups from top to bottom, with a bar of each series, above an axis."""
    ticks = _ticks(_largest(series), _TICKS_BELOW)
    left, right = _room(map(short, names)), _letters(words(ticks[-1])) / 2
    scale = _scale(ticks, WIDTH - left - right)
    end = _LEGEND + len(names) * _PAIR_ROW
    parts = [*_legend(series)]
    for number, name in enumerate(names):
        top = _LEGEND + number * _PAIR_ROW
        parts.append(_text(left - _GAP, top + _PAIR_ROW / 2, short(name), "end"))
        thick = (_PAIR_ROW - 8) / len(series)
        for place, one in enumerate(series):
            parts.append(_rect(left, top + 4 + place * thick, scale(one.sizes[number]), thick, one.colour))
    parts.append(_line(left, _LEGEND, left, end))
    parts.append(_line(left, end, WIDTH - right, end))
    parts += [_text(left + scale(tick), end + _AXIS / 2, words(tick), "middle") for tick in ticks]
    return _svg(end + _AXIS, parts)


def groups_beside(names: Sequence[str], series: Sequence[Series], words: Words) -> str:
    """Draw groups from left to right, with a bar of each series, beside an axis. Labels at most `_NAMES` groups."""
    ticks = _ticks(_largest(series), _TICKS_BESIDE)
    left = _room(map(words, ticks))
    scale = _scale(ticks, _COLUMNS)
    step, end, every = (WIDTH - left) / len(names), _LEGEND + _COLUMNS, 1 + len(names) // _NAMES
    thick = 0.8 * step / len(series)
    parts = [*_legend(series)]
    for number, name in enumerate(names):
        begin = left + number * step
        for place, one in enumerate(series):
            height = scale(one.sizes[number])
            parts.append(_rect(begin + 0.1 * step + place * thick, end - height, thick, height, one.colour))
        if number % every == 0:
            parts.append(_text(begin + step / 2, end + _AXIS / 2, name, "middle"))
    parts.append(_line(left, _LEGEND, left, end))
    parts.append(_line(left, end, WIDTH, end))
    parts += [_text(left - _GAP, end - scale(tick), words(tick), "end") for tick in ticks]
    return _svg(end + _AXIS, parts)


def short(name: str) -> str:
    """Shorten a name in its middle to fit an axis. The ends of job names differ, so they stay."""
    line = one_line(name)
    return line if len(line) <= _NAME else f"{line[: _NAME - 9]}…{line[-8:]}"


def _largest(series: Sequence[Series]) -> Decimal:
    return max((size for one in series for size in one.sizes), default=Decimal(0))


def _ticks(largest: Decimal, most: int) -> list[Decimal]:
    """Return round numbers from 0 to at least `largest`, in at most `most` steps."""
    if largest <= 0:
        return [Decimal(0), Decimal(1)]
    unit = Decimal(10) ** ((largest / most).adjusted())
    step = next(size * unit for size in map(Decimal, ("1", "2", "2.5", "5", "10")) if size * unit * most >= largest)
    steps = int((largest / step).to_integral_value(ROUND_CEILING))
    return [step * number for number in range(steps + 1)]


def _scale(sizes: Iterable[Decimal], room: float) -> Callable[[Decimal], float]:
    """Return a function from sizes to lengths. The largest size fills the room; negative sizes get length 0."""
    largest = max((float(size) for size in sizes), default=0.0)
    return lambda size: max(0.0, float(size)) / largest * room if largest > 0 else 0.0


def _letters(text: str) -> float:
    """Return an upper bound of a text's width, because the reader's font is unknown."""
    return sum(map(_width, text))


def _width(letter: str) -> float:
    if east_asian_width(letter) in "WF":
        return _FONT + 1
    return _WIDTHS.get(letter, _CAPITAL if letter.isupper() else _SMALL)


def _room(texts: Iterable[str]) -> float:
    return max(map(_letters, texts), default=0.0) + _GAP


def _legend(series: Sequence[Series]) -> Iterator[str]:
    at = 0.0
    for one in series:
        yield _rect(at, 4, 22, 12, one.colour)
        yield _text(at + 22 + _GAP, 10, one.label, "start")
        at += 22 + 3 * _GAP + _letters(one.label)


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="currentColor" stroke-opacity="0.6"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    # Lowered by a third of its size, because mail programs ignore `dominant-baseline`.
    lowered = y + _FONT / 3
    return f'<text x="{x:.1f}" y="{lowered:.1f}" text-anchor="{anchor}">{escape(escape_controls(text))}</text>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="{_FONT:.0f}" fill="currentColor">\n'
        + "\n".join(parts)
        + "\n</svg>"
    )
