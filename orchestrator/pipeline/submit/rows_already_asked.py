"""Rows of a job that unknown batches already ask, perhaps under other ids. Pure.

A row's id comes from its document's path, and a folder may have been renamed. Rows with equal requests are
interchangeable: each line of a batch is for one row, preferably the row with its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from orchestrator.backends import RemoteBatch, SentLines
from orchestrator.core.shards import Shard


class Match(Struct):
    """A batch, with the ids of each shard's rows in it. `left` has its lines without a row, by request."""

    batch: RemoteBatch
    left: dict[bytes, dict[str, None]]
    shards: list[tuple[Shard, dict[str, str]]] = field(default_factory=list)
    is_exact: bool = False
    """True if a row has the same id in the shard and in the batch."""

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
    """Match the requests in `batches` to equal requests in `shards`, which map custom_ids to digests.

    Earlier batches are matched first. Unless `under_other_ids`, the custom_id must be equal too.
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
