"""Checks for libraries that are installed as extras."""

from __future__ import annotations

from importlib.util import find_spec

from orchestrator.core.errors import UsageError


def install_line(extra: str) -> str:
    """Return the commands that install an extra; README says how to replace `orch-batch` until it is on PyPI."""
    return f"pip install 'orch-batch[{extra}]'; in a checkout: pip install '.[{extra}]'"


def require_parquet(what: str) -> None:
    """Raise UsageError if Parquet support is not installed; `what` names the feature that needs it."""
    if find_spec("pyarrow") is None:
        raise UsageError(f"{what}: Parquet needs the extra `parquet`", hint=install_line("parquet"))


def require_xlsx(what: str) -> None:
    """Raise UsageError if workbooks cannot be written; `what` names the feature that needs them."""
    if find_spec("xlsxwriter") is None:
        raise UsageError(f"{what}: .xlsx needs the extra `xlsx`", hint=install_line("xlsx"))


def require_mcp() -> None:
    """Raise UsageError if the Model Context Protocol's library is not installed."""
    if find_spec("mcp") is None:
        raise UsageError("`orch mcp` needs the extra `mcp`", hint=install_line("mcp"))


def require_otel() -> None:
    """Raise UsageError if telemetry support is not installed."""
    try:
        found = find_spec("opentelemetry.proto.collector")
    except ModuleNotFoundError:  # a parent package is missing
        found = None
    if found is None:
        raise UsageError("[telemetry] needs the extra `otel`", hint=install_line("otel"))
