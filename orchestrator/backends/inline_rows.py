"""Input files whose requests go out inline, and the way back from row ids.

A row's id is `TAG-NUMBER-DIGEST`: sixteen digits for the shard, the line's number from 1, and sixteen digits for the
request. So an id identifies its row without a table. Its digest does so in another shard too, whose store has
forgotten the first. The file's own id is its path under the home, which may have moved when it is used again.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from orchestrator.backends import line_digest, sent_line
from orchestrator.core import request_lines
from orchestrator.core.errors import JobFilesError
from orchestrator.core.json_decoders import json_decoder

INLINE = "inline:"
ANYWHERE = Path("/")
_THEIR_ID = re.compile(r"([0-9a-f]{16})-([1-9][0-9]{0,8})(?:-([0-9a-f]{16}))?")


def shard_tag(shard: str) -> str:
    """Return the prefix of a shard's row ids."""
    return blake2b(shard.encode(), digest_size=8).hexdigest()


def row_id(tag: str, number: int, raw: bytes) -> str:
    """Return the id of a row at the provider, from its shard's tag, its number from 1, and its request."""
    return f"{tag}-{number}-{sent_line(raw)[1].hex()}"


class _Identity(msgspec.Struct):
    custom_id: str


_decode_identity = json_decoder(_Identity).decode


class Ids:
    """Our custom_ids by a provider's row ids; takes eight bytes of memory a row, and more for another shard's ids."""

    def __init__(self, source: BinaryIO, tag: str) -> None:
        self._source = source
        self._tag = tag
        self._offsets = array("Q", (offset for _, offset, _ in request_lines.lines(source)))
        self._by_digest: dict[bytes, list[str]] | None = None
        self._given: dict[str, str] = {}

    def ours(self, theirs: str) -> str:
        """Return the custom_id; an id of none of these lines stays unchanged."""
        found = _THEIR_ID.fullmatch(_plain(theirs))
        if found is None:
            return theirs
        if found[1] == self._tag and int(found[2]) <= len(self._offsets):
            self._source.seek(self._offsets[int(found[2]) - 1])
            line = self._source.readline()
            if found[3] is None or bytes.fromhex(found[3]) in _digests(line):
                return _decode_identity(line).custom_id
        return theirs if found[3] is None else self._of_digest(_plain(theirs), bytes.fromhex(found[3])) or theirs

    def _of_digest(self, theirs: str, digest: bytes) -> str | None:
        """Return the custom_id of the next line with a request, the same for the same id; None if none is left."""
        if self._by_digest is None:
            self._by_digest = {}
            self._source.seek(0)
            for _, _, raw in request_lines.lines(self._source):
                for known in _digests(raw):
                    self._by_digest.setdefault(known, []).append(_decode_identity(raw).custom_id)
        if theirs not in self._given and (left := self._by_digest.get(digest)):
            self._given[theirs] = left.pop()
        return self._given.get(theirs)


def file_id(path: Path, root: Path = ANYWHERE) -> str:
    """Return the id of a translated input file; `root` is the folder that may be moved."""
    path = path.absolute()
    return f"{INLINE}{path.relative_to(root) if path.is_relative_to(root) else path}"


def path_of(file_id: str, root: Path = ANYWHERE) -> Path:
    """Return the input file of an id."""
    return root / file_id.removeprefix(INLINE)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file of the job for reading. Raises JobFilesError if it is missing."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise JobFilesError(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield file


def tag_of(theirs: object) -> str | None:
    """Return the tag in an id, ignoring case and blanks; None if it has none."""
    found = _THEIR_ID.fullmatch(_plain(theirs)) if isinstance(theirs, str) else None
    return None if found is None else found[1]


def digest_of(theirs: object) -> bytes | None:
    """Return the digest of the request in an id; None if it has none."""
    found = _THEIR_ID.fullmatch(_plain(theirs)) if isinstance(theirs, str) else None
    return None if found is None or found[3] is None else bytes.fromhex(found[3])


def tag_within(text: str) -> str | None:
    """Return the tag of the first id in a text; None if it has no id."""
    found = _THEIR_ID.search(text)
    return None if found is None else found[1]


def _digests(line: bytes) -> tuple[bytes, bytes]:
    """Return the digests that ids of a line have had: of its request, and of the whole line."""
    return sent_line(line)[1], line_digest(line)


def _plain(theirs: str) -> str:
    return theirs.strip().lower()
