"""What the tables of orch.toml share: their base class, names of variables, and models of an alias."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from orchestrator.settings.model_lists import MOST as MOST_RUNGS

_REFERENCE = re.compile(r"\$\{?([A-Z][A-Z_]{,60})\}?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{,99}")


class Strict(BaseModel):
    """A table of orch.toml that rejects unknown fields, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _named(text: str) -> str:
    # It may be a key, typed in the wrong place: no message repeats it.
    if not _VARIABLE.fullmatch(text):
        bare = _REFERENCE.fullmatch(text)
        cure = f": write {bare[1]} alone" if bare else ", such as OPENAI_API_KEY"
        raise ValueError(f"is not the name of an environment variable{cure}")
    return text


VariableName = Annotated[str, AfterValidator(_named)]
"""The name of an environment variable that holds a secret."""


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
    Field(min_length=1, max_length=MOST_RUNGS),
]
Ladder = Annotated[
    _NAMES | Annotated[_List, Tag("(list)")],
    Discriminator(
        _form, custom_error_type="no_model", custom_error_message=f"{_NO_MODEL}, or a list of these, cheapest first"
    ),
]
"""Value of an alias in a file: `Names`, or a tuple of them."""
