"""Batches at backends that were removed from orch.toml. Orch cannot collect these batches until the backends are
back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.core.counts import number_of
from orchestrator.core.shards import AT_BACKEND, Shard

if TYPE_CHECKING:
    from orchestrator.store import Store


def at_removed(shards: Iterable[Shard], backends: Collection[str]) -> dict[str, list[Shard]]:
    """Return the batches at backends that are not in `backends`, grouped by backend."""
    found: dict[str, list[Shard]] = defaultdict(list)
    for shard in shards:
        if shard.state in AT_BACKEND and shard.backend not in backends:
            found[shard.backend].append(shard)
    return dict(sorted(found.items()))


def of_home(store: Store, home: str, backends: Collection[str]) -> dict[str, list[Shard]]:
    """Return the batches of a home's open jobs at backends removed from orch.toml."""
    return at_removed((one for job in store.jobs.unfinished(home) for one in store.shards.of_job(job.id)), backends)


def removed_words(removed: Mapping[str, Sequence[Shard]]) -> list[str]:
    """Say for each removed backend how many batches and rows are left there, and what to do."""
    return [
        f"{number_of(len(shards), 'batch')} of {number_of(sum(one.rows for one in shards), 'row')} "
        f"{'is' if len(shards) == 1 else 'are'} out at {name}, which orch.toml no longer has; put it back"
        for name, shards in removed.items()
    ]
