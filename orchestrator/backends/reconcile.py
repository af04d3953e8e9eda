"""Compares a provider's batches and input files with our own records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import Any

from msgspec import Struct

from orchestrator.backends import SHARD_KEY, RemoteBatch, RemoteFile
from orchestrator.backends.batch_names import metadata_in_file
from orchestrator.core.counts import number_of
from orchestrator.core.shards import Shard, ShardState


class FindingKind(StrEnum):
    """Kind of difference between a batch or a file and our records."""

    UNKNOWN = "unknown"  # a batch with a shard id of ours that no shard in this home has
    FOREIGN = "foreign"  # a batch without our ids: from another program, or made by hand
    UNADOPTED = "unadopted"  # the batch of a shard whose submission was cut off: the daemon's next step adopts it
    DOUBLE = "double"  # a batch with the id of a shard that has another batch, or no longer has one
    RUNNING = "running"  # a batch that still runs at the provider although its shard is over
    COUNTS = "counts"  # a batch whose counts differ from the recorded ones
    GONE = "gone"  # a shard's batch that is missing at the provider
    ACCOUNT = "account"  # a shard's batch that does not belong to the key's account
    FILE = "file"  # an input file that no batch needs any more

    @property
    def is_fault(self) -> bool:
        """True if someone has to act on the finding."""
        return self not in (FindingKind.FOREIGN, FindingKind.UNADOPTED, FindingKind.FILE)


class Finding(Struct, frozen=True):
    """A difference, described by `text`. `id` is the batch's or file's id; `shard` is our shard's id, if known."""

    kind: FindingKind
    id: str
    shard: str | None
    text: str


class Comparison(Struct, frozen=True):
    """Result of comparing a backend with our records: the number of matching batches, and all differences."""

    backend: str
    account: str
    batches: int
    known: int
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """True if no finding is a fault."""
        return not any(finding.kind.is_fault for finding in self.findings)

    @property
    def files(self) -> tuple[Finding, ...]:
        """Input files that may be deleted."""
        return tuple(finding for finding in self.findings if finding.kind is FindingKind.FILE)

    def to_json(self) -> dict[str, Any]:
        """Return the stable form; documented in docs/reference/json.md."""
        return {
            "backend": self.backend,
            "account": self.account,
            "batches": self.batches,
            "known": self.known,
            "findings": [
                {"kind": finding.kind.value, "id": finding.id, "shard": finding.shard, "text": finding.text}
                for finding in self.findings
            ],
        }


def compare(
    backend: str,
    account: str,
    shards: Iterable[Shard],
    batches: Iterable[RemoteBatch],
    files: Iterable[RemoteFile],
    moved: Collection[str] = (),
) -> Comparison:
    """Compare a backend's shards with every batch and input file of the key's account.

    Shards in `moved` changed while orch called the provider, so their records do not match the provider's answers in
    time.
    """
    ours: dict[str, Shard] = {shard.id: shard for shard in shards}
    by_batch = {shard.batch_id: shard for shard in ours.values() if shard.batch_id is not None}
    findings: list[Finding] = []
    seen: set[str] = set()
    known = 0
    for batch in batches:
        seen.add(batch.id)
        if (shard := by_batch.get(batch.id)) is not None:
            differences = [] if shard.id in moved else list(_differences(shard, batch))
            known += not differences
            findings += differences
        else:
            findings.append(_not_ours(batch, ours.get(batch.shard or "")))
    unseen = (shard for batch_id, shard in by_batch.items() if batch_id not in seen)
    findings += (_missing(shard, account) for shard in unseen if is_open(shard))
    findings += _left_behind(ours, files)
    return Comparison(backend, account, len(seen), known, tuple(findings))


def is_open(shard: Shard) -> bool:
    """True if a shard's batch must still exist at the backend."""
    return shard.batch_id is not None and shard.state in (ShardState.SUBMITTED, ShardState.ENDED)


def _differences(shard: Shard, batch: RemoteBatch) -> Iterator[Finding]:
    def found(kind: FindingKind, text: str) -> Finding:
        return Finding(kind, batch.id, shard.id, text)

    if batch.rows is not None and batch.rows != shard.rows:
        yield found(
            FindingKind.COUNTS, f"has {number_of(batch.rows, 'row')} there, and shard {shard.id} has {shard.rows:,}"
        )
    if shard.state is ShardState.SUBMITTED:
        return  # the shard still changes
    if not batch.status.is_final:
        yield found(FindingKind.RUNNING, f"is {batch.status} there, though shard {shard.id} is {shard.state}")
        return
    here, there = (shard.provider_completed, shard.provider_failed), (batch.completed, batch.failed)
    if batch.is_counted and here != there:
        yield found(
            FindingKind.COUNTS,
            f"has {number_of(there[0], 'row')} done and {there[1]:,} failed there; "
            f"{here[0]:,} and {here[1]:,} were noted",
        )


def _not_ours(batch: RemoteBatch, shard: Shard | None) -> Finding:
    size = "" if batch.rows is None else f" of {number_of(batch.rows, 'row')}"
    told = f"a batch{size} that is {batch.status}"
    if batch.shard is None:
        return Finding(FindingKind.FOREIGN, batch.id, None, f"{told}, made by something else")
    if shard is None:
        text = f"{told}, for shard {batch.shard}, which is not in this database: another home's, or a lost one's"
        return Finding(FindingKind.UNKNOWN, batch.id, batch.shard, text)
    if shard.state is ShardState.SUBMITTING:
        text = f"{told}; shard {shard.id} was cut off while creating it; the daemon's next step adopts it"
        return Finding(FindingKind.UNADOPTED, batch.id, shard.id, text)
    other = f"has {shard.batch_id}" if shard.batch_id else f"is {shard.state} without one"
    advice = "may have been billed twice" if batch.status.is_final else "are billed twice unless it is cancelled"
    text = f"{told}, for shard {shard.id}, which {other}: its rows {advice}"
    return Finding(FindingKind.DOUBLE, batch.id, shard.id, text)


def _missing(shard: Shard, account: str) -> Finding:
    assert shard.batch_id is not None
    if shard.account not in (None, account):
        text = f"the batch of shard {shard.id} belongs to {shard.account}, and the key now to {account}"
        return Finding(FindingKind.ACCOUNT, shard.batch_id, shard.id, text)
    return Finding(FindingKind.GONE, shard.batch_id, shard.id, f"the batch of shard {shard.id} is no longer there")


def _left_behind(ours: dict[str, Shard], files: Iterable[RemoteFile]) -> Iterator[Finding]:
    for file in files:
        shard = ours.get(metadata_in_file(file.name).get(SHARD_KEY) or "")
        if shard is not None and shard.state.is_final:
            size = "" if file.size is None else f" of {file.size:,} bytes"
            text = f"input file {file.name}{size}, whose shard is {shard.state}"
            yield Finding(FindingKind.FILE, file.id, shard.id, text)
