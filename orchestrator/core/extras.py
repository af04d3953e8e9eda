"""Checks for libraries that are installed as extras."""

from __future__ import annotations

from importlib.util import find_spec

from orchestrator.core.errors import UsageError


def require_parquet(what: str) -> None:
    """Raise UsageError, naming `what` needs it, if Parquet support is not installed."""
    if find_spec("pyarrow") is None:
        raise UsageError(
            f"{what}: Parquet needs pyarrow, which is not installed", hint="pip install 'orch-batch[parquet]'"
        )


def require_xlsx(what: str) -> None:
    """Raise UsageError, naming `what` needs it, if workbooks cannot be written."""
    if find_spec("xlsxwriter") is None:
        raise UsageError(
            f"{what}: .xlsx needs XlsxWriter, which is not installed", hint="pip install 'orch-batch[xlsx]'"
        )


def require_mcp() -> None:
    """Raise UsageError if the Model Context Protocol's library is not installed."""
    if find_spec("mcp") is None:
        raise UsageError("`orch mcp` needs mcp, which is not installed", hint="pip install 'orch-batch[mcp]'")


def require_otel() -> None:
    """Raise UsageError if telemetry support is not installed."""
    try:
        found = find_spec("opentelemetry.proto.collector")
    except ModuleNotFoundError:  # a parent package is missing
        found = None
    if found is None:
        raise UsageError(
            "[telemetry] needs opentelemetry-proto, which is not installed", hint="pip install 'orch-batch[otel]'"
        )
