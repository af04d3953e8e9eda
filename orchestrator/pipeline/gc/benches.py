"""Benches that retention lets go: their rows and points. Those whose figures plans go by stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from orchestrator.core.atomic import durable
from orchestrator.core.durations import duration
from orchestrator.core.engines import EngineRates
from orchestrator.core.errors import StorageError
from orchestrator.core.wire import JSON_ERRORS
from orchestrator.pipeline.gc import disk
from orchestrator.settings.config import Retention
from orchestrator.settings.home import Home
from orchestrator.store import Store

APPLIED = "applied.json"


class _Applied(msgspec.Struct, frozen=True):
    """Whose figures a bench gave to the database, and when it measured them."""

    backend: str
    model: str
    measured_at: datetime


def note_applied(folder: Path, rates: EngineRates) -> None:
    """Say in the folder of a bench that these figures of it are what plans go by. Raises StorageError."""
    try:
        with durable(folder / APPLIED) as file:
            file.write(msgspec.json.encode(_Applied(rates.backend, rates.model, rates.measured_at)))
    except OSError as error:
        raise StorageError(f"{folder / APPLIED} cannot be written: {error.strerror}") from error


def old_benches(store: Store, home: Home, terms: Retention) -> Iterator[tuple[Path, str]]:
    """The folders of benches that have not been touched for longer than results are kept, each with the reason."""
    span = terms.results if terms.results is not None else terms.jobs
    root = home.root / "bench"
    if span is None or not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        age = _age(folder)
        if age >= span and not _is_applied(store, home, folder):
            yield folder, f"of a bench {duration(age)} ago; results are kept for {duration(span)}"


def _age(folder: Path) -> float:
    """Seconds since it was written to, by the disk's own clock."""
    latest = max((folder, *(path for path, _ in disk.files(folder))), key=lambda path: path.stat().st_mtime)
    return time.time() - latest.stat().st_mtime


def _is_applied(store: Store, home: Home, folder: Path) -> bool:
    """Whether plans go by it: a later bench of the same model takes its place."""
    try:
        told = msgspec.json.decode((folder / APPLIED).read_bytes(), type=_Applied)
    except FileNotFoundError:
        return False
    except (OSError, *JSON_ERRORS):
        return True  # what cannot be read is not for us to remove
    known = store.engine_rates.of(home.identity(), told.backend).get(told.model)
    return known is not None and known.measured_at == told.measured_at
