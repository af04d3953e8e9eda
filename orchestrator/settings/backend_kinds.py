"""Any backend of orch.toml, told apart by its `kind`."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Tag

from orchestrator.settings.backend_packages import hosted_kinds
from orchestrator.settings.backends import Backend, EnginesBackend, LocalBackend, RayBackend, SyncBackend


def _kind(data: Any) -> str:
    kind = data.get("kind", "local") if isinstance(data, dict) else getattr(data, "kind", "local")
    return f"({kind})"


def _any_backend() -> Any:
    hosted = hosted_kinds()
    own = {"local": LocalBackend, "engines": EnginesBackend, "ray": RayBackend}
    classes: dict[str, type[Any]] = {**own, **hosted, "sync": SyncBackend}
    # The brackets keep tags distinct from the keys of a file (see `located`).
    members = reduce(or_, (Annotated[settings, Tag(f"({kind})")] for kind, settings in classes.items()))
    told = f"kind must be one of {', '.join(classes)}"
    discriminator = Discriminator(_kind, custom_error_type="unknown_kind", custom_error_message=told)
    return Annotated[members, discriminator]


if TYPE_CHECKING:
    AnyBackend = Backend
else:
    AnyBackend = _any_backend()
