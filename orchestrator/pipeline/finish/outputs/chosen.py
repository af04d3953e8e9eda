"""A table with the columns that its user names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.pipeline.finish.outputs.layout import TableLayout


class ChosenColumns:
    """Another layout's columns, some of them, in an order of one's own."""

    def __init__(self, layout: TableLayout, names: Sequence[str]) -> None:
        """Raise UsageError for a name that is no column of the layout."""
        self._layout = layout
        places = {column.name: place for place, column in enumerate(layout.columns)}
        for name in names:
            if name not in places:
                near = difflib.get_close_matches(name, places, 1)
                hint = f"did you mean {near[0]}?" if near else f"its columns: {', '.join(places)}"
                raise UsageError(f"the table has no column {name!r}", hint=hint)
        self._places = [places[name] for name in dict.fromkeys(names)]
        self.columns = tuple(layout.columns[place] for place in self._places)

    def records(self, lines: Iterable[bytes]) -> Iterable[bytes]:
        """Yield what the other layout yields."""
        return self._layout.records(lines)

    def cells(self, record: bytes) -> list[Any]:
        """Return the chosen cells of a table row."""
        cells = self._layout.cells(record)
        return [cells[place] for place in self._places]
