"""HTML of pages and report files: the template environment, and functions that escape text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.core.sanitize import escape_controls

TEMPLATES = Path(__file__).parent / "templates"
LONGEST = 24
"""Maximum letters of a name part that stays on one line. A longer part may break anywhere."""
_SEAM = re.compile(r"(?<=[/\\_@=:&?+])(?=\w)|(?<=\.)(?=[^\W\d]\w{4})(?!jsonl\b)")
"""Places where a name may continue on the next line. A suffix such as `.jsonl` stays with the name."""
_SPACE, _PATH = re.compile(r"(\s+)"), re.compile(r"[/\\]")
_UNIT = re.compile(r"(?<!\S)(\d[\d,.]*\s(?:h|min|s|ms)(?!\w))")
_NUMBERED = re.compile(r"\d.*-|-.*\d")
"""A word with a hyphen and a digit, such as a date, an id or a model. Browsers would break the word at the hyphen."""
_WHOLE = Markup('<span class="whole">{}</span>')
_LONG = re.compile(rf"[^\s-]{{{LONGEST}}}(?=[^\s-])")


def environment(*folders: Path) -> Environment:
    """Return an environment for templates in these folders and for reports. It escapes every value."""
    made = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(code=code, breakable=breakable)
    return made


def _shown(value: Any) -> Any:
    return escape_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def code(text: str) -> Markup:
    """Format the parts of a message between backticks as code. Long names may break between their parts."""
    parts = escape_controls(text).split("`")
    if len(parts) % 2 == 0:
        return breakable(text)
    made = (
        Markup("<code>{}</code>").format(breakable(part, LONGEST)) if number % 2 else breakable(part)
        for number, part in enumerate(parts)
    )
    return Markup("").join(made)


def breakable(name: Any, whole: int = 20) -> Markup:
    """Let a long name, such as a path, break between its parts instead of inside a word.

    A word of up to `whole` letters, such as `content_filter`, stays whole. So does a number with its unit.
    """
    parts = _UNIT.split(escape_controls(str(name)))
    return Markup("").join(
        _WHOLE.format(part) if number % 2 else _words(part, whole) for number, part in enumerate(parts)
    )


def _words(text: str, whole: int) -> Markup:
    return Markup("").join(_word(word, whole) for word in _SPACE.split(text))


def _word(word: str, whole: int) -> str:
    if len(word) > whole or _PATH.search(word):
        return _seamed(word)
    return _WHOLE.format(word) if _NUMBERED.search(word) else word


def _seamed(word: str) -> Markup:
    parts = (_LONG.sub(r"\g<0>\0", part).split("\0") for part in _SEAM.split(word))
    return Markup("<wbr>").join(piece for part in parts for piece in part)
