"""A shard's batch input file: its request lines, with the model's name at its backend."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.core.shards import Shard
from orchestrator.policy.model_names import with_model
from orchestrator.settings.home import Home
from orchestrator.store import Store


def write_input(store: Store, home: Home, shard: Shard, path: Path, model: str | None) -> None:
    """The shard's lines, in their order, with the model's name at this backend."""
    rename = model if model is not None and model != shard.model else None
    source_path = home.requests(shard.job_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # what copies the home may hold the former one by another name
        with source_path.open("rb") as source, path.open("wb") as target:
            for row in store.rows.of_shard(shard.id):
                source.seek(row.span.offset)
                line = source.read(row.span.length)
                if len(line) != row.span.length:
                    raise InputError("is shorter than when it was built", file=source_path)
                target.write((with_model(line, rename) if rename else line) + b"\n")
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JobFilesError(f"cannot write {path}: {error}", hint="free disk space, then run it again") from error
