"""Retention of benches: old rows and points are removed, unless plans use their figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.durations import duration
from orchestrator.core.engines import EngineRates
from orchestrator.core.errors import StorageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.pipeline import disk
from orchestrator.settings.config import Retention
from orchestrator.settings.home import Home
from orchestrator.store import Store

APPLIED = "applied.json"


class _Applied(msgspec.Struct, frozen=True):
    backend: str
    model: str
    measured_at: datetime


def note_applied(folder: Path, rates: EngineRates) -> None:
    """Record in a bench's folder that plans use its figures. Raises StorageError."""
    try:
        with durable(folder / APPLIED) as file:
            file.write(msgspec.json.encode(_Applied(rates.backend, rates.model, rates.measured_at)))
    except OSError as error:
        raise StorageError(f"{folder / APPLIED} cannot be written: {error.strerror}") from error


def old_benches(store: Store, home: Home, terms: Retention) -> Iterator[tuple[Path, str]]:
    """Yield each unused bench folder last written longer ago than results are kept, with the reason."""
    span = terms.results if terms.results is not None else terms.jobs
    root = home.root / "bench"
    if span is None or not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        age = _age(folder)
        if age >= span and not _is_applied(store, home, folder):
            yield folder, f"of a bench {duration(age)} ago; results are kept for {duration(span)}"


def _age(folder: Path) -> float:
    """Return the seconds since the last write to a folder, by the modification times of its files."""
    latest = max((folder, *(path for path, _ in disk.files(folder))), key=lambda path: path.stat().st_mtime)
    return time.time() - latest.stat().st_mtime


def _is_applied(store: Store, home: Home, folder: Path) -> bool:
    try:
        told = json_decoder(_Applied).decode((folder / APPLIED).read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, *JSON_ERRORS):
        return True  # keep a bench whose note cannot be read
    known = store.engine_rates.of(home.identity(), told.backend).get(told.model)
    return known is not None and known.measured_at == told.measured_at
