"""A Batch API that speaks OpenAI's protocol, through the official client. Our own server is one of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, TypeVar

import httpx2
import openai
from openai import HttpxBinaryResponseContent

from orchestrator.backends import (
    BatchOrder,
    DoctorCheck,
    Download,
    Intent,
    RemoteBatch,
    RemoteFile,
    Sighting,
    calls,
    lenient,
    metadata_of,
)
from orchestrator.backends import openai_read as read
from orchestrator.backends.files import keep, split_lines, store
from orchestrator.backends.openai_errors import UNREADABLE, meaning, said
from orchestrator.backends.profiles import PROFILES, Profile, window_for
from orchestrator.backends.result_lines import result_lines
from orchestrator.core.clock import now
from orchestrator.core.errors import BackendError, OrchError, Uncertain
from orchestrator.core.retry_after import date_of
from orchestrator.core.wire import BatchStatus

PAGE = 100
FIND_PAGES = 50
NO_LIST = (403, 404, 405)
GONE = (404, 410)
FIND_SLACK = timedelta(hours=26)
"""By so much a provider's clock may be off: by an hour, by a time zone, by a day."""
LONGEST_NAME = 100
Ours = TypeVar("Ours", RemoteBatch, RemoteFile)


class _Kept(TypedDict):
    anchor: Literal["created_at"]
    seconds: int


class _Raw(Protocol):
    """An answer of the client's as it came."""

    @property
    def http_response(self) -> httpx2.Response: ...


def over_unix_socket(socket: Path) -> openai.OpenAI:
    """A client of the server that listens on a Unix socket."""
    transport = httpx2.HTTPTransport(uds=str(socket))
    return openai.OpenAI(
        base_url="http://orch/v1",
        api_key="none-is-asked-for",
        http_client=httpx2.Client(transport=transport),
        timeout=600.0,
    )


class OpenAIBatches:
    """The verbs of a Batch API on an `openai` client. `extra` goes into each create, beside the standard fields.

    `silent` is for how many seconds a transfer may bring nothing, None for as long as any other call.
    """

    def __init__(
        self,
        name: str,
        client: openai.OpenAI,
        profile: Profile = PROFILES["orch"],
        extra: Mapping[str, Any] | None = None,
        silent: float | None = None,
    ) -> None:
        self.appear_seconds = profile.appear_seconds
        self._name = name
        # A create that is sent twice is paid twice, and a client that waits by itself holds up others.
        self._client = _copied(client, max_retries=0)
        self._files = self._client if silent is None else _copied(self._client, timeout=calls.timeouts(silent))
        self._profile = profile
        self._extra = dict(extra or {})
        self._account: str | None = None

    def close(self) -> None:
        self._client.close()

    def account(self) -> str:
        if self._account is None:
            organization = None if self._profile.is_orch else self._organization()
            key = sha256(self._client.api_key.encode()).hexdigest()[:12]
            who = f"org:{organization[:LONGEST_NAME]}" if organization else f"key:{key}"
            self._account = f"{who}/{self._client.project}" if self._client.project else who
        return self._account

    def _organization(self) -> str | None:
        """What one certain call tells: were it any call's to tell, the same account could be told in two ways."""
        with self._translated("ask whose key it is"):
            try:
                headers = self._client.models.with_raw_response.list().headers
            except openai.APIStatusError as refusal:
                if refusal.status_code not in NO_LIST:
                    raise
                headers = refusal.response.headers  # a key that may do batches and nothing else has an owner too
            return lenient.name(headers.get("openai-organization"))

    def upload(self, path: Path, name: str) -> str:
        size = path.stat().st_size
        # Elsewhere looking costs more than the second copy that a kill may leave: it goes away by itself.
        if self._profile.is_orch:
            with self._translated("list files"):
                for file in self._read_list(self._client.files.with_raw_response.list(purpose="batch", limit=PAGE)):
                    if (file.name, file.size) == (name, size):
                        return file.id
        with self._translated("upload", calls.transfer()), path.open("rb") as content:
            answer = self._files.files.with_raw_response.create(
                file=(name, content), purpose="batch", expires_after=self._kept() or openai.omit
            )
            made = read.remote_file(_json(answer))
        if made.name not in ("", name) and made.size not in (None, size):
            # A batch of somebody else's rows would be paid for in vain.
            raise BackendError(f"{self._name}: the upload of {name} was answered with another file, {made.name}")
        return made.id

    def create(self, order: BatchOrder) -> RemoteBatch:
        with self._translated("create a batch", creating=True):
            answer = self._client.batches.with_raw_response.create(
                input_file_id=order.input_file_id,
                endpoint=order.endpoint,  # type: ignore[arg-type]  # the client's list is closed, ours is not
                completion_window=window_for(self._profile, order.window_seconds).text,  # type: ignore[arg-type]
                metadata=dict(metadata_of(order.shard)),
                output_expires_after=self._kept() or openai.omit,
                extra_body=self._extra,
            )
            made = read.remote_batch(_json(answer))
        is_ours = made.input_file_id in (None, order.input_file_id) and made.shard in (None, order.shard)
        if not is_ours:
            raise Uncertain(f"{self._name}: the create was answered with another batch, {made.id}")
        return made

    def _kept(self) -> _Kept | None:
        seconds = self._profile.expires_after
        return None if seconds is None else {"anchor": "created_at", "seconds": seconds}

    def find(self, intent: Intent) -> Sighting:
        found, undecided, is_blank = self._search(lambda batch: batch.shard == intent.shard, intent.since)
        if not found:
            return Sighting(undecided=undecided, is_blank=is_blank)
        # What is over without an answer is not a batch to go on with where there is a better one.
        first, *doubles = sorted(found, key=lambda one: one.status in (BatchStatus.FAILED, BatchStatus.CANCELLED))
        if self.retrieve(first.id) is None:
            told = f"the list shows batch {first.id} of this shard, but does not know it by its id yet"
            return Sighting(undecided=told)
        return Sighting(first, doubles=tuple(doubles))

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        found, undecided, _ = self._search(lambda batch: batch.id == batch_id, since)
        return Sighting(found[0]) if found else Sighting(undecided=undecided)

    def _search(
        self, is_wanted: Callable[[RemoteBatch], bool], since: datetime
    ) -> tuple[list[RemoteBatch], str | None, bool]:
        """The batches of the list that are wanted, why others may be there that were not seen, and whether the list
        has none at all."""
        earliest, found = since - FIND_SLACK, list[RemoteBatch]()
        listing = read.Listing()
        for number, page in enumerate(self._batch_pages()):
            if number >= FIND_PAGES and not listing.newest_first:
                told = (
                    f"the first {number * PAGE:,} batches of the account are not listed newest first, and "
                    "the one that is looked for is not among them: whether it comes later cannot be told"
                )
                return found, told, False
            found += [batch for batch in page if is_wanted(batch)]
            for batch in page:
                listing.see(batch.created_at)
            if found or (listing.newest_first and _all_before(page, earliest)):
                break
        return found, None, listing.is_blank

    def batches(self) -> Iterator[RemoteBatch]:
        for page in self._batch_pages():
            yield from page

    def files(self) -> Iterator[RemoteFile]:
        files = self._client.files.with_raw_response
        for page in self._pages(
            "list files", lambda after: files.list(purpose="batch", limit=PAGE, after=after), read.remote_file
        ):
            yield from page

    def _batch_pages(self) -> Iterator[list[RemoteBatch]]:
        batches = self._client.batches.with_raw_response
        return self._pages("list batches", lambda after: batches.list(limit=PAGE, after=after), read.remote_batch)

    def _pages(
        self, what: str, fetch: Callable[[str | openai.Omit], _Raw], convert: Callable[[object], Ours]
    ) -> Iterator[list[Ours]]:
        after: str | openai.Omit = openai.omit
        seen: set[Hashable] = set()
        more = True
        while more:
            with self._translated(what):
                told = _json(fetch(after))
                listed = lenient.readable(lenient.entries(told, is_first=not seen), convert)
            found = lenient.unseen(listed, _identity, seen)
            if not found:
                return
            yield found
            after = found[-1].id
            # A list that does not say whether there is more ends with an empty page, or one that is known.
            more = lenient.mapping(told).get("has_more") is not False

    def _read_list(self, answer: _Raw) -> list[RemoteFile]:
        return lenient.readable(lenient.entries(_json(answer)), read.remote_file)

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        with self._translated(f"retrieve {batch_id}"):
            try:
                answer = self._client.batches.with_raw_response.retrieve(batch_id)
            except openai.APIStatusError as error:
                # A gateway's 404 is about an address.
                if error.status_code not in GONE or not said(error):
                    raise
                return None
            return read.remote_batch(_json(answer), batch_id)

    def cancel(self, batch_id: str) -> None:
        with self._translated(f"cancel {batch_id}"):
            try:
                self._client.batches.with_raw_response.cancel(batch_id)
            except openai.ConflictError:
                return  # it came to its end first; collecting will tell which

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        with (
            self._translated(f"download {file_id}", calls.transfer()),
            self._files.files.with_streaming_response.content(file_id) as response,
        ):
            # Our own server's lines are as they should be.
            read_lines = split_lines if self._profile.is_orch else result_lines
            return keep(response.iter_bytes(), read_lines, path, (httpx2.HTTPError, ValueError))

    def size_of(self, file_id: str) -> int | None:
        with self._translated(f"look {file_id} up"):
            return read.remote_file(_json(self._client.files.with_raw_response.retrieve(file_id))).size

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        if not self._profile.is_orch:
            return False
        with self._translated(f"read {batch_id}", calls.transfer()):
            # A Stream for its open response alone: the body is as large as the batch, and goes to disk in pieces.
            address = f"/batches/{batch_id}/{kind}"
            with self._files.get(address, cast_to=bytes, stream=True, stream_cls=openai.Stream[bytes]) as stream:
                store(stream.response.iter_bytes(), path)
            return True

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        if not self._profile.is_orch:
            return None
        address, part = f"/batches/{batch_id}/{kind}", {"Range": f"bytes={first}-{first + most - 1}"}
        with self._translated(f"read {batch_id}"):
            try:
                found = self._client.get(address, cast_to=HttpxBinaryResponseContent, options={"headers": part})
            except openai.APIStatusError as error:
                if error.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                return b""  # nothing was written since
            return found.content

    def forget_file(self, file_id: str) -> None:
        with self._translated(f"delete {file_id}"):
            try:
                self._client.files.with_raw_response.delete(file_id)
            except openai.APIStatusError as error:
                if error.status_code not in GONE:
                    raise

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        try:
            with self._translated("list batches"):
                answer = self._client.batches.with_raw_response.list(limit=1)
                lenient.entries(_json(answer))
            yield DoctorCheck("batches", True, f"can be listed, as {self.account()}")
        except OrchError as error:
            yield DoctorCheck("batches", False, str(error))
            return
        skew = read.clock_check(date_of(answer.headers.get("date")), now())
        if skew is not None:
            yield skew
        yield from self._check_models(models)

    def _check_models(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        if models and not self._profile.lists_models:
            for model in models:
                yield DoctorCheck(f"model {model}", True, "is a deployment's name, which cannot be listed")
            return
        try:
            with self._translated("list models"):
                told = (
                    lenient.entries(_json(self._client.models.with_raw_response.list()), "models") if models else []
                )
                known = sorted(filter(None, (lenient.name(lenient.mapping(one).get("id")) for one in told)))
        except OrchError as error:
            yield DoctorCheck("models", False, str(error))
            return
        for model in models:
            near = ", ".join(difflib.get_close_matches(model, known, 3))
            found = "is there" if model in known else "is not there" + (f"; near to it: {near}" if near else "")
            yield DoctorCheck(f"model {model}", model in known, found)

    @contextmanager
    def _translated(
        self, what: str, pace: AbstractContextManager[None] | None = None, *, creating: bool = False
    ) -> Iterator[None]:
        try:
            with pace or calls.control():
                yield
        except (openai.OpenAIError, httpx2.HTTPError, *UNREADABLE) as error:
            message = f"{self._name}: cannot {what}"
            # Not `from error`: the client's own texts may hold the key, and a log shows causes.
            raise meaning(error, message, creating=creating, secret=self._client.api_key) from None


def _copied(client: openai.OpenAI, **options: Any) -> openai.OpenAI:
    """The client with other options; a copy takes what is not set from the environment."""
    copied = client.with_options(**options)
    copied.organization, copied.project = client.organization, client.project
    return copied


def _json(answer: _Raw) -> Any:
    """Raises ValueError for what is not JSON."""
    return lenient.decode(answer.http_response.content)


def _all_before(page: Sequence[RemoteBatch], earliest: datetime) -> bool:
    return all(batch.created_at is not None and batch.created_at < earliest for batch in page)


def _identity(one: RemoteBatch | RemoteFile) -> Hashable:
    return (one.id, one.shard) if isinstance(one, RemoteBatch) else one.id
