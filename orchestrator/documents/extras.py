"""Libraries that are installed only on request."""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.core.extras import install_line
from orchestrator.documents.types import unsupported


def require(module: str, what: str, extra: str) -> Any:
    """Return the module. If it is missing, raises ExtractionError (unsupported) with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise unsupported(
            f"Reading {what} needs the extra `{extra}`: {install_line(extra)}; or exclude it."
        ) from None
