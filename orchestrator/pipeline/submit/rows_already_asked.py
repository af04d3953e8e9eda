"""Rows of a job that unknown batches already contain, perhaps under other ids. Pure.

A row's id comes from its document's path, and a folder may have been renamed. Rows with equal requests are
interchangeable. Each line of a batch is matched to one row, preferably the row with the same id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from orchestrator.backends import RemoteBatch, SentLines
from orchestrator.core.shards import Shard


class Match(Struct):
    """A batch, and the shards whose rows it contains.

    `shards` has, for each shard, the ids in the batch by our row ids. `left` has the ids of lines that match no row,
    by request.
    """

    batch: RemoteBatch
    left: dict[bytes, dict[str, None]]
    shards: list[tuple[Shard, dict[str, str]]] = field(default_factory=list)
    is_exact: bool = False
    """True if at least one row has the same id in the shard and in the batch."""

    @property
    def is_whole(self) -> bool:
        return not any(self.left.values())

    def names(self) -> dict[str, str]:
        """Map the ids in the batch to our row ids."""
        return {there: name for _, same in self.shards for name, there in same.items()}


def matches(
    batches: Iterable[tuple[RemoteBatch, SentLines]],
    shards: Iterable[tuple[Shard, Mapping[str, bytes]]],
    *,
    under_other_ids: bool,
) -> list[Match]:
    """Match the requests in `batches` to equal requests in `shards`. Return the batches with a match.

    The requests of a shard are digests by custom_id. Earlier batches are matched first. Unless `under_other_ids`, the
    custom_ids must be equal too.
    """
    found = [Match(batch, {one: dict.fromkeys(names) for one, names in lines.items()}) for batch, lines in batches]
    for shard, ours in shards:
        waiting, same = dict(ours), [dict[str, str]() for _ in found]
        for match, taken in zip(found, same, strict=True):
            for name in [name for name, digest in waiting.items() if name in match.left.get(digest, ())]:
                del match.left[waiting.pop(name)][name]
                taken[name] = name
                match.is_exact = True
        for match, taken in zip(found, same, strict=True) if under_other_ids else ():
            for name, digest in list(waiting.items()):
                if others := match.left.get(digest):
                    taken[name], _ = others.popitem()
                    del waiting[name]
        for match, taken in zip(found, same, strict=True):
            if taken:
                match.shards.append((shard, taken))
    return [match for match in found if match.shards]
