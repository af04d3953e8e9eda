"""Manifests: lists of the objects that hold a replica's files and database images at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.replica.contents import ReplicaLayout
from orchestrator.core.replica.storage import DamagedReplica, Missing, Storage

OBJECTS, MANIFESTS = "objects", "manifests"
PIECE_BYTES = 8 * 1024 * 1024
IMAGE_PIECE_BYTES = 256 * 1024


class ReplicaPiece(msgspec.Struct, frozen=True, array_like=True):
    """A stored piece: its object's name, size and digest."""

    name: str
    size: int
    digest: str


Pieces = Mapping[str, Sequence[ReplicaPiece]]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of each image and each file, by path under the folder."""

    images: Pieces = msgspec.field(default_factory=dict)
    files: Pieces = msgspec.field(default_factory=dict)

    def names(self) -> Iterator[str]:
        """Yield the names of the objects that the manifest needs."""
        for pieces in (*self.images.values(), *self.files.values()):
            yield from (piece.name for piece in pieces)


class _Written(Manifest, frozen=True, kw_only=True):
    """A manifest as stored. Early versions had a single image, that of a server's database."""

    database: Sequence[ReplicaPiece] = ()


FORMER_IMAGE = "server.db"
_decode = json_decoder(_Written).decode


def digest(data: bytes) -> str:
    """Return a hash that identifies the content."""
    return blake2b(data, digest_size=16).hexdigest()


def size_of(pieces: Sequence[ReplicaPiece]) -> int:
    """Return the total size of pieces in bytes."""
    return sum(piece.size for piece in pieces)


def read_manifest(storage: Storage, name: str, layout: ReplicaLayout) -> Manifest:
    """Read the manifest that a head names; an empty name gives an empty manifest. Raises StorageError."""
    if not name:
        return Manifest()
    try:
        found = _decode(storage.get(name))
    except Missing:
        raise DamagedReplica(f"the replica {storage.url} lacks its manifest {name}") from None
    except JSON_ERRORS as error:
        raise DamagedReplica(f"the manifest {name} of the replica {storage.url} cannot be read: {error}") from error
    images = {FORMER_IMAGE: found.database} if found.database else found.images
    for path in (*images, *found.files):
        if not layout.has(path):
            raise DamagedReplica(
                f"the manifest {name} of the replica {storage.url} names {path}, which is not replicated here",
                hint="one replica is for the servers of one folder, or for the daemons of one home",
            )
    return Manifest(images=images, files=found.files)


def first_to_send(sizes: Sequence[int], more: int) -> int:
    """Return the index of the first piece to send again, merged with the `more` new bytes of a file.

    A trailing piece is merged if it is at most twice as large as all that follows it. So a file has few pieces: about
    as many as its size has digits, plus one for each PIECE_BYTES. A byte is sent again only when its piece doubles.
    """
    first = len(sizes)
    while first and sizes[first - 1] <= 2 * more and sizes[first - 1] + more <= PIECE_BYTES:
        first -= 1
        more += sizes[first]
    return first
