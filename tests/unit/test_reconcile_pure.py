"""What a provider has beside what we know: each difference, and nothing where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.backends import RemoteBatch, RemoteFile
from orchestrator.backends.reconcile import Comparison, FindingKind, compare
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.shards import Shard, ShardState
from tests.support.stored import job, shard

JOB = job()
ACCOUNT = "org:acme"
ENDED = {"provider_completed": 2, "provider_failed": 1}


def ours(number: int = 1, state: ShardState = ShardState.SUBMITTED, **facts: Any) -> Shard:
    """A shard of three rows whose batch has its number."""
    return shard(JOB, number, **{"state": state, "batch_id": f"batch_{number}", "account": ACCOUNT, **facts})


def theirs(number: int = 1, status: str = "in_progress", **facts: Any) -> RemoteBatch:
    of_shard = f"{JOB.id}.{number:03d}"
    return RemoteBatch(
        f"batch_{number}", BatchStatus(status), **{"shard": of_shard, "rows": 3, "is_counted": True, **facts}
    )


def compared(
    shards: list[Shard], batches: list[RemoteBatch], files: tuple[RemoteFile, ...] = (), moved: tuple[str, ...] = ()
) -> Comparison:
    return compare("cloud", ACCOUNT, shards, batches, files, moved)


DONE = {"completed": 2, "failed": 1}
OVER = ours(state=ShardState.COLLECTED, **ENDED)
UNSENT = {"batch_id": None, "account": None}
CASES: dict[str, tuple[list[Shard], list[RemoteBatch], list[tuple[FindingKind, str, str | None]], str]] = {
    "running": ([ours()], [theirs(completed=1)], [], ""),
    "over": ([OVER], [theirs(status="completed", **DONE)], [], ""),
    "over, and its provider counts no rows": ([OVER], [theirs(status="completed", is_counted=False)], [], ""),
    "over, and not listed any more": ([OVER], [], [], ""),
    "no metadata there": ([ours()], [theirs(shard=None, rows=None)], [], ""),
    "of another home": (
        [ours()],
        [theirs(), theirs(2)],
        [(FindingKind.UNKNOWN, "batch_2", "contracts-1.002")],
        "a batch of 3 rows that is in_progress, for shard contracts-1.002, which is not in this database",
    ),
    "of another program": (
        [],
        [theirs(shard=None)],
        [(FindingKind.FOREIGN, "batch_1", None)],
        "made by something else",
    ),
    "cut off while it was made": (
        [ours(state=ShardState.SUBMITTING, **UNSENT)],
        [theirs()],
        [(FindingKind.UNADOPTED, "batch_1", "contracts-1.001")],
        "the daemon's next step adopts it",
    ),
    "a second one that runs": (
        [ours()],
        [theirs(), replace(theirs(), id="batch_x")],
        [(FindingKind.DOUBLE, "batch_x", "contracts-1.001")],
        "which has batch_1: its rows are billed twice unless it is cancelled",
    ),
    "a second one that is over": (
        [ours(state=ShardState.PENDING, **UNSENT)],
        [theirs(status="completed")],
        [(FindingKind.DOUBLE, "batch_1", "contracts-1.001")],
        "which is pending without one: its rows may have been billed twice",
    ),
    "gone": ([ours()], [], [(FindingKind.GONE, "batch_1", "contracts-1.001")], "is no longer there"),
    "gone before it was collected": (
        [ours(state=ShardState.ENDED)],
        [],
        [(FindingKind.GONE, "batch_1", "contracts-1.001")],
        "is no longer there",
    ),
    "of another account": (
        [ours(account="org:before")],
        [],
        [(FindingKind.ACCOUNT, "batch_1", "contracts-1.001")],
        "belongs to org:before, and the key now to org:acme",
    ),
    "collected and still running": (
        [OVER],
        [theirs()],
        [(FindingKind.RUNNING, "batch_1", "contracts-1.001")],
        "is in_progress there, though shard contracts-1.001 is collected",
    ),
    "counts that changed after the end": (
        [OVER],
        [theirs(status="cancelled", completed=3)],
        [(FindingKind.COUNTS, "batch_1", "contracts-1.001")],
        "has 3 rows done and 0 failed there; 2 and 1 were noted",
    ),
    "another number of rows": (
        [ours()],
        [theirs(rows=2)],
        [(FindingKind.COUNTS, "batch_1", "contracts-1.001")],
        "has 2 rows there, and shard contracts-1.001 has 3",
    ),
}


@pytest.mark.parametrize(("shards", "batches", "expected", "text"), CASES.values(), ids=CASES)
def test_each_difference(
    shards: list[Shard], batches: list[RemoteBatch], expected: list[tuple[FindingKind, str, str | None]], text: str
) -> None:
    found = compared(shards, batches)
    assert [(finding.kind, finding.id, finding.shard) for finding in found.findings] == expected
    assert found.batches == len(batches)
    assert found.is_well is (not expected or expected[0][0] in (FindingKind.FOREIGN, FindingKind.UNADOPTED))
    if expected:
        assert text in found.findings[0].text
    else:
        assert found.known == len(batches)


def test_a_shard_that_went_on_while_the_backend_was_asked_differs_in_nothing() -> None:
    [finding] = compared([OVER], [theirs()]).findings
    assert finding.kind is FindingKind.RUNNING
    found = compared([OVER], [theirs()], moved=(OVER.id,))
    assert (found.findings, found.known) == ((), 1)


def file(name: str, number: int = 1) -> RemoteFile:
    return RemoteFile(f"file-{number}", name, 300)


def test_input_files_may_go_once_their_shard_is_over() -> None:
    shards = [OVER, ours(2), ours(3, ShardState.CANCELLED, **UNSENT), ours(4, ShardState.ENDED)]
    names = [f"{one.id}.jsonl" for one in shards]
    files = [file(name, number) for number, name in enumerate(names, 1)]
    others = [file("contracts-1.001", 7), file("somebody.jsonl", 8), file("", 9), file("contracts-9.001.jsonl", 10)]
    found = compared(shards, [theirs(2), theirs(4, "completed")], (*files, *others, file(names[0], 11)))
    assert [finding.id for finding in found.files] == ["file-1", "file-3", "file-11"]
    assert found.files[0].text == "input file contracts-1.001.jsonl of 300 bytes, whose shard is collected"
    assert found.is_well


def test_the_stable_form() -> None:
    assert compared([ours()], []).to_json() == {
        "backend": "cloud",
        "account": ACCOUNT,
        "batches": 0,
        "known": 0,
        "findings": [
            {
                "kind": "gone",
                "id": "batch_1",
                "shard": "contracts-1.001",
                "text": "the batch of shard contracts-1.001 is no longer there",
            }
        ],
    }


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from(ShardState), st.booleans()), unique_by=lambda s: s[0]),
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(BatchStatus), st.booleans()), unique_by=lambda b: b[0]),
)
def test_no_batch_is_passed_over(
    shards: list[tuple[int, ShardState, bool]], batches: list[tuple[int, BatchStatus, bool]]
) -> None:
    here = [ours(number, state, **({} if sent else UNSENT)) for number, state, sent in shards]
    there = [theirs(number, status, **({} if marked else {"shard": None})) for number, status, marked in batches]
    found = compared(here, there)
    told = {finding.id for finding in found.findings if finding.kind is not FindingKind.GONE}
    assert found.batches == len(there) == found.known + len(told)
    # Whatever is open here is known there, differs, or is told as gone.
    gone = {finding.id for finding in found.findings if finding.kind is FindingKind.GONE}
    for one in here:
        if one.batch_id and one.state in (ShardState.SUBMITTED, ShardState.ENDED):
            assert (one.batch_id in gone) is (one.batch_id not in {batch.id for batch in there})
