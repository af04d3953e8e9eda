"""A Word document's definitions of headings and list numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from orchestrator.documents.list_numbers import Level, Lists
from orchestrator.documents.office_package import Package, Relation

MOST_PARENTS = 20
"""Maximum ancestors of a style; more mean a loop."""
MOST_PATTERN = 100
"""Maximum characters of a number pattern; Word allows 255."""
BODY_TEXT = 9
"""Outline level of body text, which is not a heading."""


class Properties(Struct):
    """Properties that a paragraph or style states itself; None if not stated."""

    style: str | None = None
    number: str | None = None  # the list's; "0" means no list
    level: int | None = None
    outline: int | None = None

    def take(self, name: str, value: str) -> None:
        if name == "pStyle":
            self.style = value
        elif name == "numId":
            self.number = value
        elif name == "ilvl" and value.isdigit():
            self.level = int(value)
        elif name == "outlineLvl" and value.isdigit():
            self.outline = int(value)


class _Abstract(Struct):
    """Numbering shared by several lists. `of_styles` maps paragraph styles to their levels."""

    levels: dict[int, Level] = field(default_factory=dict)
    of_styles: dict[str, int] = field(default_factory=dict)


class Styles:
    """The styles and lists of a document. Creation raises the errors of reading a package."""

    def __init__(self, package: Package, relations: Sequence[Relation]) -> None:
        self._styles: dict[str, Properties] = {}
        self._titles: set[str] = set()
        self._abstracts: dict[str, _Abstract] = {}
        self._numbers: dict[str, str] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._overrides = overrides = dict[str, _Abstract]()
        self._lists = Lists()
        for relation in relations:
            if relation.kind == "styles" and package.holds(relation.target):
                package.parse(relation.target, _StyleReader(self._styles, self._titles).start)
            elif relation.kind == "numbering" and package.holds(relation.target):
                reader = _NumberingReader(self._abstracts, self._numbers, self._starts, overrides)
                package.parse(relation.target, reader.start)
        for name, abstract in self._numbers.items():
            levels = self._abstracts.get(abstract, _Abstract()).levels | overrides.get(name, _Abstract()).levels
            for level, how in levels.items():
                self._lists.define(name, level, how)

    def mark(self, given: Properties) -> str:
        """Return a paragraph's prefix: a heading sign, and a number (counted here) or bullet."""
        chain = self._chain(given)
        number = next((one.number for one in chain if one.number is not None), None)
        outline = next((one.outline for one in chain if one.outline is not None), BODY_TEXT)
        sign = ""
        if outline < BODY_TEXT:
            sign = "#" * min(outline + 1, 6) + " "
        elif given.style in self._titles:
            sign = "# "
        if number is None or number == "0" or number not in self._numbers:
            return sign
        mark = self._number(number, self._level(chain, number))
        return sign + mark.lstrip() if sign else mark

    def _chain(self, given: Properties) -> list[Properties]:
        """Return the paragraph's own properties, then its style's, then its style's base's, and so on."""
        chain = [given]
        style = given.style
        while style in self._styles and len(chain) < MOST_PARENTS:
            chain.append(self._styles[style])
            style = self._styles[style].style
        return chain

    def _level(self, chain: list[Properties], number: str) -> int:
        own = next((one.level for one in chain if one.level is not None), None)
        if own is not None:
            return own
        of_styles = self._abstracts.get(self._numbers[number], _Abstract()).of_styles
        return of_styles.get(chain[0].style or "", 0)

    def _number(self, number: str, level: int) -> str:
        # A list with its own number format counts separately, as annexes do after clauses.
        is_own = bool(self._overrides[number].levels)
        counter = f"list {number}" if is_own else f"abstract {self._numbers[number]}"
        start = self._starts.pop((number, level), None)
        if start is not None:
            self._lists.restart(counter, level, start)
        return self._lists.mark(number, level, counter)


def value_of(attributes: dict[str, str], name: str = "val") -> str:
    return next((value for key, value in attributes.items() if key.rpartition("}")[2] == name), "")


class _StyleReader:
    def __init__(self, styles: dict[str, Properties], titles: set[str]) -> None:
        self._styles = styles
        self._titles = titles
        self._ident = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition("}")[2]
        if name == "style":
            self._ident = value_of(attributes, "styleId")
            self._styles[self._ident] = Properties()
        elif self._ident and name == "basedOn":
            self._styles[self._ident].style = value_of(attributes)
        elif self._ident and name == "name" and value_of(attributes).lower() == "title":
            self._titles.add(self._ident)
        elif self._ident and name != "pStyle":
            self._styles[self._ident].take(name, value_of(attributes))


class _NumberingReader:
    def __init__(
        self,
        abstracts: dict[str, _Abstract],
        numbers: dict[str, str],
        starts: dict[tuple[str, int], int],
        overrides: dict[str, _Abstract],
    ) -> None:
        self._overrides = overrides
        self._abstracts = abstracts
        self._numbers = numbers
        self._starts = starts
        self._abstract = _Abstract()
        self._number = ""
        self._level = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name, value = tag.rpartition("}")[2], value_of(attributes)
        if name == "abstractNum":
            self._abstract = self._abstracts[value_of(attributes, "abstractNumId")] = _Abstract()
            self._number = ""
        elif name == "num":
            self._number = value_of(attributes, "numId")
            self._abstract = self._overrides[self._number] = _Abstract()
        elif name == "abstractNumId":
            self._numbers[self._number] = value
        elif name == "lvlOverride":
            self._level = _small(value_of(attributes, "ilvl"))
        elif name == "lvl":
            self._level = _small(value_of(attributes, "ilvl"))
            self._abstract.levels[self._level] = Level("decimal", "")
        elif name == "startOverride":
            self._starts[self._number, self._level] = _small(value)
        elif name == "pStyle":
            self._abstract.of_styles[value] = self._level
        elif self._level in self._abstract.levels:
            self._describe(name, value)

    def _describe(self, name: str, value: str) -> None:
        how = self._abstract.levels[self._level]
        if name == "start":
            how = how._replace(start=_small(value))
        elif name == "numFmt":
            how = how._replace(shape=value)
        elif name == "lvlText":
            how = how._replace(pattern=value[:MOST_PATTERN])
        elif name == "isLgl":
            how = how._replace(is_legal=value not in ("0", "false"))
        self._abstract.levels[self._level] = how


def _small(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 6 else 0


class NoteNumbers:
    """Numbers of notes and comments, in the order of the text."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts = Counter[str]()

    def label(self, kind: str, ident: str) -> str:
        if (kind, ident) not in self._numbers:
            self._counts[kind] += 1
            self._numbers[kind, ident] = self._counts[kind]
        number = self._numbers[kind, ident]
        return {"footnote": f"[^{number}]", "endnote": f"[^e{number}]"}.get(kind, f"[comment {number}]")
