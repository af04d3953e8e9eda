"""A Batch API that speaks OpenAI's protocol, through the official client. Our own server is one of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import httpx2
import openai
from openai import HttpxBinaryResponseContent
from openai.pagination import SyncCursorPage

from orchestrator.backends import (
    BATCH_GONE,
    Check,
    Intent,
    LineProblem,
    Order,
    RemoteBatch,
    RemoteFile,
    Sighting,
    metadata_of,
)
from orchestrator.backends import openai_read as read
from orchestrator.backends.files import store
from orchestrator.backends.openai_errors import UNREADABLE, date_of, meaning, said
from orchestrator.backends.profiles import PROFILES, Profile, window_for
from orchestrator.clock import now
from orchestrator.errors import OrchError
from orchestrator.wire import BatchStatus

PAGE = 100
FIND_PAGES = 50
NO_LIST = (403, 404, 405)
FIND_SLACK = timedelta(hours=1)
LONGEST_NAME = 100
Item = TypeVar("Item")
Ours = TypeVar("Ours", RemoteBatch, RemoteFile)


class _Kept(TypedDict):
    anchor: Literal["created_at"]
    seconds: int


def over_unix_socket(socket: Path) -> openai.OpenAI:
    """A client of the server that listens on a Unix socket."""
    transport = httpx2.HTTPTransport(uds=str(socket))
    return openai.OpenAI(
        base_url="http://orch/v1",
        api_key="none-is-asked-for",
        http_client=httpx2.Client(transport=transport),
        timeout=600.0,
    )


class OpenAIBackend:
    """The verbs of a Batch API on an `openai` client. `extra` goes into each create, beside the standard fields."""

    def __init__(
        self,
        name: str,
        client: openai.OpenAI,
        profile: Profile = PROFILES["orch"],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.appear_seconds = profile.appear_seconds
        self._name = name
        self._client = client
        # A create that is sent twice is paid twice: the client must not do it by itself.
        self._once = client.with_options(max_retries=0)
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
            organization: str | None = headers.get("openai-organization")
            return organization

    def upload(self, path: Path, name: str) -> str:
        with self._translated("upload"):
            # Elsewhere looking costs more than the second copy that a kill may leave: it goes away by itself.
            if self._profile.is_orch:
                size = path.stat().st_size
                for file in self._client.files.list(purpose="batch", limit=PAGE).data:
                    if file.filename == name and file.bytes == size:
                        return file.id
            with path.open("rb") as content:
                made = self._client.files.create(
                    file=(name, content), purpose="batch", expires_after=self._kept() or openai.omit
                )
            return read.remote_file(made).id

    def create(self, order: Order) -> RemoteBatch:
        with self._translated("create a batch", creating=True):
            created = self._once.batches.create(
                input_file_id=order.input_file_id,
                endpoint=order.endpoint,  # type: ignore[arg-type]  # the client's list is closed, ours is not
                completion_window=window_for(self._profile, order.window_seconds).text,  # type: ignore[arg-type]
                metadata=dict(metadata_of(order.shard)),
                output_expires_after=self._kept() or openai.omit,
                extra_body=self._extra,
            )
            return read.remote_batch(created)

    def _kept(self) -> _Kept | None:
        seconds = self._profile.expires_after
        return None if seconds is None else {"anchor": "created_at", "seconds": seconds}

    def find(self, intent: Intent) -> Sighting:
        earliest = intent.since - FIND_SLACK
        listing = read.Listing()
        for number, page in enumerate(self._batch_pages()):
            if number >= FIND_PAGES and not listing.newest_first:
                return Sighting(
                    undecided=f"the first {number * PAGE:,} batches of the account are not listed newest first, and "
                    "none of them carries this shard's id: whether a later one does cannot be told"
                )
            for batch in page:
                if batch.shard == intent.shard:
                    return Sighting(batch)
                listing.see(batch.created_at)
            if listing.newest_first and all(batch.created_at and batch.created_at < earliest for batch in page):
                break
        return Sighting()

    def batches(self) -> Iterator[RemoteBatch]:
        for page in self._batch_pages():
            yield from page

    def files(self) -> Iterator[RemoteFile]:
        files = self._client.files
        for page in self._pages(
            "list files", lambda after: files.list(purpose="batch", limit=PAGE, after=after), read.remote_file
        ):
            yield from page

    def _batch_pages(self) -> Iterator[list[RemoteBatch]]:
        batches = self._client.batches
        return self._pages("list batches", lambda after: batches.list(limit=PAGE, after=after), read.remote_batch)

    def _pages(
        self, what: str, fetch: Callable[[str | openai.Omit], SyncCursorPage[Item]], convert: Callable[[Item], Ours]
    ) -> Iterator[list[Ours]]:
        after: str | None = None
        more: bool | None = True
        # A list that does not say whether there is more ends with an empty page, or by giving its last one again.
        while more is not False:
            with self._translated(what):
                page = fetch(after or openai.omit)
                found, more = [convert(item) for item in page.data or ()], page.has_more
            if not found or found[-1].id == after:
                return
            yield found
            after = found[-1].id

    def retrieve(self, batch_id: str) -> RemoteBatch:
        with self._translated(f"retrieve {batch_id}"):
            try:
                return read.remote_batch(self._client.batches.retrieve(batch_id))
            except openai.NotFoundError as error:
                # A gateway's 404 is about an address; rows that are given up on its word would be paid again.
                if not said(error):
                    raise
                gone = LineProblem(BATCH_GONE, "the backend knows this batch no longer")
                return RemoteBatch(batch_id, BatchStatus.FAILED, problems=(gone,))

    def cancel(self, batch_id: str) -> None:
        with self._translated(f"cancel {batch_id}"):
            try:
                self._client.batches.cancel(batch_id)
            except openai.ConflictError:
                return  # it came to its end first; collecting will tell which

    def download(self, file_id: str, path: Path, input_path: Path) -> None:
        with (
            self._translated(f"download {file_id}"),
            self._client.files.with_streaming_response.content(file_id) as response,
        ):
            store(response.iter_bytes(), path)

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        if not self._profile.is_orch:
            return False
        with self._translated(f"read {batch_id}"):
            # A Stream for its open response alone: the body is as large as the batch, and goes to disk in pieces.
            address = f"/batches/{batch_id}/{kind}"
            with self._client.get(address, cast_to=bytes, stream=True, stream_cls=openai.Stream[bytes]) as stream:
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
                self._client.files.delete(file_id)
            except openai.NotFoundError:
                return

    def check(self, models: Sequence[str]) -> Iterator[Check]:
        try:
            with self._translated("list batches"):
                answer = self._client.batches.with_raw_response.list(limit=1)
                list(answer.parse().data or ())
            yield Check("batches", True, f"can be listed, as {self.account()}")
        except OrchError as error:
            yield Check("batches", False, str(error))
            return
        skew = read.clock_check(date_of(answer.headers.get("date")), now())
        if skew is not None:
            yield skew
        yield from self._check_models(models)

    def _check_models(self, models: Sequence[str]) -> Iterator[Check]:
        if models and not self._profile.lists_models:
            for model in models:
                yield Check(f"model {model}", True, "is a deployment's name, which no list tells")
            return
        try:
            with self._translated("list models"):
                known = sorted(str(model.id) for model in self._client.models.list().data or ()) if models else []
        except OrchError as error:
            yield Check("models", False, str(error))
            return
        for model in models:
            near = ", ".join(difflib.get_close_matches(model, known, 3))
            found = "is there" if model in known else "is not there" + (f"; near to it: {near}" if near else "")
            yield Check(f"model {model}", model in known, found)

    @contextmanager
    def _translated(self, what: str, *, creating: bool = False) -> Iterator[None]:
        try:
            yield
        except (openai.OpenAIError, httpx2.HTTPError, *UNREADABLE) as error:
            message = f"{self._name}: cannot {what}"
            # Not `from error`: the client's own texts may hold the key, and a log shows causes.
            raise meaning(error, message, creating=creating, secret=self._client.api_key) from None
