"""Batch input file of a shard: its request lines, as the model at its backend takes them."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from orchestrator.backends import line_digest
from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.core.shards import Shard
from orchestrator.pipeline.dialects import LineWriter
from orchestrator.settings.home import Home
from orchestrator.store import Store


def input_digests(store: Store, home: Home, shard: Shard, writer: LineWriter) -> dict[str, bytes]:
    """Return the digest of each line of a shard as it is sent, by custom_id. Raises JobFilesError."""
    path = home.shard_input(shard.id)
    write_input(store, home, shard, path, writer)
    with path.open("rb") as file:
        return {
            row.custom_id: line_digest(line) for row, line in zip(store.rows.of_shard(shard.id), file, strict=True)
        }


def take_lines(source: Path, target: Path, wanted: Collection[bytes]) -> None:
    """Append the lines of an input file with these digests to another. Raises JobFilesError."""
    try:
        with source.open("rb") as lines, target.open("ab") as taken:
            taken.writelines(line for line in lines if line_digest(line) in wanted)
            taken.flush()
            os.fsync(taken.fileno())
    except OSError as error:
        raise JobFilesError(f"cannot write {target}: {error}", hint="free disk space, then run it again") from error


def write_input(store: Store, home: Home, shard: Shard, path: Path, writer: LineWriter) -> None:
    """Write the shard's lines in order, as its backend takes them."""
    source_path = home.requests(shard.job_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a copy of the home may hold the former file by another name
        with source_path.open("rb") as source, path.open("wb") as target:
            for row in store.rows.of_shard(shard.id):
                source.seek(row.span.offset)
                line = source.read(row.span.length)
                if len(line) != row.span.length:
                    raise InputError("is shorter than when it was built", file=source_path)
                target.write(writer.line(row.task, line) + b"\n")
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JobFilesError(f"cannot write {path}: {error}", hint="free disk space, then run it again") from error
