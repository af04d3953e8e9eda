"""Checks for libraries that are installed as extras."""

from __future__ import annotations

from importlib.util import find_spec

from orchestrator.core.errors import UsageError

_LIBRARIES = {"mcp": "mcp", "otel": "opentelemetry.proto.collector", "parquet": "pyarrow", "xlsx": "xlsxwriter"}


def install_line(extra: str) -> str:
    """Return the commands that install an extra. Until `orch-batch` is on PyPI, the README says what replaces that
    name.
    """
    return f"pip install 'orch-batch[{extra}]'; in a checkout: pip install '.[{extra}]'"


def require(extra: str, what: str) -> None:
    """Raise UsageError if an extra's library is not installed; `what` names the feature that needs it."""
    try:
        found = find_spec(_LIBRARIES[extra])
    except ModuleNotFoundError:  # a parent package is missing
        found = None
    if found is None:
        raise UsageError(f"{what} needs the extra `{extra}`", hint=install_line(extra))
