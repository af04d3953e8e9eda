"""What only some need, and is installed as an extra."""

from __future__ import annotations

from importlib.util import find_spec

from orchestrator.core.errors import UsageError


def require_parquet(what: str) -> None:
    """Raises UsageError where Parquet can be neither read nor written here; `what` needs it."""
    if find_spec("pyarrow") is None:
        raise UsageError(
            f"{what}: Parquet needs pyarrow, which is not installed", hint="pip install 'orch-batch[parquet]'"
        )


def require_otel() -> None:
    """Raises UsageError where telemetry cannot be encoded here."""
    try:
        found = find_spec("opentelemetry.proto.collector")
    except ModuleNotFoundError:  # a folder above it is missing
        found = None
    if found is None:
        raise UsageError(
            "[telemetry] needs opentelemetry-proto, which is not installed", hint="pip install 'orch-batch[otel]'"
        )
