"""Values of an alias in a job file and in orch.toml; `ladder` interprets them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from orchestrator.settings.model_lists import MOST


def _form(value: Any) -> str | None:
    match value:
        case str():
            return "(name)"
        case dict():
            return "(names)"
        case list() | tuple():
            return "(list)"
    return None


_NAMES = Annotated[str, Tag("(name)")] | Annotated[dict[str, str], Tag("(names)")]
_NO_MODEL = "must be a model's name or a mapping of backends to names"
_List = Annotated[
    tuple[Annotated[_NAMES, Discriminator(_form, custom_error_type="no_model", custom_error_message=_NO_MODEL)], ...],
    Field(min_length=1, max_length=MOST),
]
Ladder = Annotated[
    _NAMES | Annotated[_List, Tag("(list)")],
    Discriminator(
        _form, custom_error_type="no_model", custom_error_message=f"{_NO_MODEL}, or a list of these, cheapest first"
    ),
]
"""Value of an alias in a file: `Names`, or a tuple of them."""
