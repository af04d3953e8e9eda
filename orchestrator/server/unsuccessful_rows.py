"""Copies a batch's unsuccessful rows from its input file to the input file of another batch."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Collection
from pathlib import Path

from orchestrator.core.batch_api import JSON_ERRORS, ResultLine
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.request_lines import id_key, lines
from orchestrator.server.ordered_results import custom_id_of

CAUSES = ("failed", "expired", "cancelled")
CAUSE_OF_CODE = {"batch_expired": "expired", "batch_cancelled": "cancelled"}

_decode = json_decoder(ResultLine).decode


def copy_leftovers(source: Path, errors: Path, target: Path, causes: Collection[str]) -> int:
    """Copy the rows of `source` that `errors` lists with one of these causes. Return the bytes written and synced.

    Streams the files, with eight bytes in memory for each row of the error file. Raises OSError. After an error,
    `target` does not exist.
    """
    keys = _keys(errors, causes)
    try:
        with source.open("rb") as given, target.open("xb") as taken:
            for _, _, raw in lines(given):
                name = custom_id_of(raw)
                if name is not None and _holds(keys, id_key(name)):
                    taken.write(raw + b"\n")
            taken.flush()
            os.fsync(taken.fileno())
            return taken.tell()
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _keys(errors: Path, causes: Collection[str]) -> array[int]:
    keys = array("Q")
    with errors.open("rb") as file:
        for raw in file:
            try:
                row = _decode(raw)
            except JSON_ERRORS:
                continue  # a damaged disk: the row of this line is unknown
            if row.custom_id is not None and _cause(row) in causes:
                keys.append(id_key(row.custom_id))
    return array("Q", sorted(keys))


def _cause(row: ResultLine) -> str:
    code = row.error.get("code") if isinstance(row.error, dict) else None
    return CAUSE_OF_CODE.get(code, "failed") if isinstance(code, str) else "failed"


def _holds(keys: array[int], key: int) -> bool:
    found = bisect_left(keys, key)
    return found < len(keys) and keys[found] == key
