"""Glob patterns, matched one path component at a time, so that a walk can skip folders that cannot match.

The meaning is pathlib's: `*`, `?` and `[...]` stay within one component, `**` is any number of folders, and case
matters. Hidden names (`.git`) match only a component that itself starts with a dot.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from orchestrator.core.errors import InputError

# The progress of each pattern: (pattern, index of the component that the next name must match).
State = frozenset[tuple[int, int]]

_MAGIC = re.compile(r"[*?\[]")


class Component:
    """One component of a pattern. `literal` is set if only one name matches."""

    __slots__ = ("any_depth", "literal", "match")

    def __init__(self, text: str, *, hidden: bool) -> None:
        self.any_depth = text == "**"
        self.literal = None if _MAGIC.search(text) else text
        guard = "" if hidden or text.startswith((".", "[.")) else r"(?!\.)"
        self.match = re.compile(guard + fnmatch.translate(text)).match


class Globs:
    """A set of patterns. With `hidden=True`, wildcards match hidden names, as exclusions should.

    Raises InputError for a pattern that is empty, absolute, or contains `..`.
    """

    def __init__(self, patterns: Iterable[str], *, field: str, hidden: bool = False) -> None:
        self._hidden = hidden
        self._patterns = [_components(p, field=field, hidden=hidden) for p in patterns]
        self.start: State = self._closed((i, 0) for i in range(len(self._patterns)))

    def descend(self, state: State, name: str) -> State:
        """Return the state below the folder `name`. If the state is empty, nothing in the folder can match."""
        steps = []
        for i, at in state:
            part = self._patterns[i][at]
            if part.any_depth:
                if self._hidden or not name.startswith("."):
                    steps.append((i, at))
            elif at + 1 < len(self._patterns[i]) and part.match(name):
                steps.append((i, at + 1))
        return self._closed(steps)

    def accepts(self, state: State, name: str) -> bool:
        """Return True if `name`, in the folder of `state`, matches a whole pattern."""
        for i, at in state:
            parts = self._patterns[i]
            if at == len(parts) - 1 and parts[at].match(name):
                return True
        return False

    def names(self, state: State, name: str) -> bool:
        """Return True if the next component of a pattern is exactly `name`, without a wildcard."""
        return any(self._patterns[i][at].literal == name for i, at in state)

    def match(self, relative: str) -> bool:
        *folders, name = relative.split("/")
        state = self.start
        for folder in folders:
            state = self.descend(state, folder)
        return self.accepts(state, name)

    def _closed(self, steps: Iterable[tuple[int, int]]) -> State:
        """Add the steps past each `**`, because `**` may match no folder."""
        closed = set()
        for i, at in steps:
            closed.add((i, at))
            while self._patterns[i][at].any_depth:
                at += 1
                closed.add((i, at))
        return frozenset(closed)


def _components(pattern: str, *, field: str, hidden: bool) -> list[Component]:
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise InputError(
            f"The pattern {pattern!r} must be relative to the source's path and stay below it.", field=field
        )
    parts = [p for p in pattern.split("/") if p not in ("", ".")]
    if not parts:
        raise InputError("An empty pattern matches nothing; write for example '**/*.txt'.", field=field)
    if pattern.endswith("/") and not hidden:
        parts.append("**")
    if parts[-1] == "**":
        parts.append("*")
    return [Component(p, hidden=hidden) for p in parts]
