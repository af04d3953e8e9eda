"""Run batch LLM jobs over documents and frames, by a deadline you set and at the lowest cost."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orchestrator.core.version import __version__

if TYPE_CHECKING:
    from orchestrator.core.errors import (
        BackendError,
        InputError,
        JobFailed,
        OrchError,
        RefusedError,
        RequestRefused,
        RowError,
        StorageError,
        UsageError,
    )
    from orchestrator.library.answers import AnsweredRow, AnswerRow, Answers, FailedRow
    from orchestrator.library.calls import batch, documents, frame, open_job, requests
    from orchestrator.library.calls import map_rows as map  # noqa: A004
    from orchestrator.library.drafts import DocumentDraft, Documents, FrameDraft
    from orchestrator.library.handles import JobHandle
    from orchestrator.library.plan_reports import PlanReport

__all__ = [
    "AnswerRow", "AnsweredRow", "Answers", "BackendError", "DocumentDraft", "Documents", "FailedRow", "FrameDraft",
    "InputError", "JobFailed", "JobHandle", "OrchError", "PlanReport", "RefusedError", "RequestRefused", "RowError",
    "StorageError", "UsageError", "__version__", "batch", "documents", "frame", "map", "open_job", "requests",
]  # fmt: skip
_PLACES = {
    **dict.fromkeys(("AnswerRow", "AnsweredRow", "Answers", "FailedRow"), "orchestrator.library.answers"),
    "DocumentDraft": "orchestrator.library.drafts",
    "Documents": "orchestrator.library.drafts",
    "FrameDraft": "orchestrator.library.drafts",
    "JobHandle": "orchestrator.library.handles",
    "PlanReport": "orchestrator.library.plan_reports",
    **dict.fromkeys(("batch", "documents", "frame", "map", "open_job", "requests"), "orchestrator.library.calls"),
}


_OTHERWISE = {"map": "map_rows"}
"""Public names that differ from the library's function names, because the public name would hide a built-in."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import orchestrator` alone loads nothing."""
    if name == "documents":
        return import_module("orchestrator.documents")
    if name not in __all__:
        raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
    is_collecting = gc.isenabled()
    gc.disable()  # imports create many objects that live to the end, and a collection among them finds nothing
    try:
        module = import_module(_PLACES.get(name, "orchestrator.core.errors"))
    finally:
        if is_collecting:
            gc.enable()
    value = globals()[name] = getattr(module, _OTHERWISE.get(name, name))
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Documents(ModuleType):
    # `orchestrator.documents` is both a package and a function of the library, so its help is the function's.
    __doc__ = property(lambda _: import_module("orchestrator.library.calls").documents.__doc__)

    @property
    def __signature__(self) -> Any:
        return import_module("inspect").signature(import_module("orchestrator.library.calls").documents)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        return import_module("orchestrator.library.calls").documents(*arguments, **more)


class _Package(ModuleType):
    """This package; on import of a subpackage, Python sets it here as an attribute."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "documents" and isinstance(value, ModuleType):
            value.__class__ = _Documents
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
