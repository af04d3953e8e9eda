"""Embedding vectors in the answers of `/v1/embeddings`. Pure."""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode
from math import isfinite

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.json_decoders import json_decoder

FLOAT_BYTES = 4
_DOUBLE_BYTES = 8
_LAST_29 = (1 << 29) - 1
_SMALLEST, _LARGEST = 1e-30, 1e6
"""Plausible range for the magnitude of a nonzero number in a vector."""
_FEWEST = 32
"""Bytes of the shortest accepted int8 vector if its size is unknown.

Shorter data is read as 32-bit floats. If its length is not a multiple of 4 bytes, the vector counts as cut off.
"""


class NoVector(Exception):
    """Raised if an answer has no usable vector; the message says why."""


class _Entry(msgspec.Struct):
    embedding: list[float] | str


_decode_entries = json_decoder(list[_Entry]).decode


def vector_of(data: msgspec.Raw | None, size: int | None = None) -> list[float]:
    """Return the vector of an answer's `data`, given as numbers or as base64. Raises NoVector.

    Base64 contains 32-bit floats, 64-bit floats or bytes. `size` is the requested number of dimensions, None if the
    model decides.
    """
    if data is None:
        raise NoVector("the answer contains no vector")
    try:
        entries = _decode_entries(data)
    except JSON_ERRORS:
        raise NoVector("the answer contains no vector") from None
    if len(entries) != 1:
        raise NoVector(f"the answer holds {len(entries)} vectors, but one text was sent")
    found = entries[0].embedding
    vector = _unpacked(found, size) if isinstance(found, str) else found
    if not vector:
        raise NoVector("the vector is empty")
    if size is not None and len(vector) != size:
        raise NoVector(f"the vector has {len(vector):,} numbers, and `dimensions` is {size:,}")
    if not all(map(isfinite, vector)):
        raise NoVector("the vector contains something that is not a number")
    return vector


def _unpacked(text: str, size: int | None) -> list[float]:
    """Decode base64 to numbers: floats or one-byte integers (int8).

    An answer does not state the format, so the first plausible decoding is used.
    """
    try:
        packed = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoVector("the vector is neither numbers nor base64") from None
    if len(packed) % FLOAT_BYTES == 0:
        floats = _as_form(packed, "f")
        if _are_plausible(floats) and not _are_doubles(packed):
            return floats
        if len(packed) % _DOUBLE_BYTES == 0 and _are_plausible(doubles := _as_form(packed, "d")):
            return doubles
    if len(packed) == size or (size is None and len(packed) >= _FEWEST):
        return _as_form(packed, "b")
    return _as_form(packed, "f")


def _as_form(packed: bytes, form: str) -> list[float]:
    count, rest = divmod(len(packed), struct.calcsize(form))
    if rest:
        raise NoVector("the vector is cut off")
    return [float(number) for number in struct.unpack(f"<{count}{form}", packed)]


def _are_plausible(numbers: list[float]) -> bool:
    """True if these numbers may be a vector. Bytes decoded in the wrong format give huge or tiny numbers, or NaN."""
    return all(number == 0 or _SMALLEST < abs(number) < _LARGEST for number in numbers)


def _are_doubles(packed: bytes) -> bool:
    """True if these are 64-bit floats converted from 32-bit floats: their last 29 bits are zero."""
    count, rest = divmod(len(packed), _DOUBLE_BYTES)
    return not rest and any(packed) and not any(low & _LAST_29 for low in struct.unpack(f"<{count}Q", packed))
