"""Multipart bodies, whole, cut anywhere and broken: a file as it was sent, or a refusal and nothing on the disk."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.memory_limits import MOST_BLOCK
from orchestrator.server.multipart import BadUpload, FormUpload, TooLarge, receive

TYPE = "multipart/form-data; boundary=B"
PIECES = st.sampled_from(
    [b"--B", b"--B--", b"\r\n", b"\r", b"\n", b"-", b"--", b"B", b": ",
     b'Content-Disposition: form-data; name="file"',
     b'Content-Disposition: form-data; name="x"', b'; filename="a"', b"\r\n\r\n", b"\x00\xff", b"{}"]
)  # fmt: skip


def form(content: bytes, **fields: str) -> bytes:
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()
    ]
    head = '--B\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    return "".join([*parts, head]).encode() + content + b"\r\n--B--\r\n"


def received(chunks: Sequence[bytes], limit: int = 1 << 30) -> tuple[FormUpload, bytes]:
    """What comes of a body in these chunks; where it is refused, nothing is left."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        try:
            upload = asyncio.run(receive(body(), TYPE, path, limit))
        except BaseException:
            assert not path.exists()
            raise
        return upload, path.read_bytes()


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


@settings(deadline=None)
@given(content=st.lists(PIECES | st.binary(max_size=50)).map(b"".join), places=st.lists(st.integers(0, 10_000)))
def test_a_file_comes_as_it_was_sent_however_it_is_cut(content: bytes, places: list[int]) -> None:
    if b"\r\n--B" in b"\r\n" + content:
        return
    upload, stored = received(cut(form(content, purpose="batch"), places))
    assert stored == content
    assert (upload.bytes, upload.filename, upload.fields) == (len(content), "a.jsonl", {"purpose": "batch"})


@settings(deadline=None)
@given(chunks=st.lists(st.lists(PIECES | st.binary(max_size=20), max_size=20).map(b"".join), max_size=5))
def test_whatever_is_sent_is_a_file_or_refused(chunks: list[bytes]) -> None:
    try:
        upload, stored = received(chunks)
    except BadUpload:
        return
    assert upload.bytes == len(stored)


@pytest.mark.parametrize("size", [0, 1, MOST_BLOCK - 1, MOST_BLOCK, 3 * MOST_BLOCK + 7])
def test_files_of_any_size(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    body = form(content)
    chunks = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
    assert received(chunks, limit=size)[1] == content
    if size:
        with pytest.raises(TooLarge):
            received(chunks, limit=size - 1)


def test_room_is_asked_for_before_every_write() -> None:
    asked: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        whole = form(b"x" * (3 * MOST_BLOCK))
        for start in range(0, len(whole), 65_536):
            yield whole[start : start + 65_536]

    def room(size: int) -> None:
        asked.append(size)
        if len(asked) == 2:
            raise OSError(28, "No space left on device")

    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(OSError, match="No space left"):
            asyncio.run(receive(body(), TYPE, Path(folder) / "file", 1 << 30, room=room))
        assert list(Path(folder).iterdir()) == []
    assert asked[0] >= MOST_BLOCK
