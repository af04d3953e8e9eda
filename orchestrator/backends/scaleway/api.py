"""The calls of Scaleway's batches and their bucket, answered in OpenAI's shape.

Sources: scaleway/docs-content 773e5de (pages/generative-apis/how-to/use-batch-processing.mdx), Scaleway's reference
of the Batches API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

import httpx2

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.api import ApiAnswer, create_fields
from orchestrator.backends.batch_names import FILE_ENDING, metadata_in_file
from orchestrator.backends.buckets import BucketPrefix
from orchestrator.backends.openai_http import converted
from orchestrator.backends.s3_files import S3FilesAPI
from orchestrator.core.error_body import openai_error

_RESULTS = ("output_file_id", "error_file_id")
_LONGEST_ADDRESS = 4096
_UNKNOWN = "unknown_results"


class ScalewayAPI(S3FilesAPI):
    """Scaleway's calls. `address` is the bucket's own address.

    A create must name it, even if the client uses another address.
    """

    def __init__(
        self,
        http: httpx2.Client,
        api_key: str,
        silent: float,
        bucket: httpx2.Client,
        place: BucketPrefix,
        address: str,
    ) -> None:
        super().__init__(http, api_key, silent, bucket, place)
        self._address = f"{address}/"

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        stored = self.put(name, content, content)
        if stored is None:
            raise ValueError("the input file is empty")
        return stored

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        return self._streamed(self._bucket, quote(file_id))

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        fields = create_fields(order, window)
        del fields["metadata"]  # No page says that a batch keeps metadata. The file's address shows the owner.
        address = self._address + quote(order.input_file_id)
        return converted(self._post("batches", {**fields, "input_file_id": address}), self._batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return converted(super().batches(limit, after), self._list_of)

    def batch(self, batch_id: str) -> ApiAnswer:
        """Return a batch. Raises ValueError if its result files have unknown names, because a guess could lose paid
        answers.
        """
        found = converted(super().batch(batch_id), self._batch_of)
        if unknown := lenient.mapping(found.json()).get(_UNKNOWN):
            raise ValueError(f"its results have an unknown address: {lenient.text(unknown)}")
        return found

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        return status, openai_error(body)

    def _list_of(self, told: object) -> object:
        found = lenient.mapping(told)
        listed = found.get("data")
        return {**found, "data": [self._batch_of(one) for one in listed]} if isinstance(listed, list) else told

    def _batch_of(self, told: object) -> object:
        """Replace file addresses in a batch by keys. A batch of another program stays unchanged."""
        found = lenient.mapping(told)
        key = self._key_in(found.get("input_file_id"))
        if key is None or not key.startswith(self._place.inputs):
            return told
        folder, _, name = key.rpartition("/")
        batch = {**found, "input_file_id": key, "metadata": metadata_in_file(name)}
        for field in filter(found.get, _RESULTS):
            # Results are in the folder of the input file.
            address = urlsplit(lenient.text(found[field], _LONGEST_ADDRESS))
            result = unquote(address.path).rpartition("/")[2]
            is_known = result.endswith(FILE_ENDING)
            batch |= {field: f"{folder}/{result}"} if is_known else {field: None, _UNKNOWN: found[field]}
        return batch

    def _key_in(self, told: object) -> str | None:
        """Return the key in an object's address, in any spelling; None if the address is in another bucket."""
        address = urlsplit(lenient.text(told, _LONGEST_ADDRESS))
        host, path, bucket = address.hostname or "", unquote(address.path).removeprefix("/"), self._place.bucket
        if host == bucket or host.startswith(f"{bucket}."):
            return path
        return path.removeprefix(f"{bucket}/") if host.startswith("s3.") and path.startswith(f"{bucket}/") else None
