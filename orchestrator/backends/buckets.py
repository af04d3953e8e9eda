"""Batch files in a bucket: keys, input files and a check, for providers whose jobs use buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, BinaryIO

from msgspec import Struct

from orchestrator.backends import HOME_KEY, SHARD_KEY, BatchOrder, DoctorCheck, lenient
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.received_files import sized, translated
from orchestrator.core.errors import OrchError

Json = dict[str, Any]


class BucketPrefix(Struct, frozen=True):
    """The bucket, and the prefix of the keys that belong to orch."""

    bucket: str
    prefix: str
    scheme: str = "s3"

    @property
    def inputs(self) -> str:
        return f"{self.prefix}/in/"

    def input_key(self, name: str, digest: str) -> str:
        """Return the key of an input file. It contains the digest, so a repeated upload writes the same file."""
        return f"{self.inputs}{digest[:16]}/{name}"

    def output(self, order: BatchOrder) -> str:
        """Return the prefix for a batch's results. It encodes shard and home, because every listing shows the
        prefix.
        """
        return f"{self.prefix}/out/{order.home or '-'}/{order.shard}/"

    def uri(self, key: str) -> str:
        return f"{self.scheme}://{self.bucket}/{key}"

    def key_in(self, uri: object) -> str | None:
        """Return the object key in a URI; None if the URI names another bucket."""
        found = lenient.text(uri, 2048)
        return found.removeprefix(self.uri("")) if found.startswith(self.uri("")) else None

    def owner_of(self, output: str | None) -> Json:
        """Return the metadata that a result prefix encodes; empty if the prefix is not ours."""
        parts = (output or "").removeprefix(f"{self.prefix}/out/").strip("/").split("/")
        if not (output or "").startswith(f"{self.prefix}/out/") or len(parts) != 2:
            return {}
        return {HOME_KEY: None if parts[0] == "-" else parts[0], SHARD_KEY: parts[1]}


class InputObject(Struct, frozen=True):
    """An input file, open at its start, with its size in bytes, its key and the digest of its content."""

    file: BinaryIO
    size: int
    key: str
    digest: str


@contextmanager
def input_object(place: BucketPrefix, name: str, source: BinaryIO, lines: Iterable[bytes]) -> Iterator[InputObject]:
    """Open an input object with these lines, translated from a job's file. Raises JobFilesError."""
    with translated(source, lines) as file:
        digest = sha256()
        while block := file.read(1 << 18):
            digest.update(block)
        yield InputObject(file, sized(file), place.input_key(name, digest.hexdigest()), digest.hexdigest())


class WithBucket(ApiBatches):
    """Batches that read and write files of a bucket. `role` names the account that accesses the bucket."""

    def __init__(self, *given: Any, bucket: str, role: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self._bucket, self._role = bucket, role

    def check(self, models: Sequence[str]) -> Iterator[DoctorCheck]:
        yield from super().check(models)
        try:
            with self._translated(f"list the bucket {self._bucket}"):
                self._api.files(1)
            told = f"{self._bucket} can be listed; only a job shows if {self._role} may use it"
            yield DoctorCheck("bucket", True, told)
        except OrchError as error:
            yield DoctorCheck("bucket", False, str(error))
