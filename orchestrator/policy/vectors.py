"""Vectors in the answers of `/v1/embeddings`. Pure."""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode
from math import isfinite

import msgspec

from orchestrator.core.wire import JSON_ERRORS

FLOAT_BYTES = 4


class NoVector(Exception):
    """An answer without one usable vector; the message says why."""


class _Entry(msgspec.Struct):
    embedding: list[float] | str


_decode_entries = msgspec.json.Decoder(list[_Entry]).decode


def vector_of(data: msgspec.Raw | None, size: int | None = None) -> list[float]:
    """The vector of an answer's `data`, as numbers or as base64 of 32-bit floats. Raises NoVector.

    `size` is how many numbers were asked for, None where the model decides.
    """
    if data is None:
        raise NoVector("the answer contains no vector")
    try:
        entries = _decode_entries(data)
    except JSON_ERRORS:
        raise NoVector("the answer contains no vector") from None
    if len(entries) != 1:
        raise NoVector(f"the answer holds {len(entries)} vectors, and one text was sent")
    found = entries[0].embedding
    vector = _unpacked(found) if isinstance(found, str) else found
    if not vector:
        raise NoVector("the vector is empty")
    if size is not None and len(vector) != size:
        raise NoVector(f"the vector has {len(vector):,} numbers, and `dimensions` is {size:,}")
    if not all(map(isfinite, vector)):
        raise NoVector("the vector contains something that is not a number")
    return vector


def _unpacked(text: str) -> list[float]:
    try:
        packed = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoVector("the vector is neither numbers nor base64") from None
    count, rest = divmod(len(packed), FLOAT_BYTES)
    if rest:
        raise NoVector("the vector is cut off")
    return list(struct.unpack(f"<{count}f", packed))
