"""Folders in the home that hold a call's question: a job file with its rows, or request lines.

A folder is complete on disk before its job is recorded, so that `orch up` can build the job after the caller is
gone.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.core.atomic import durable
from orchestrator.core.errors import InputError, StorageError
from orchestrator.core.model import Job
from orchestrator.library.frames import Record
from orchestrator.library.row_keys import RowKeys, json_bytes
from orchestrator.pipeline.build.builder import locked
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import spec_of

ROWS = "rows.jsonl"
KEY = "_key"
"""Column with the row's key in the file of rows."""


def name_prefix(job: Job) -> str:
    """Return the prefix of row keys in the names of a job's documents; empty if the job is not from a frame."""
    spec = spec_of(job)
    return f"{ROWS}#" if spec is not None and any(one.id_column == KEY for one in spec.documents) else ""


class JobFolder(Struct, frozen=True):
    """A written question: its file for `pipeline.build.submission`, and the keys of its rows in order."""

    file: Path
    keys: Sequence[str] = ()


def write_frame(
    home: Home, name: str, spec: Mapping[str, Any], records: Iterable[Record], id_columns: Sequence[str],
    text: str | None, *, is_named: bool,
) -> JobFolder:  # fmt: skip
    """Write a job file and its rows. `text` is the column with the document's text, which must be text.

    Raises InputError, StorageError.
    """
    keys = RowKeys(id_columns)
    found: list[str] = []

    def lines() -> Iterator[bytes]:
        for number, record in enumerate(records):
            with _naming_field(f"row {number}", record):
                _refuse_bytes(number, record)
                key = keys.key(record)
                found.append(key)
                if text is not None and not isinstance(value := record[text], str | None):
                    record = {**record, text: _as_text(value)}
                yield json_bytes({KEY: key, **record})

    return JobFolder(_written(home, name, spec, {ROWS: lines()}, is_named=is_named), found)


@contextmanager
def _naming_field(name: str, record: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        field = next((str(field) for field, value in record.items() if not _is_json(value)), None)
        raise InputError(
            f"{name} cannot be written as JSON: {error}", field=field, hint="give text, numbers, lists and dicts"
        ) from None


def _refuse_bytes(number: int, record: Mapping[str, Any]) -> None:
    for name, value in record.items():
        if isinstance(value, bytes | bytearray | memoryview):
            # JSON would hold bytes in base64.
            raise InputError(f"row {number} has bytes", field=name, hint="decode them: a prompt is text")


def _is_json(value: Any) -> bool:
    try:
        json_bytes(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _as_text(value: Any) -> Any:
    """Return a number or date as text, and a missing value as None."""
    plain = json.loads(json_bytes(value))
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def write_documents(home: Home, name: str, spec: Mapping[str, Any], *, is_named: bool) -> JobFolder:
    """Write a job file that asks about documents. Raises StorageError."""
    return JobFolder(_written(home, name, spec, {}, is_named=is_named))


def write_requests(home: Home, name: str, requests: Iterable[Mapping[str, Any]], url: str) -> JobFolder:
    """Write request bodies as a batch file. Raises InputError, StorageError."""
    keys = RowKeys(())
    found: list[str] = []

    def lines() -> Iterator[bytes]:
        for number, body in enumerate(requests):
            if not isinstance(body, Mapping):
                raise InputError(f"is {type(body).__name__} instead of a dict", field=f"params[{number}]")
            with _naming_field(f"params[{number}]", body):
                key = keys.key(body)
                found.append(key)
                yield json_bytes({"custom_id": key, "method": "POST", "url": url, "body": body})

    return JobFolder(_written(home, name, None, {f"{name}.jsonl": lines()}, is_named=True), found)


def turn_of(home: Home, name: str | None) -> AbstractContextManager[object]:
    """Return a lock on a named folder. Hold it from writing to reading, because other calls overwrite the folder."""
    return nullcontext() if name is None else locked(home.frames / f".{name}.lock", wait=True)


def _written(
    home: Home, name: str, spec: Mapping[str, Any] | None, parts: Mapping[str, Iterable[bytes]], *, is_named: bool
) -> Path:
    """Write the files of a job and return its job file or batch file.

    A named folder is overwritten. The name of an unnamed folder is a digest of its question and rows. The rows'
    digest also names the job file's source, so that different rows make a different job.
    """
    home.identity()  # creates the home, readable by its owner only
    digest = hashlib.sha256()
    with _temporary(home) as folder:
        for part, lines in parts.items():
            with durable(folder / part) as file:
                for line in lines:
                    digest.update(line)
                    file.write(line + b"\n")
        if spec is not None:
            if not is_named:
                name = f"{name}-{hashlib.sha256(_as_bytes(spec)).hexdigest()[:12]}"
            if parts:
                rows = digest.hexdigest()[:12]
                name = name if is_named else f"{name}.{rows}"
                spec = {**spec, "documents": [{"name": rows, **source} for source in spec["documents"]]}
            with durable(folder / "job.yaml") as file:
                file.write(_as_bytes(spec) + b"\n")
        target = home.frames / name
        target.mkdir(exist_ok=True)
        for path in sorted(folder.iterdir(), reverse=True):  # rows.jsonl first, because job.yaml names it
            path.replace(target / path.name)
    return target / ("job.yaml" if spec is not None else f"{name}.jsonl")


def _as_bytes(spec: Mapping[str, Any]) -> bytes:
    return json.dumps(spec, indent=2, ensure_ascii=False, default=str).encode()


@contextmanager
def _temporary(home: Home) -> Iterator[Path]:
    folder = home.frames / f".{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    except OSError as error:
        raise StorageError(f"cannot write {error.filename or folder}: {error.strerror}") from error
