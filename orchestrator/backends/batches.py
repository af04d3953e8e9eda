"""Batch operations, built on a provider's calls, which answer in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
from msgspec.structs import replace

from orchestrator.backends import (
    NO_CANCEL,
    BatchOrder,
    DoctorCheck,
    Download,
    Intent,
    RemoteBatch,
    RemoteFile,
    SentLines,
    Sighting,
    body_lines,
    by_request,
    call_limits,
    lenient,
    sent_line,
    synchronous_rows,
)
from orchestrator.backends.api import ApiRefusal, BatchAPI
from orchestrator.backends.batch_lists import FURTHEST_OFF, PAGE, ListedBatches
from orchestrator.backends.body_lines import addressed_lines
from orchestrator.backends.call_errors import UNREADABLE, OfAnswer, meaning, of_answer
from orchestrator.backends.lenient_batches import clock_check, remote_batch, remote_file, shard_of
from orchestrator.backends.profiles import OWN_SERVER, V1, Profile, window_for
from orchestrator.backends.received_files import keep, split_lines, store, translated
from orchestrator.backends.result_lines import result_lines
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.clock import now
from orchestrator.core.errors import BackendError, BackendRefused, NotSent, OrchError, StrayUpload, Uncertain
from orchestrator.core.near_names import near_words
from orchestrator.core.retry_after import date_of
from orchestrator.policy.preflight import DirectAnswer

NO_LIST = (403, 404, 405)
GONE = (404, 410)
MOST_LOOKED_UP = 100
"""Maximum number of batches to retrieve one by one if the list shows neither metadata nor input files."""
LONGEST_NAME = 100


class ApiBatches(ListedBatches):
    """Batch operations built on a provider's calls. `extra` holds additional fields of each create.

    `sent` returns the id and digest of an input line. Both are the same for our line and for the API's stored copy.
    The default assumes that the API changes only the address.
    """

    _of_answer: OfAnswer = staticmethod(of_answer)

    def __init__(
        self,
        name: str,
        api: BatchAPI,
        profile: Profile = OWN_SERVER,
        extra: Mapping[str, Any] | None = None,
        sent: Callable[[bytes], tuple[str, bytes]] | None = None,
    ) -> None:
        # A provider with other addresses returns lines with its own addresses.
        self.sent_line = sent or (sent_line if profile.path == V1 else body_lines.sent_line)
        self.appear_seconds = profile.appear_seconds
        self._name = name
        self._api = api
        self._profile = profile
        self._extra = dict(extra or {})
        self._account: str | None = None

    def close(self) -> None:
        self._api.close()

    def account(self) -> str:
        if self._account is None:
            organization = None if self._profile.is_orch else self._organization()
            key = sha256(self._api.api_key.encode()).hexdigest()[:12]
            who = f"org:{organization[:LONGEST_NAME]}" if organization else f"key:{key}"
            self._account = f"{who}/{self._api.project}" if self._api.project else who
        return self._account

    def _organization(self) -> str | None:
        """Name every account by this call, so that its name never changes."""
        with self._translated("ask whose key it is"):
            try:
                headers = self._api.models().headers
            except ApiRefusal as refusal:
                if refusal.status not in NO_LIST:
                    raise
                headers = refusal.headers  # a key that allows only batches has an owner too
            return lenient.name(headers.get("openai-organization"))

    def upload(self, path: Path, name: str) -> str:
        size = path.stat().st_size
        # At other providers, a search costs more than a duplicate file left by a kill, and that file expires.
        if self._profile.is_orch:
            with self._translated("list files"):
                for file in lenient.readable(lenient.entries(self._api.files(PAGE).json()), remote_file):
                    if (file.name, file.size) == (name, size):
                        return file.id
        with self._translated("upload", call_limits.transfer()), self._spelled(path) as content:
            made = remote_file(self._api.upload(name, content, self._profile.expires_after).json())
        if made.name not in ("", name) and made.size not in (None, size):
            # A batch of foreign rows would cost money for nothing.
            message = f"{self._name}: the upload of {name} was answered with another file, {made.name}"
            raise StrayUpload(message, made.id, made.created_at)
        return made.id

    @contextmanager
    def _spelled(self, path: Path) -> Iterator[BinaryIO]:
        with path.open("rb") as source:
            if self._profile.path == V1:
                yield source
                return
            with translated(source, addressed_lines(source, self._profile.path)) as content:
                yield content

    def create(self, order: BatchOrder) -> RemoteBatch:
        order = replace(order, endpoint=self._profile.path + order.endpoint.removeprefix(V1))
        with self._translated("create a batch", creating=True):
            window = window_for(self._profile, order.window_seconds).text
            answer = self._api.create(order, window, self._profile.expires_after, self._extra)
            made = remote_batch(answer.json())
        is_ours = made.input_file_id in (None, order.input_file_id) and made.shard in (None, order.shard)
        if not is_ours:
            raise Uncertain(f"{self._name}: the create was answered with another batch, {made.id}")
        return made

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        return self._ask(endpoint, synchronous_rows.request_of(line))

    def _ask(self, endpoint: str, body: bytes) -> DirectAnswer:
        try:
            with self._translated("ask one row", call_limits.control(call_limits.ASK_SECONDS), creating=True):
                try:
                    return synchronous_rows.answered(
                        self._api.ask(endpoint.removeprefix("/v1"), body).content, self._api.api_key
                    )
                except ApiRefusal as refusal:
                    return synchronous_rows.refused(refusal.provider_error(), self._api.api_key)
        except OrchError as error:
            return synchronous_rows.unanswered(error, may_be_billed=not isinstance(error, NotSent))

    def lists_model(self, model: str) -> bool | None:
        if not self._profile.lists_models:
            return None
        try:
            return synchronous_rows.in_list(self._listed_models(), model)
        except OrchError:
            return None

    def _listed_models(self) -> list[str]:
        with self._translated("list models"):
            listed = lenient.entries(self._api.models().json(), "models")
            return sorted(filter(None, (lenient.name(lenient.mapping(one).get("id")) for one in listed)))

    def find(self, intent: Intent) -> Sighting:
        unread: list[object] = []
        looks = iter(range(MOST_LOOKED_UP))
        found, undecided, is_blank = self._search(
            lambda batch: self._is_of(batch, intent, looks), intent.since, unread
        )
        if not found:
            if any(shard_of(entry) == intent.shard for entry in unread):
                undecided = "the list shows a batch of this shard that cannot be read, such as one without an id"
            return Sighting(undecided=undecided, is_blank=is_blank)
        # Prefer a live or completed batch to a failed or cancelled one.
        first, *doubles = sorted(found, key=lambda one: one.status in (BatchStatus.FAILED, BatchStatus.CANCELLED))
        undecided = None
        try:
            if self.retrieve(first.id) is None:
                told = f"the list shows batch {first.id} of this shard, but does not know it by its id yet"
                return Sighting(undecided=told)
        except BackendError as error:
            # The batch is ours, but a list may show it under a wrong id.
            undecided = f"batch {first.id} in the list is this shard's, but its id is not confirmed: {error.message}"
        return Sighting(first, undecided, doubles=tuple(doubles))

    def _is_of(self, batch: RemoteBatch, intent: Intent, looks: Iterator[int]) -> bool:
        """True if a listed batch belongs to this intent, judged by its shard's id or else by its input file.

        If the list omits both, orch retrieves the batch itself, as long as `looks` has items left. A batch with
        another shard's id is never ours, even with the same upload: equal files may have equal ids.
        """
        if batch.shard is not None:
            return batch.shard == intent.shard
        is_old = batch.created_at is not None and batch.created_at < intent.since - FURTHEST_OFF
        if is_old or intent.input_file_id is None or intent.known(batch.id) is not None:
            return False
        if batch.input_file_id is None and next(looks, None) is not None:
            batch = self.retrieve(batch.id) or batch
        return batch.shard == intent.shard or (batch.shard is None and batch.input_file_id == intent.input_file_id)

    def tagged(self, since: datetime) -> list[RemoteBatch] | None:
        found, _, _ = self._search(lambda batch: batch.shard is not None, since, is_one=False)
        return found

    def input_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        results = [one for one in (batch.output_file_id, batch.error_file_id) if one is not None]
        for files in ([batch.input_file_id] if self._profile.reads_inputs else [], results):
            ids = [self._ids_in(one) for one in files if one is not None]
            if ids and None not in ids:
                return frozenset[str]().union(*filter(None, ids))
        return None

    def batches_since(self, since: datetime) -> list[RemoteBatch]:
        """Return an empty list, because batches of this API carry shard ids."""
        return []

    def input_lines(self, batch: RemoteBatch) -> SentLines | None:
        if batch.input_file_id is None or not self._profile.reads_inputs:
            return None
        with self._translated(f"read {batch.input_file_id}", call_limits.transfer()):
            try:
                with self._api.content(batch.input_file_id) as chunks:
                    return by_request(map(self.sent_line, filter(bytes.strip, split_lines(chunks))))
            except ApiRefusal as refusal:
                if refusal.status not in GONE:
                    raise
                return None

    def _ids_in(self, file_id: str) -> frozenset[str] | None:
        with self._translated(f"read {file_id}", call_limits.transfer()):
            try:
                with self._api.content(file_id) as chunks:
                    lines = split_lines(chunks)
                    found = (lenient.mapping(lenient.decode(line)).get("custom_id") for line in lines if line.strip())
                    return frozenset(filter(None, map(lenient.name, found)))
            except ApiRefusal as refusal:
                if refusal.status not in GONE:
                    raise
                return None

    def listed(self, batch_id: str, since: datetime) -> Sighting:
        found, undecided, _ = self._search(lambda batch: batch.id == batch_id, since)
        return Sighting(found[0]) if found else Sighting(undecided=undecided)

    def files(self) -> Iterator[RemoteFile]:
        for page in self._pages("list files", lambda after: self._api.files(PAGE, after).page(), remote_file):
            yield from page

    def _batch_pages(self, unread: list[object] | None = None) -> Iterator[list[RemoteBatch]]:
        return self._pages("list batches", lambda after: self._api.batches(PAGE, after).page(), remote_batch, unread)

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        with self._translated(f"retrieve {batch_id}"):
            try:
                answer = self._api.batch(batch_id)
            except ApiRefusal as refusal:
                # A 404 from a gateway is about an address, not about the file.
                if refusal.status not in GONE or not self._is_its_own(refusal):
                    raise
                return None
            told_at = date_of(answer.headers.get("date"))
            return replace(remote_batch(answer.json(), batch_id), told_at=told_at)

    def _is_its_own(self, refusal: ApiRefusal) -> bool:
        """True if the API itself refused, not a gateway. A gateway's refusal has no error object."""
        return bool(refusal.said)

    def cancel(self, batch_id: str) -> None:
        if self._profile.cancels:
            self._end(batch_id)
        else:
            self._refuse_cancel(batch_id)

    def _end(self, batch_id: str) -> None:
        with self._translated(f"cancel {batch_id}"):
            try:
                self._api.cancel(batch_id)
            except ApiRefusal as refusal:
                if refusal.status != HTTPStatus.CONFLICT:
                    raise
                # The batch ended before the cancel; collecting will show how.

    def _refuse_cancel(self, batch_id: str) -> None:
        now = self.retrieve(batch_id)
        if now is None or not now.status.is_final:
            raise BackendRefused(f"{self._name}: the provider has no call to end {batch_id}", code=NO_CANCEL)

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        with (
            self._translated(f"download {file_id}", call_limits.transfer()),
            self._api.content(file_id) as chunks,
        ):
            return keep(
                chunks, lambda found: self._read_lines(found, input_path), path, (httpx2.HTTPError, ValueError)
            )

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        """Yield the lines of a result file. Our own server's lines need no repair."""
        yield from (split_lines if self._profile.is_orch else result_lines)(chunks)

    def size_of(self, file_id: str) -> int | None:
        with self._translated(f"look {file_id} up"):
            return remote_file(self._api.file(file_id).json()).size

    def partial(self, batch_id: str, kind: str, path: Path) -> bool:
        if not self._profile.is_orch:
            return False
        whole = self._api.whole(f"batches/{batch_id}/{kind}")
        with self._translated(f"read {batch_id}", call_limits.transfer()), whole as chunks:
            store(chunks, path)
            return True

    def read_on(self, batch_id: str, kind: str, first: int, most: int) -> bytes | None:
        if not self._profile.is_orch:
            return None
        with self._translated(f"read {batch_id}"):
            try:
                return self._api.part(f"batches/{batch_id}/{kind}", first, most)
            except ApiRefusal as refusal:
                if refusal.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                return b""  # nothing new was written

    def forget_file(self, file_id: str) -> None:
        with self._translated(f"delete {file_id}"):
            try:
                self._api.delete_file(file_id)
            except ApiRefusal as refusal:
                if refusal.status not in GONE:
                    raise

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        try:
            with self._translated("list batches"):
                answer = self._api.batches(1)
                lenient.entries(answer.json())
            yield DoctorCheck("batches", True, f"can be listed, as {self.account()}")
        except OrchError as error:
            yield DoctorCheck("batches", False, str(error))
            return
        skew = clock_check(date_of(answer.headers.get("date")), now())
        if skew is not None:
            yield skew
        yield from self._check_models(models)

    def _check_models(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        if models and not self._profile.lists_models:
            for model in models:
                yield DoctorCheck(f"model {model}", True, "is a deployment's name, which cannot be listed")
            return
        try:
            known = self._listed_models() if models else []
        except OrchError as error:
            yield DoctorCheck("models", False, str(error))
            return
        for model in models:
            found = "is there" if model in known else f"is not there{near_words(model, known)}"
            yield DoctorCheck(f"model {model}", model in known, found)

    @contextmanager
    def _translated(
        self, what: str, pace: AbstractContextManager[None] | None = None, *, creating: bool = False
    ) -> Iterator[None]:
        try:
            with pace or call_limits.control():
                yield
        except (ApiRefusal, httpx2.HTTPError, *UNREADABLE) as error:
            message = f"{self._name}: cannot {what}"
            # Not `from error`: logs show causes, and the client's own texts may contain the key.
            secret = self._api.api_key
            raise meaning(error, message, self._of_answer, creating=creating, secret=secret) from None
