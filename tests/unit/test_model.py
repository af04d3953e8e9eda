"""States: the moves between them, and what a job's state is told from."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from orchestrator.core.counts import Counts
from orchestrator.core.model import Job, JobId, JobKind, JobState, RequestState, job_state
from orchestrator.core.shards import TRANSITIONS, ShardState

NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)
MOVES = {
    ("pending", "submitting"),
    ("pending", "cancelled"),
    ("submitting", "submitted"),
    ("submitting", "pending"),
    ("submitting", "ended"),
    ("submitted", "ended"),
    ("ended", "collected"),
}


@pytest.mark.parametrize("to", ShardState)
@pytest.mark.parametrize("from_", ShardState)
def test_a_shard_makes_these_moves_and_no_other(from_: ShardState, to: ShardState) -> None:
    assert (to in TRANSITIONS[from_]) == ((from_, to) in MOVES)


def test_every_state_of_a_shard_is_reached_from_pending() -> None:
    reached, new = set(), {ShardState.PENDING}
    while new:
        reached |= new
        new = {to for state in new for to in TRANSITIONS[state]} - reached
    assert reached == set(ShardState) == set(TRANSITIONS)


def test_every_shard_can_come_to_an_end() -> None:
    ends = {state for state in ShardState if state.is_final}
    assert ends == {ShardState.COLLECTED, ShardState.CANCELLED}
    for _ in ShardState:
        ends |= {state for state in ShardState if TRANSITIONS[state] & ends}
    assert ends == set(ShardState)


def test_a_shard_that_may_have_a_batch_is_never_cancelled_here() -> None:
    # Its rows may be paid for: only the backend's files can say what became of them.
    assert [state for state in ShardState if ShardState.CANCELLED in TRANSITIONS[state]] == [ShardState.PENDING]


def test_every_state_of_a_request_but_pending_is_an_outcome() -> None:
    assert [state.value for state in RequestState if not state.is_final] == ["pending"]


JOB = Job(
    id=JobId("a-1"), home="h", series="s", identity="i", name="a", kind=JobKind.DOCUMENTS, source="a.yaml", spec={},
    options={}, created_at=NOW, built_at=NOW,
)  # fmt: skip
OPEN, DONE = Counts(pending=1, succeeded=2), Counts(succeeded=2, failed=1)
JOBS = {
    "being built": (replace(JOB, built_at=None), Counts(), False, "building"),
    "half of it built": (replace(JOB, built_at=None), OPEN, False, "building"),
    "waits for another": (replace(JOB, built_at=None, options={"after": "b-1"}), Counts(), False, "waiting"),
    "built, as that is over": (replace(JOB, built_at=None, options={"after": "b-1"}), OPEN, False, "building"),
    "nothing sent": (JOB, OPEN, False, "queued"),
    "sent": (JOB, OPEN, True, "running"),
    "all rows done": (JOB, DONE, True, "merging"),
    "no rows at all": (JOB, Counts(), False, "merging"),
    "finished": (replace(JOB, finished_at=NOW), DONE, True, "completed"),
    "finished with failures only": (replace(JOB, finished_at=NOW), Counts(failed=3), True, "completed"),
    "done and not delivered": (
        replace(JOB, finished_at=NOW, error="x", error_code="output_exists"),
        DONE,
        True,
        "failed",
    ),
    "to be cancelled": (replace(JOB, cancel_requested_at=NOW), OPEN, True, "cancelling"),
    "to be cancelled while built": (
        replace(JOB, built_at=None, cancel_requested_at=NOW),
        Counts(),
        False,
        "cancelling",
    ),
    "cancelled": (replace(JOB, cancel_requested_at=NOW, finished_at=NOW), DONE, True, "cancelled"),
    "broken": (replace(JOB, error="the input is gone"), OPEN, True, "failed"),
    "broken and cancelled": (replace(JOB, error="x", cancel_requested_at=NOW), OPEN, True, "failed"),
}


@pytest.mark.parametrize(("job", "counts", "submitted", "state"), JOBS.values(), ids=JOBS.keys())
def test_the_state_of_a_job(job: Job, counts: Counts, submitted: bool, state: str) -> None:
    assert job_state(job, counts, submitted=submitted) == state


def test_every_state_of_a_job_is_told_of_some_job() -> None:
    assert {state for *_, state in JOBS.values()} == set(JobState) - {JobState.STOPPED}, "which needs processes"


def test_the_final_states_of_a_job() -> None:
    assert {state.value for state in JobState if state.is_final} == {"completed", "cancelled", "failed"}


def test_counts_add_up() -> None:
    counts = Counts(pending=1, succeeded=2, failed=4, cancelled=8, expired=16)
    assert (counts.total, counts.done, counts.ended) == (31, 6, 30)
