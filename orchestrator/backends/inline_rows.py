"""Input files whose requests go out inline: sent rows, rows that cannot be sent, and the format of row ids.

A row's id is `TAG-NUMBER-DIGEST`: sixteen digits for the shard, the line's number from 1, and sixteen digits for the
request. So an id identifies its row without a table. If the store has lost the shard, the digest still identifies the
row in a new shard. The id of the file is its path relative to the home, because users may move a home.

One file beside the input holds the rows as sent. Another file holds the result lines of rows that cannot be sent.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec

from orchestrator.backends import line_digest, sent_line
from orchestrator.backends.cache_marks import marks_for, write_marks
from orchestrator.backends.chat_rows import ChatLine, Translate, decode_line, translated_row
from orchestrator.backends.openai_shape import unsent_row
from orchestrator.core import batch_api, request_lines
from orchestrator.core.atomic import durable
from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.policy.prompt_cache import marked

INLINE = "inline:"
ANYWHERE = Path("/")
_INPUT = ".input.jsonl"
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
_decode_fields = json_decoder(dict[str, msgspec.Raw]).decode


class Ids:
    """Maps a provider's row ids to our custom_ids. Takes eight bytes a row, and more for another shard's ids."""

    def __init__(self, source: BinaryIO, tag: str) -> None:
        self._source = source
        self._tag = tag
        self._offsets = array("Q", (offset for _, offset, _ in request_lines.lines(source)))
        self._by_digest: dict[bytes, list[str]] | None = None
        self._given: dict[str, str] = {}

    def renamed(self, line: bytes) -> bytes:
        """Return a result line with our custom_id. A line without an id stays unchanged."""
        try:
            row = _decode_fields(line)
            theirs = msgspec.json.decode(row["custom_id"], type=str)
        except (KeyError, *batch_api.JSON_ERRORS):
            return line
        return msgspec.json.encode({**row, "custom_id": self.ours(theirs)})

    def ours(self, theirs: str) -> str:
        """Return the custom_id for a provider's row id. An id that belongs to no line stays unchanged."""
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
        """Return the custom_id of the next line with this request; None after the last line.

        Equal row ids return the same custom_id.
        """
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
    """Return the id of a translated input file: its path relative to `root`, which users may move."""
    path = path.absolute()
    return f"{INLINE}{path.relative_to(root) if path.is_relative_to(root) else path}"


def path_of(file_id: str, root: Path = ANYWHERE) -> Path:
    return root / file_id.removeprefix(INLINE)


def shard_of(path: Path) -> str:
    """Return the shard of an input file, which is the file's name."""
    return path.name.removesuffix(_INPUT)


def write_rows(path: Path, shard: str, field: str, translate: Translate) -> bool:
    """Write an input file's rows in the sent format, with requests under `field`. Return False if no row can be sent.

    Raises InputError for a line that is not a request. Raises JobFilesError.
    """
    tag, between = shard_tag(shard), b""
    try:
        with path.open("rb") as source, durable(rows_path(path)) as sent, durable(_unsent_path(path)) as unsent:
            marks = marks_for(path)
            for number, (_, _, raw) in enumerate(request_lines.lines(source), 1):
                line = _decoded(raw, path, number)
                line.body = dict(marked(line.custom_id, line.body, marks))
                request, error = translated_row(line, translate)
                if error is not None:
                    unsent.write(json.dumps(unsent_row(line.custom_id, error)).encode() + b"\n")
                    continue
                sent.write(between + msgspec.json.encode({"custom_id": row_id(tag, number, raw), field: request}))
                between = b",\n"
    except OSError as error:
        message = f"cannot translate {path}: {error.strerror}"
        raise JobFilesError(message, hint="free disk space, then run it again") from error
    return between != b""


def _decoded(raw: bytes, path: Path, number: int) -> ChatLine:
    try:
        return decode_line(raw)
    except batch_api.JSON_ERRORS as error:
        raise InputError(f"is not a request: {error}", file=path, line=number) from None


def rows_path(path: Path) -> Path:
    """Return the path of the file that holds an input file's rows as sent, separated by commas."""
    return path.with_name(f"{path.name}.rows.json")


def _unsent_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.refused.jsonl")


def unsent_lines(path: Path) -> Iterator[bytes]:
    """Yield the result lines of an input file's rows that are not sent."""
    try:
        with _unsent_path(path).open("rb") as file:
            yield from (line.rstrip(b"\n") for line in file)
    except FileNotFoundError:
        return


def forget(path: Path) -> None:
    rows_path(path).unlink(missing_ok=True)
    _unsent_path(path).unlink(missing_ok=True)
    write_marks(path, ())


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a job's file for reading. Raises JobFilesError if the file is missing."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise JobFilesError(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield file


def tag_of(theirs: object) -> str | None:
    """Return the shard's tag in a row id, ignoring case and spaces; None if the id has no tag."""
    found = _THEIR_ID.fullmatch(_plain(theirs)) if isinstance(theirs, str) else None
    return None if found is None else found[1]


def digest_of(theirs: object) -> bytes | None:
    """Return the request's digest in a row id; None if the id has no digest."""
    found = _THEIR_ID.fullmatch(_plain(theirs)) if isinstance(theirs, str) else None
    return None if found is None or found[3] is None else bytes.fromhex(found[3])


def _digests(line: bytes) -> tuple[bytes, bytes]:
    """Return the two digests that a line's id may contain: of its request, and of the whole line."""
    return sent_line(line)[1], line_digest(line)


def _plain(theirs: str) -> str:
    return theirs.strip().lower()
