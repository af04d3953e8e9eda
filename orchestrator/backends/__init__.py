"""Batch APIs behind a few operations: upload, create, find, retrieve, cancel, download.

The error's type tells what a failed call left behind. NotSent and BackendRefused (with BackendBusy and AccountError)
left nothing. After Uncertain, the call may have been carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS, BatchStatus
from orchestrator.core.json_decoders import json_decoder

if TYPE_CHECKING:
    from orchestrator.policy.preflight import DirectAnswer

SHARD_KEY = "orch_shard"
"""Metadata key of a batch that holds our shard's id."""
HOME_KEY = "orch_home"
"""Metadata key of a batch that holds the home that created it. Several homes may share an account."""

NO_CANCEL = "no_cancel"
"""Error code for a cancel at a provider that has no call to end a batch."""

BATCH_GONE = "batch_gone"
"""Problem code of a batch that its backend has lost. The rows go into another batch."""


SentLines = Mapping[bytes, Sequence[str]]
"""Row ids of a batch at the backend, by the digest of the row's request."""


class LineProblem(Struct, frozen=True):
    """A reason why a backend refused a batch. `line` counts from 1; None if the reason concerns the whole batch."""

    code: str
    message: str
    line: int | None = None


class RemoteBatch(Struct, frozen=True):
    """A batch as its backend reports it. Only our own server reports `upstream_seconds`.

    `is_counted` is true if the backend reported completed or failed rows, so that zeros are real. `shard` is our
    shard's id and `home` is the batch's creator, if the batch carries them. `rows` is the number of rows, None until
    the backend reports it. `created_at`, `over_at` (the end) and `told_at` (the answer) are by the backend's clock.
    """

    id: str
    status: BatchStatus
    completed: int = 0
    failed: int = 0
    is_counted: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    upstream_seconds: float = 0.0
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    problems: tuple[LineProblem, ...] = ()
    shard: str | None = None
    home: str | None = None
    rows: int | None = None
    created_at: datetime | None = None
    over_at: datetime | None = None
    told_at: datetime | None = None

    def ago(self, at: datetime | None) -> timedelta | None:
        """Return the time from `at` to the backend's answer, by the backend's clock; None if the answer had no
        time.
        """
        if self.told_at is None or at is None or self.told_at < at:
            return None
        return self.told_at - at


class RemoteFile(Struct, frozen=True):
    """A file as its backend lists it. `size` is in bytes, None if not reported."""

    id: str
    name: str
    size: int | None
    created_at: datetime | None = None


class BatchOrder(Struct, frozen=True):
    """A batch to create from the input file that `upload` returned. It carries our shard's id if the provider allows
    that.

    `model` is the backend's name for the model of all rows.
    """

    shard: str
    input_file_id: str
    endpoint: str
    window_seconds: int
    rows: int
    home: str = ""
    model: str = ""


class Intent(Struct, frozen=True):
    """A create whose outcome may be unknown, requested at `since` with the rows of the local file `input_path`.

    `known` returns the time when we requested the batch with this id, or None if the batch is not ours.
    `input_file_id` is the id of our upload, if any.
    """

    shard: str
    rows: int
    since: datetime
    input_path: Path
    known: Callable[[str], datetime | None]
    input_file_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """Result of a search for a batch: the batch, the reason why the search is `undecided`, both, or neither.

    With both, the batch belongs to the intent, but its id is not confirmed. `doubles` are further batches of the same
    intent, because a gateway may turn one create into two. `is_blank` is true if the list had no batch at all.
    """

    batch: RemoteBatch | None = None
    undecided: str | None = None
    doubles: tuple[RemoteBatch, ...] = ()
    is_blank: bool = field(default=False, compare=False)


class Download(Struct, frozen=True):
    """Result of a download: the number of `bytes`, and the reason why it broke off (`cut`), None if complete."""

    bytes: int
    cut: str | None = None


class DoctorCheck(Struct, frozen=True):
    """A check of `orch doctor` that costs nothing."""

    name: str
    ok: bool
    found: str


class Backend(Protocol):
    """A Batch API. Every operation raises BackendError if the backend is unavailable or refuses."""

    appear_seconds: float
    """Seconds after an uncertain `create` within which its batch may still appear in a listing."""

    def account(self) -> str:
        """Return the owner of the visible batches: the organisation if known, else the key's fingerprint.

        The result contains no secret.
        """

    def upload(self, path: Path, name: str) -> str:
        """Upload an input file under this name and return its id. An existing file with this name is reused."""

    def create(self, order: BatchOrder) -> RemoteBatch:
        """Create a batch, without retries. Raises only NotSent, BackendRefused or Uncertain."""

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        """Send one row to the synchronous endpoint, without retries, and wait at most a minute.

        Raises only NotSent, if the call did not leave this machine.
        """

    def lists_model(self, model: str) -> bool | None:
        """True if the backend lists this model; None if the backend has no usable list."""

    def find(self, intent: Intent) -> Sighting:
        pass

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        """Return the batch's current state; None if the backend answers that it does not know the id."""

    def tagged(self, since: datetime) -> list[RemoteBatch] | None:
        """Return the batches created since `since` that carry a shard's id. Reads the backend's list once.

        Returns None if batches at this backend carry no id.
        """

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        """Return a batch's custom_ids from its input file, or else from its results; None if neither file exists."""

    def batches_since(self, since: datetime) -> list[RemoteBatch]:
        """Return all batches since about `since`, ours or not. Raises Uncertain if some cannot be read."""

    def sent_line(self, line: bytes) -> tuple[str, bytes]:
        """Return the custom_id in a line of our input files, and its request's digest as in `input_lines`."""

    def input_lines(self, batch: RemoteBatch) -> SentLines | None:
        """Return a batch's row ids by the digest of their request; None if no file with the rows can be read."""

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        """Search the backend's list for a batch created at about `since`."""

    def cancel(self, batch_id: str) -> None:
        """Ask the backend to end a batch. A finished batch stays unchanged."""

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        """Download a result file in OpenAI's shape to `path`, durably. If the download breaks off, keep the received
        part.

        `input_path` is the shard's input file, whose custom_ids appear in the result. Raises an error if no bytes
        arrived.
        """

    def size_of(self, file_id: str) -> int | None:
        """Return the size of a file in bytes, or None if the backend does not report it."""

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        """Write a running batch's results so far to `path`. Return False if the backend does not offer them."""

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        """Return at most `most` bytes of a running batch's results, from byte `first` on.

        Returns None if the backend does not offer them.
        """

    def forget_file(self, file_id: str) -> None:
        """Delete a file. A missing file is not an error."""

    def batches(self) -> Iterator[RemoteBatch]:
        """Yield every batch of the account, newest first."""

    def files(self) -> Iterator[RemoteFile]:
        """Yield every batch input file of the account."""

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        """Check, at no cost, that the backend accepts the key and knows these models."""

    def close(self) -> None:
        pass


def metadata_of(order: BatchOrder) -> Mapping[str, str]:
    """Return the metadata that identifies a batch in a later search."""
    return {SHARD_KEY: order.shard} | ({HOME_KEY: order.home} if order.home else {})


class _Line(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw
    url: str = ""


_decode_line = json_decoder(_Line).decode


def sent_line(line: bytes) -> tuple[str, bytes]:
    """Return an input line's custom_id, and a digest of its request that does not depend on the id."""
    try:
        found = _decode_line(line)
    except JSON_ERRORS:
        return "", line_digest(line)
    return found.custom_id, line_digest(found.url.encode() + bytes(found.body))


def by_request(lines: Iterable[tuple[str, bytes]]) -> SentLines:
    """Group the ids of lines by the digest of their request. The line's number replaces a missing id."""
    found: dict[bytes, list[str]] = {}
    for number, (name, digest) in enumerate(lines, 1):
        found.setdefault(digest, []).append(name or str(number))
    return found


def line_digest(line: bytes) -> bytes:
    """Return an eight-byte digest of an input line, for comparisons."""
    return blake2b(line.strip(), digest_size=8).digest()
