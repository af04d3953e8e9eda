"""Imports of libraries that only an extra installs."""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.core.extras import install_line
from orchestrator.documents.types import unsupported


def require(module: str, what: str, extra: str) -> Any:
    """Import and return an optional module.

    Raises ExtractionError (unsupported), with the install command, if the module is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise unsupported(
            f"Reading {what} needs the extra `{extra}`: {install_line(extra)}; or exclude it."
        ) from None
