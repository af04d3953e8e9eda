"""What people are told is kept once, and unsent until it was taken."""

from __future__ import annotations

from msgspec.structs import replace

from orchestrator.core.model import JobId
from orchestrator.store import Store
from orchestrator.store.alerts import AlertRecord
from tests.support.stored import NOW, added, later

JOB = JobId("contracts-1")
RISK = AlertRecord("deadline:contracts-1:risk|mail", NOW, "deadline", JOB, "at risk", "nothing yet")
REPORT = AlertRecord("report:contracts-1|mail", later(1), "report", JOB, "", "")


def test_a_key_is_kept_once(store: Store) -> None:
    added(store)
    assert store.alerts.add(RISK)
    assert not store.alerts.add(replace(RISK, at=later(2), message="other words"))
    assert store.alerts.add(REPORT)
    assert store.alerts.of_job(JOB) == [RISK, REPORT]


def test_it_is_unsent_until_it_was_taken_or_is_too_old(store: Store) -> None:
    added(store)
    for one in (REPORT, RISK, replace(RISK, key="known", sent_at=NOW)):
        store.alerts.add(one)
    assert store.alerts.unsent("home", NOW) == [RISK, REPORT]
    assert store.alerts.unsent("home", later(0.5)) == [REPORT]
    assert store.alerts.unsent("another home", NOW) == []
    store.alerts.sent(RISK.key, later(2))
    store.alerts.sent(RISK.key, later(3))
    store.alerts.sent("none", later(3))
    assert store.alerts.unsent("home", NOW) == [REPORT]
    assert replace(RISK, sent_at=later(2)) in store.alerts.of_job(JOB)


def test_jobs_that_are_over(store: Store) -> None:
    added(store, job_id="running")
    added(store, job_id="done-long-ago")
    store.jobs.finish(JobId("done-long-ago"), "/out", later(1))
    added(store, job_id="done")
    store.jobs.finish(JobId("done"), "/out", later(3))
    added(store, job_id="broken", created_at=later(2))
    store.jobs.fail(JobId("broken"), "no model")
    added(store, job_id="broken-long-ago", created_at=later(1))
    store.jobs.fail(JobId("broken-long-ago"), "no model")
    added(store, job_id="elsewhere", home="another")
    store.jobs.finish(JobId("elsewhere"), "/out", later(3))
    assert store.alerts.ended_jobs("home", later(2)) == ["done", "broken"]


def test_what_was_told_of_a_job_goes_with_it(store: Store) -> None:
    job = added(store)
    store.alerts.add(RISK)
    assert store.jobs.discard(job.id)
    assert store.alerts.of_job(JOB) == []
