"""Readers from other packages. Each is an entry point of the group `orch.readers`, named after its file ending.

Only worker processes import a plug-in, so that the limits of all readers apply to it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from orchestrator.core.errors import InputError
from orchestrator.documents.encoding import clean

GROUP = "orch.readers"
Extract = Callable[[bytes, str | None, int], tuple[str, dict[str, Any]]]
"""Takes bytes, their encoding if the user sets it, and the maximum characters of the text. Returns text and
fields.
"""


class Plugin(NamedTuple):
    """A reader for files with one ending: a function `(data: bytes, most: int) -> str | (str, fields)`."""

    ending: str
    module: str
    function: str
    root: str  # the folder to import the module from; empty if the path has it
    version: str

    def extractor(self) -> Extract:
        """Import the function and return it in the form of orch's own readers. Raises any error of the import."""
        if self.root and self.root not in sys.path:
            sys.path.append(self.root)
        found: Any = importlib.import_module(self.module)
        for name in self.function.split("."):
            found = getattr(found, name)

        def extract(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
            del encoding
            given = found(data, most)
            text, fields = given if isinstance(given, tuple) else (given, {})
            return clean(text), dict(fields)

        return extract


@cache
def installed() -> Mapping[str, Plugin]:
    """Return the installed plug-ins by ending. Raises InputError if two read the same ending."""
    from importlib import metadata

    found: dict[str, Plugin] = {}
    for point in metadata.entry_points(group=GROUP):
        package = point.dist
        version = f"{package.name} {package.version}" if package is not None else point.value
        ending = "." + point.name.lower().removeprefix(".")
        plugin = Plugin(ending, point.module, point.attr, _root(point.module), version)
        if ending in found and found[ending] != plugin:
            raise InputError(
                f"Two plug-ins read {ending} files: {found[ending].version} and {version}; uninstall one of them."
            )
        found[ending] = plugin
    return found


def _root(module: str) -> str:
    """Return the folder that holds a module's top package, without importing the package."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return ""
    folder = os.path.dirname(spec.origin)
    return os.path.dirname(folder) if spec.submodule_search_locations is not None else folder
