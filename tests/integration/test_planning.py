"""What the pipeline makes of the planner's decisions: real stores and backends, the provider's clock."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.cli import run
from orchestrator.core.clock import now
from orchestrator.core.errors import RefusedError
from orchestrator.core.model import Job
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.backend_admission import BatchRoom
from orchestrator.pipeline.plan.orders import Sending
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.pipeline.plan.replan_timer import ReplanTimer
from orchestrator.pipeline.submit import rows_to_shards
from orchestrator.policy.planner import SynchronousOption
from tests.emulator.driving import chat_line, jsonl
from tests.support.hostedjob import HOUR, Desk, all_are, cost_of, plain, row
from tests.support.process import wait_until

JOB = """\
name: letters
documents: {path: documents}
models: {small: m}
tasks: [{id: facts, model: small, max_tokens: 20, prompt: Facts}]
"""


def view(desk: Desk, job: Job) -> Planning:
    return Planning(desk.store, desk.config, desk.store.jobs.get(job.id), now())


def job_file(folder: Path, more: str = "") -> Path:
    (folder / "documents").mkdir(exist_ok=True)
    for number in range(3):
        (folder / "documents" / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(JOB + more, encoding="utf-8")
    return path


def test_rows_wait_for_the_hours_at_which_they_cost_less(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At DeepSeek tokens cost half as much from 4 to 6 o'clock, UTC, as before."""
    desk.backends({"flex": {"service_tier": "default", "provider": "deepseek", "rows_per_second": 10}})
    desk.provider.clock.advance(1.5 * HOUR)
    lines = [chat_line(f"r{n}", f"what of r{n}?", "deepseek-flash", max_tokens=50) for n in range(40)]
    job = desk.submit(lines, deadline="8h")
    plan = view(desk, job).plan()
    assert plan.starts_at is not None
    assert plan.starts_at.hour == 4
    desk.settle(job)
    for name, value in {"ORCH_CONFIG": desk.place.path, "ORCH_HOME": desk.home.root}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    assert run(["status", str(job.id)]) == 0
    assert (
        "outlook   rows wait until 04:00, which saves 50%; 99.9% likely to be in time; $" in capsys.readouterr().out
    )
    desk.later(2.4 * HOUR, job)
    assert desk.provider.calls("chat") == {}, "a moment before four"
    desk.later(0.2 * HOUR, job)
    wait_until(lambda: not desk.settle(job) and desk.is_over(job))  # its rows run in real time
    assert desk.ends(job) == all_are("succeeded", 40)
    [billed] = desk.provider.bill()["lines"]
    assert desk.cost(job) == (billed["input"] * Decimal("0.15") + billed["output"] * Decimal("0.6")) / 1_000_000


def test_without_history_a_deadline_refuses_nobody(desk: Desk) -> None:
    job = desk.submit(plain(3), deadline="30m")
    plan = view(desk, job).plan()
    assert not plan.verdict.holds
    assert plan.routes[0].reason == "the cheapest; turnaround assumed"


def test_a_budget_that_prices_do_not_keep_is_refused_with_the_least_that_would_do(desk: Desk) -> None:
    with pytest.raises(RefusedError) as refused:
        desk.submit(plain(100, max_tokens=1000), budget=Decimal("0.1"))
    assert "the budget of $0.1" in refused.value.message
    least = Decimal(str(refused.value.hint).partition("--budget ")[2].split()[0])
    assert view(desk, desk.submit(plain(100, max_tokens=1000), budget=least)).plan().verdict.holds
    with pytest.raises(RefusedError):
        desk.submit(plain(100, max_tokens=1000), budget=least * Decimal("0.98"))


def test_a_backend_that_left_orch_toml_keeps_its_rows_and_nothing_else_stops(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    desk.settle(job)
    [shard] = desk.store.shards.of_job(job.id)
    left = "azure" if shard.backend == "openai" else "openai"
    desk.backend(left)
    planning = view(desk, job)
    assert planning.open_rows.running == ()
    outlook = planning.outlook()
    assert outlook is not None
    assert planning.orders().sends == ()


def test_rows_stay_local_though_the_deadline_is_lost(desk: Desk, tmp_path: Path) -> None:
    desk.backends({"openai": {}, "claude": {"location": "local"}})
    job = desk.submit(job_file(tmp_path, "allow: {location: local}\ndeadline: 1h\n"))
    desk.settle(job)
    desk.provider.clock.advance(5 * HOUR)
    desk.step(job)
    assert {shard.backend for shard in desk.store.shards.of_job(job.id)} == {"claude"}
    against = {one.backend: one.objection for one in view(desk, job).options}
    assert against["openai"] is not None


def test_a_job_with_one_backend_waits_for_its_quota_instead_of_being_refused(desk: Desk) -> None:
    desk.backend(limits={"enqueued_tokens": 1})
    job = desk.submit(plain(4), deadline="20h")
    [order] = view(desk, job).orders().sends
    assert (order.rows, order.backend, order.avoid) == (4, "openai", ())


def test_two_backends_of_which_one_is_full(desk: Desk) -> None:
    desk.backends({"openai": {"limits": {"enqueued_tokens": 100}}, "azure": {}})
    first = desk.submit(plain(40))
    sends = view(desk, first).orders().sends
    assert sum(order.rows for order in sends) == 40
    assert {order.backend for order in sends} == {"azure"}


def test_every_look_is_due_when_the_planner_says_so(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    orders = view(desk, job).orders()
    assert now() < orders.next_look <= now() + timedelta(minutes=30)


# --- what is taken back, refused or held


def sent(desk: Desk, job: Job, backend: str, rows: int, avoid: tuple[str, ...] = ()) -> Shard:
    """So many rows that wait in a shard of a backend, as the pipeline plans one."""
    assert desk.daemon is not None
    handle, order = desk.daemon.open(backend), Sending(rows, backend, avoid, "a test")
    [shard] = rows_to_shards.plan_shards(
        desk.store, desk.store.jobs.get(job.id), handle, order, lambda model: BatchRoom(rows, None), now()
    )
    return shard


def keep_from(desk: Desk, shard: Shard, *avoid: str) -> None:
    """Its rows wait again, and keep away from these backends."""
    desk.store.shards.dissolve(shard, "a test")
    seqs = [row.seq for row in desk.store.rows.finished(shard.job_id)]
    again = sent(desk, desk.store.jobs.get(shard.job_id), shard.backend, shard.rows)
    desk.store.rows.free(again, seqs, count_attempt=False, avoid=avoid)
    desk.store.shards.move(again, ShardState.CANCELLED)


def test_rows_that_have_nowhere_else_to_go_are_not_taken_back(desk: Desk) -> None:
    desk.backends({"openai": {}, "flex": {}})
    job = desk.submit(plain(4), deadline="20h")
    keep_from(desk, sent(desk, job, "openai", 4), "flex")
    shard = sent(desk, job, "openai", 4, ("flex",))
    desk.store.shards.move(shard, ShardState.SUBMITTING)
    desk.store.shards.move(desk.store.shards.get(shard.id), ShardState.SUBMITTED, submitted_at=now(), batch_id="b")
    desk.provider.clock.advance(19.9 * HOUR)
    planning = view(desk, job)
    assert planning.open_rows.running == ()
    assert planning.orders().reroutes == ()


@pytest.mark.parametrize("left", [("flex",), ("azure", "flex")], ids=["one backend", "two"])
def test_what_was_taken_back_goes_to_a_option(desk: Desk, left: tuple[str, ...]) -> None:
    desk.backends({"openai": {}, "azure": {}, "flex": {}})
    job = desk.submit(plain(4), deadline="20h")
    shard = sent(desk, job, "openai", 4)
    keep_from(desk, shard, "openai")
    desk.store.shards.note(desk.store.shards.get(shard.id), rerouted_at=now())
    desk.backends({name: {} for name in left})
    [order] = view(desk, job).orders().sends
    assert (order.rows, order.backend, order.avoid) == (4, "flex", ("openai",))


def test_what_was_taken_back_goes_to_another_batch_while_there_is_time(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}, "flex": {"service_tier": "default"}})
    job = desk.submit(plain(4), deadline="20h")
    shard = sent(desk, job, "openai", 4)
    keep_from(desk, shard, "openai")
    desk.store.shards.note(desk.store.shards.get(shard.id), rerouted_at=now())
    [order] = view(desk, job).orders().sends
    assert (order.rows, order.backend, order.avoid) == (4, "azure", ("openai",))
    there = sent(desk, job, "azure", 4, ("openai",))
    seqs = [row.seq for row in desk.store.rows.finished(job.id)]
    desk.store.rows.free(there, seqs, count_attempt=False, avoid=("azure",))
    desk.store.shards.move(there, ShardState.CANCELLED)
    desk.store.shards.note(desk.store.shards.get(there.id), rerouted_at=now())
    [order] = view(desk, job).orders().sends
    assert (order.rows, order.backend) == (4, "flex"), "the job has left both"


def test_a_shared_budget_that_is_used_up_refuses_no_rows_that_run_already(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    keep_from(desk, sent(desk, job, "openai", 4), "openai")
    current = desk.store.jobs.get(job.id)
    [order] = Planning(desk.store, desk.config, current, now(), lambda _: Decimal(0)).orders().sends
    assert (order.rows, order.backend) == (4, "azure")


def test_a_shard_that_was_taken_back_before_it_had_a_batch_is_not_sent(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    shard = sent(desk, job, "openai", 4)
    desk.store.shards.note(shard, rerouted_at=now(), rerouted_for="the deadline")
    desk.step(job)
    assert desk.store.shards.get(shard.id).state is ShardState.CANCELLED
    assert desk.events(job, "split") == ["the deadline"]


def test_a_shard_does_not_go_to_a_backend_that_is_no_longer_local(desk: Desk, tmp_path: Path) -> None:
    desk.backends({"openai": {"location": "local"}, "claude": {"location": "local"}})
    job = desk.submit(job_file(tmp_path, "allow: {location: local}\n"))
    sent(desk, job, "openai", 3)
    desk.backends({"openai": {}, "claude": {"location": "local"}})
    desk.finish(job)
    backends = {shard.backend for shard in desk.store.shards.of_job(job.id) if shard.state is ShardState.COLLECTED}
    assert backends == {"claude"}
    assert desk.ends(job).keys() == {row["custom_id"] for row in desk.rows(job).values()}


def test_rows_that_a_deadline_left_behind_are_not_sent_when_they_are_to_expire(desk: Desk, tmp_path: Path) -> None:
    desk.backend(limits={"max_rows": 2, "batches_per_hour": 1})
    job = desk.submit(job_file(tmp_path, "deadline: 30m\non_late: expire\n"))
    desk.settle(job)
    assert sorted(desk.states(job)) == ["pending (None)", "submitted (validating)"]
    desk.later(2 * HOUR, job)
    desk.finish(job)
    assert len(desk.batches()) == 1
    assert sorted(end.partition(":")[0] for end in desk.ends(job).values()) == ["expired", "succeeded", "succeeded"]
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_a_backend_in_trouble_keeps_no_other_from_being_looked_at(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    one = sent(desk, job, "openai", 2)
    other = sent(desk, job, "azure", 2)
    desk.settle(job)
    desk.backend("azure")  # openai is in orch.toml no more
    desk.later(HOUR, job)
    desk.later(HOUR, job)
    assert desk.store.shards.get(one.id).state is ShardState.SUBMITTED
    assert desk.store.shards.get(other.id).state is ShardState.COLLECTED
    assert any("openai" in told for told in desk.said)


def test_new_terms_are_looked_at_at_once(desk: Desk) -> None:
    job, guard = desk.store.jobs.get(desk.submit(plain(1), deadline="20h").id), ReplanTimer()
    at = now()
    assert guard.is_due(job, at, waiting=False, moved=False)
    guard.looked(job, at + timedelta(minutes=30))
    assert not guard.is_due(job, at, waiting=False, moved=False)
    assert guard.is_due(replace(job, deadline_at=at), at, waiting=False, moved=False)
    assert guard.is_due(job, at + timedelta(minutes=30), waiting=False, moved=False)


def test_a_budget_need_not_cover_what_every_row_may_take_alone(desk: Desk) -> None:
    """Answers are short or long; a hundred of them take little more than the mean does."""
    lines = [row(f"r{number}", max_tokens=4 if number % 2 else 20) for number in range(100)]
    desk.finish(desk.run(lines))
    billed = cost_of(desk.provider.bill())
    budget = billed * Decimal("1.1")
    plan = view(desk, desk.submit(lines, new=True, budget=budget)).plan()
    assert plan.verdict.holds
    assert billed <= plan.at_most <= budget


@pytest.mark.long
def test_what_a_run_cost_beyond_what_it_was_told_is_in_what_the_next_run_is_told(desk: Desk) -> None:
    """No forecast knows the cause, so plans of the same file cover it, as far as the budget goes."""
    desk.backends({"openai": {}, "flex": {"service_tier": "default"}})
    path = desk.written(jsonl(plain(40)))
    desk.run(path)  # answers are known from now on
    budget = cost_of(desk.provider.bill()) * Decimal("1.7")  # it does not cover the dearer tier
    dear = desk.submit(path, new=True, budget=budget)
    desk.step(dear)
    [told] = (one for one in desk.store.forecasts.of_job(dear.id) if one.kind == "cost")
    desk.store.forecasts.settled(dear.id, "cost", 1.05 * told.p95, now())
    desk.finish(dear)
    excess = 1.05 * told.p95 / told.p50 - 1.0
    for most in (budget, budget * Decimal("0.9")):
        plan = view(desk, desk.submit(path, new=True, budget=most)).plan()
        covered = float(plan.expected) * (1.0 + 2.0 * excess)
        assert told.p95 < float(plan.at_most) == pytest.approx(min(float(most), covered))
    other = view(desk, desk.submit(plain(40), budget=budget)).plan()
    assert float(other.at_most) <= told.p95, "another file is told what its own runs cost"


SHARED = '[[budgets]]\nname = "all"\namount = {}\nperiod = "month"\n'


def test_a_plan_is_made_by_the_terms_of_its_orders(desk: Desk) -> None:
    """What a shared budget leaves is known when a job is submitted, not only at the first look."""
    hour = {"deadline": "2h"}
    desk.backends({"openai": {}, "azure": {}}, SHARED.format("1000"))
    rich = desk.submit(plain(50, max_tokens=100), **hour)
    asked = Planning(desk.store, desk.config, rich, now(), lambda job: Decimal("1000"))
    enough = asked.plan()
    assert enough.chance == asked.outlook().chance  # type: ignore[union-attr]
    tight = Planning(desk.store, desk.config, rich, now(), lambda job: enough.expected / 4)
    plan = tight.plan()
    assert not plan.verdict.holds
    assert plan.chance == tight.outlook().chance == 0.0  # type: ignore[union-attr]
    assert "shared budgets leave too little" in plan.verdict.reason
    assert plan.verdict.budget is None, "a budget of the job's own would not help"
    assert not tight.is_refused(plan), "it waits for the budget instead"
    late = Planning(
        desk.store, desk.config, desk.submit(plain(50), deadline="10m"), now(), lambda job: Decimal("1000")
    )
    assert not late.plan().verdict.holds
    assert "shared budgets" not in late.plan().verdict.reason, "they leave enough: the time is short"


@pytest.mark.long
def test_a_job_of_which_the_budget_covers_no_whole_batch_goes_in_parts(desk: Desk) -> None:
    """A batch is taken to cost half as much again as its prompts do; each part that settles makes room for more."""
    lines = [row(f"{'what is said on page ' * 12}{number}", max_tokens=4) for number in range(40)]
    desk.finish(desk.run(lines))
    billed = cost_of(desk.provider.bill())
    budget = billed * Decimal("1.15")
    job = desk.run(lines, new=True, budget=budget)
    desk.finish(job)
    assert desk.states(job).count("collected (completed)") > 1
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.cost(job) <= budget


def test_a_tier_that_was_slow_while_batches_were_late_is_planned_as_such(desk: Desk) -> None:
    desk.backends({"openai": {}, "flex": {}})
    job = desk.submit(plain(100), deadline="20h")
    late_night = now() - timedelta(days=2)
    desk.store.shards.note(
        sent(desk, job, "openai", 10), submitted_at=late_night, rerouted_at=late_night + timedelta(minutes=1)
    )
    for begin, seconds in (*((now() - timedelta(days=ago), 20.0) for ago in (3, 4, 5)), (late_night, 4000.0)):
        shard = sent(desk, job, "flex", 20)
        desk.store.shards.move(shard, ShardState.SUBMITTING)
        desk.store.shards.move(
            desk.store.shards.get(shard.id), ShardState.SUBMITTED, batch_id=shard.id, submitted_at=begin,
            first_at=begin + timedelta(seconds=1), ended_at=begin + timedelta(seconds=seconds), provider_completed=20,
        )  # fmt: skip
    [flex] = (one for one in view(desk, job).options if isinstance(one, SynchronousOption))
    assert flex.slow_with == {"openai": pytest.approx((1 / 3, 20 / 4000 / flex.pace.rate), rel=0.01)}
