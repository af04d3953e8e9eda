"""Types shared by orch.toml and job files: a base class, variable names, paths, and the models of an alias."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema, core_schema

from orchestrator.core.variable_names import variable_problem
from orchestrator.settings.model_lists import MOST as MOST_RUNGS

_IN_PATH = re.compile(r"(?:^|[/\\])\$\{?[A-Za-z_]")
_NUMBERS = {int, float, Decimal}


def _plain(annotation: Any) -> Iterator[Any]:
    """Yield the type inside `Annotated`. Yield nothing if the annotation has a `BeforeValidator`."""
    if get_origin(annotation) is not Annotated:
        yield annotation
        return
    kind, *extras = get_args(annotation)
    if not any(isinstance(extra, BeforeValidator) for extra in extras):
        yield from _plain(kind)


class OnUse:
    """Annotation of a part whose validator is built on first use, because most files use few parts."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(source.model_validate)


class Strict(BaseModel):
    """A part of orch.toml or a job file that rejects unknown fields, NaN, infinity, and true or false as a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_flag(cls, value: Any, info: ValidationInfo) -> Any:
        """Raise ValueError for a boolean in a numeric field. Pydantic would read true as 1."""
        if isinstance(value, bool):
            field = cls.model_fields[str(info.field_name)]
            kinds = {kind for arg in (field.annotation, *get_args(field.annotation)) for kind in _plain(arg)}
            reads = any(isinstance(extra, BeforeValidator) for extra in field.metadata)
            if kinds & _NUMBERS and bool not in kinds and not reads:
                raise ValueError("is true or false, but must be a number")
        return value


def _variable_name(text: str) -> str:
    if (problem := variable_problem(text)) is not None:
        raise ValueError(problem)
    return text


VariableName = Annotated[str, AfterValidator(_variable_name)]
"""The name of an environment variable that holds a secret."""


def _plain_path(text: str) -> str:
    if _IN_PATH.search(text):
        raise ValueError("variables are not filled in: write the path itself; ~ is your home folder")
    return text


PlainPath = Annotated[str, AfterValidator(_plain_path)]
"""A path that must not contain a $VARIABLE, because orch does not expand variables."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty: write the name that the backend calls the model")
    return text


_MODEL_NAME = Annotated[str, AfterValidator(_not_blank)]


def _form(value: Any) -> str | None:
    match value:
        case str():
            return "(name)"
        case dict():
            return "(names)"
        case list() | tuple():
            return "(list)"
    return None


_NAMES = Annotated[_MODEL_NAME, Tag("(name)")] | Annotated[dict[str, _MODEL_NAME], Tag("(names)")]
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
"""Value of an alias in a file: `Names`, or a tuple of `Names`, cheapest first."""
