"""Type of a backend in orch.toml; the backend's `kind` selects its class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Discriminator, GetCoreSchemaHandler, Tag, TypeAdapter
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from orchestrator.settings.backend_packages import hosted_kinds
from orchestrator.settings.backends import Backend, EnginesBackend, LocalBackend, RayBackend, SyncBackend

_OURS: Mapping[str, type[Any]] = {
    "local": LocalBackend, "engines": EnginesBackend, "ray": RayBackend, "sync": SyncBackend,
}  # fmt: skip


def _tag(data: Any) -> str:
    kind = data.get("kind", "local") if isinstance(data, dict) else getattr(data, "kind", "local")
    return f"({kind})"  # the brackets keep tags distinct from the keys of a file


def _read(data: Any) -> Any:
    tag = _tag(data)
    if ByKind.member(tag) is None:
        kinds = sorted({**_OURS, **hosted_kinds()}, key="sync".__eq__)  # `sync` last, as the rarest kind
        raise PydanticCustomError("unknown_kind", f"kind must be one of {', '.join(kinds)}")
    return _reader(tag).validate_python(data)


@cache
def _reader(tag: str) -> TypeAdapter[Any]:
    one: Any = Annotated[ByKind.member(tag), Tag(tag)]
    return TypeAdapter(Annotated[one | Annotated[None, Tag("")], Discriminator(_tag)])  # a union has two members


class ByKind:
    """Reader of a backend's settings. It imports and builds only the classes of kinds that the file uses."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_read)

    @staticmethod
    def member(tag: str | int) -> type[Any] | None:
        """Return the class for a tag in an error's path, such as `(local)`; None if the kind is unknown."""
        kind = str(tag)[1:-1]
        return _OURS.get(kind) or hosted_kinds().get(kind)


AnyBackend = Annotated[Backend, ByKind()]
