"""Batch APIs, behind a few verbs: upload, create, find, retrieve, cancel, download. Data until proven code.

What a call that failed has left behind decides what may be done next, so the errors say it:
NotSent and BackendRefused (with BackendBusy and AccountError) left nothing, Uncertain may have left what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from orchestrator.core.wire import BatchStatus
from orchestrator.policy.preflight import DirectAnswer

SHARD_KEY = "orch_shard"
"""The key of a batch's metadata under which our own id stands."""
HOME_KEY = "orch_home"
"""The key under which the home stands that made the batch: several may share an account."""

BATCH_GONE = "batch_gone"
"""The problem of a batch that its backend has lost: its rows go on in another one."""


@dataclass(frozen=True, slots=True)
class LineProblem:
    """Why a backend refused a batch; `line` counts from 1, None where it is about the whole."""

    code: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as its backend tells it. `upstream_seconds` is known of our own server only.

    `is_counted` says whether the backend told how many rows are completed or failed: zeros may mean that it did not.
    `shard` is our own id where the batch carries one, and `home` the home that made it; `rows` how many it has, None
    while the backend does not say. `over_at` is when it came to its end, by the backend's clock, as `created_at` is.
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
    problems: tuple[LineProblem, ...] = field(default=())
    shard: str | None = None
    home: str | None = None
    rows: int | None = None
    created_at: datetime | None = None
    over_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as its backend lists it; `size` in bytes, None where it is not told."""

    id: str
    name: str
    size: int | None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """A batch to be made: the input file as `upload` named it, and our own id, which the batch carries if it can."""

    shard: str
    input_file_id: str
    endpoint: str
    window_seconds: int
    rows: int
    home: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """A batch that may have been made: asked for at `since`, with these rows in the local file `input_path`.

    `known` says of a batch's id when we asked for it, None where it is not one of ours. `input_file_id` is our
    upload, None where there is none.
    """

    shard: str
    rows: int
    since: datetime
    input_path: Path
    known: Callable[[str], datetime | None]
    input_file_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """What looking for a batch gave: the batch; or `undecided`, why nobody can tell yet; or neither.

    `doubles` are further batches of the same intent: of one create a gateway may have made two. `is_blank`: the list
    had no batch at all.
    """

    batch: RemoteBatch | None = None
    undecided: str | None = None
    doubles: tuple[RemoteBatch, ...] = ()
    is_blank: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Download:
    """What came of a result file: so many `bytes` of it, and why it broke off (`cut`), None where it did not."""

    bytes: int
    cut: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing that `orch doctor` checked, without spending anything."""

    name: str
    ok: bool
    found: str


class Backend(Protocol):
    """One Batch API. Every verb raises BackendError where the backend is away or refuses."""

    appear_seconds: float
    """How long after an uncertain `create` its batch may still turn up in a listing."""

    def account(self) -> str:
        """Whose batches are seen here, without a secret in it: the organisation where it is known, else a key's
        fingerprint."""

    def upload(self, path: Path, name: str) -> str:
        """Upload an input file under a name; its id. A file of that name that is there already is taken."""

    def create(self, order: BatchOrder) -> RemoteBatch:
        """Create a batch. Never tried again by itself. Raises NotSent, BackendRefused or Uncertain, nothing else."""

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        """Ask the row of a request line at the synchronous endpoint, and wait a minute at most. Never tried again.

        Raises NotSent for a call that did not leave, and nothing else.
        """

    def lists_model(self, model: str) -> bool | None:
        """True if the backend's list of models has this one; None if no list can tell."""

    def find(self, intent: Intent) -> Sighting:
        """Look for the batch of an intent."""

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        """The batch as it is now; None where the backend says that it knows none of this id."""

    def tagged(self, since: datetime) -> list[RemoteBatch] | None:
        """The batches made since then that carry a shard's id, in one listing; None if batches carry no id."""

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        """The custom_ids of a batch, from its input file or else its results; None if no file is left."""

    def input_lines(self, batch: RemoteBatch) -> Mapping[str, bytes] | None:
        """The digest of each line of a batch's input file, by custom_id; None if the file is gone."""

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        """Look for a batch of about that time in the backend's list."""

    def cancel(self, batch_id: str) -> None:
        """Ask for its end; one that is over already is left as it is."""

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        """A result file in OpenAI's shape to `path`, durable: all of it, or as much as came before it broke off.

        `input_path` is the shard's input file, whose custom_ids the result has. Where nothing came, it is an error.
        """

    def size_of(self, file_id: str) -> int | None:
        """The size of a file in bytes as the backend tells it, None where it does not."""

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        """The results so far of a running batch to `path`; False where the backend does not give them."""

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        """Up to so many bytes of a running batch's results from a place on; None where the backend gives none."""

    def forget_file(self, file_id: str) -> None:
        """Delete a file; one that is gone already is not an error."""

    def batches(self) -> Iterator[RemoteBatch]:
        """Every batch of the account, newest first."""

    def files(self) -> Iterator[RemoteFile]:
        """Every batch input file of the account."""

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        """Whether it can be reached with the key that there is, and knows these models; nothing is spent."""

    def close(self) -> None:
        """Close its connections."""


def metadata_of(order: BatchOrder) -> Mapping[str, str]:
    """What a batch carries so that it is found again."""
    return {SHARD_KEY: order.shard} | ({HOME_KEY: order.home} if order.home else {})


def line_digest(line: bytes) -> bytes:
    """What stands for an input line where two are compared."""
    return sha256(line.strip()).digest()
