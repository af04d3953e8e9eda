"""Placeholders in the syntax of other tools, such as `{text}`, which templates send as written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from orchestrator.core.errors import InputError
from orchestrator.settings.job_file import lines_of
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.source_lines import line_of, read_text, spell

OF_THE_TEXT = frozenset(
    ("article", "body", "chunk", "content", "contents", "context", "doc", "document", "document_text", "file",
     "file_content", "input", "page_content", "passage", "source_text", "txt")
)  # fmt: skip
"""Names that other tools and scripts give to a document's text."""
MOST_SHOWN = 60
"""Maximum characters of a corrected line shown before a placeholder. Half as many are shown after it."""

_TEMPLATE = re.compile(r"\{%-?\s*raw\s*-?%\}.*?\{%-?\s*endraw\s*-?%\}|\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
# {name}, {name!r}, {name:>9}, {name[:9]}, {row.name}, {row['name']}, ${name}, $name and %(name)s, but not \emph{name}
# of LaTeX.
_FOREIGN = re.compile(
    r"""\\\w+\{ | \$?(?<!\{)\{\s* (?:(?:\w+\.)?(?P<name>[A-Za-z_]\w*) | \w+\[\s*["'](?P<key>[^"'{}]+)["']\s*\])
        (?P<slice>\[[-\d: ]*\])? (?:![rsa])? (?::[<>^+,.\d]*[a-z%]?)? \s*\}(?!\})
      | \$(?P<dollar>[A-Za-z_]\w*) | %\((?P<percent>\w+)\)s""",
    re.VERBOSE,
)


def meant_by(name: str, known: Collection[str]) -> str | None:
    """Return the field that a name in a template means, or None if it resembles no field."""
    if name in known:
        return name
    near = get_close_matches(name, known, 1)
    return near[0] if near else "text" if name.casefold() in OF_THE_TEXT else None


def foreign_placeholders(file: Path, spec: JobSpec, known: Collection[str]) -> Iterator[str]:
    """Yield a warning with the corrected line for each prompt line that has unfilled placeholders.

    `known` has the documents' field names. Other names in braces may be meant as written.
    """
    written: Sequence[str] = ()
    for index, task in enumerate(spec.tasks):
        for field, text in (("prompt", task.prompt), ("system", task.system)):
            for line in _lines_at_fault(text or "", known):
                written = written or read_text(file).split("\n")
                place = ("tasks", index, field)
                first = line_of(place, lines_of(file)) or 1
                yield _warning(file, spell(place), written, first, line, known)


def _lines_at_fault(text: str, known: Collection[str]) -> Iterator[str]:
    bare = _TEMPLATE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for line, original in zip(bare.split("\n"), text.split("\n"), strict=True):
        if any(_field(found, known) for found in _FOREIGN.finditer(line)):
            yield original


def _field(found: re.Match[str], known: Collection[str]) -> str | None:
    name = found["name"] or found["key"] or found["dollar"] or found["percent"]
    if name is None:
        return None
    is_braced = found["dollar"] is None
    return name if name in known else "text" if is_braced and name.casefold() in OF_THE_TEXT else None


def _warning(file: Path, field: str, written: Sequence[str], first: int, line: str, known: Collection[str]) -> str:
    names = [found[0] for found in _FOREIGN.finditer(line) if _field(found, known)]
    number, source = first, line
    for at, one in enumerate(written[first - 1 :], first):
        if all(name in one for name in names):
            number, source = at, one
            break
    place = InputError("", file=file, line=number, field=field).where
    told = f"{' and '.join(dict.fromkeys(names))} {'is' if len({*names}) == 1 else 'are'} sent as written"
    return f"{place}: {told}; write  {_corrected(source.strip(), known)}"


def _corrected(line: str, known: Collection[str]) -> str:
    kept = [found.span() for found in _TEMPLATE.finditer(line)]

    def replaced(found: re.Match[str]) -> str:
        field = _field(found, known)
        if field is None or any(start <= found.start() < end for start, end in kept):
            return found[0]
        return f"{{{{ {field}{found['slice'] or ''} }}}}"

    text = _FOREIGN.sub(replaced, line)
    at = text.find("{{")
    start, end = max(0, at - MOST_SHOWN), at + 2 * MOST_SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
