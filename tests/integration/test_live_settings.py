"""Settings that change while a daemon runs: each holds from then on, and nothing that is under way is lost."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.cli.up import _keep_secrets
from orchestrator.core.clock import now
from orchestrator.core.errors import OrchError
from orchestrator.core.model import Job
from orchestrator.core.shards import ShardState
from orchestrator.daemon import provider_webhooks as webhooks
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.pipeline.gc.sweep import Daily
from orchestrator.settings.config import load
from tests.support.hostedjob import HOUR, KEY, MINUTE, RATES, Desk, plain, settings_of, table, write_toml

SMALL = {"limits": {"max_rows": 2}}


def edit(desk: Desk, backends: Mapping[str, dict[str, Any]], more: str = "") -> None:
    """Write orch.toml anew, and let the daemon that runs take it up."""
    found = {name: settings_of(desk.provider, name, **facts) for name, facts in backends.items()}
    write_toml(desk.folder / "orch.toml", found, more)
    for facts in found.values():
        desk._env.setenv(facts["api_key_env"], KEY)
    desk.config = load(desk.place)
    assert desk.daemon is not None
    desk.daemon.use(desk.config)


def shards(desk: Desk, job: Job) -> list[tuple[str, str]]:
    return [(shard.backend, str(shard.state)) for shard in desk.store.shards.of_job(job.id)]


def completed(desk: Desk, job: Job, rows: int) -> None:
    desk.finish(job)
    counts = desk.store.jobs.counts([job.id])[job.id]
    assert (counts.succeeded, counts.total) == (rows, rows)


def test_a_new_budget_holds_what_is_sent_from_now_on_and_a_larger_one_lets_it_go(desk: Desk) -> None:
    desk.backends({"openai": {**SMALL, "limits": {"max_rows": 2, "batches_per_hour": 1}}})
    job = desk.submit(plain(4))
    desk.settle(job)
    assert len(desk.batches()) == 1
    budget = '[[budgets]]\nname = "all"\namount = {}\nperiod = "month"\n'
    edit(desk, {"openai": SMALL}, budget.format("0.0001"))
    desk.later(HOUR, job)
    assert len(desk.batches()) == 1
    assert "budget all" in desk.said[-1]
    [standing] = SharedBudgets(desk.store, desk.config, now).standings()
    assert standing.budget.amount == Decimal("0.0001"), "what other commands tell is what the daemon goes by"
    edit(desk, {"openai": SMALL}, budget.format("50"))
    completed(desk, job, 4)


def test_a_budget_of_the_same_name_and_another_tag_is_another(desk: Desk) -> None:
    """What was added up for the one says nothing of the other."""
    assert desk.daemon is not None
    job = desk.run(plain(2))
    spent = desk.cost(job)
    assert spent > 0
    budgets = desk.daemon._budgets
    found = []
    for tag in ('tag = "team=legal"\n', ""):
        edit(desk, {"openai": {}}, f'[[budgets]]\nname = "all"\namount = 5\nperiod = "month"\n{tag}')
        found.append([standing.spent for standing in budgets.standings()])
    assert found == [[0], [spent]]


@pytest.mark.long
def test_new_prices_are_those_of_rows_that_come_from_now_on(desk: Desk) -> None:
    job = desk.submit(plain(2))
    desk.settle(job)
    found = {"openai": settings_of(desk.provider, "openai")}
    write_toml(desk.folder / "orch.toml", found)
    text = (desk.folder / "orch.toml").read_text()
    twice = {name: rate * 2 for name, rate in RATES.items()}
    before, after = (table({"batch": rates}).strip() for rates in (RATES, twice))
    assert before in text
    (desk.folder / "orch.toml").write_text(text.replace(before, after))
    assert desk.daemon is not None
    desk.daemon.use(load(desk.place))
    desk.finish(job)
    once = desk.run(plain(2), new=True)
    assert desk.cost(job) == desk.cost(once) > 0
    desk.start_anew()
    assert desk.cost(desk.run(plain(2), new=True)) == desk.cost(once)


def test_limits_hold_for_what_is_made_from_now_on(desk: Desk) -> None:
    first = desk.submit(plain(4))
    desk.settle(first)
    assert [shard.rows for shard in desk.store.shards.of_job(first.id)] == [4]
    edit(desk, {"openai": SMALL})
    second = desk.submit(plain(4), new=True)
    desk.settle(second)
    assert [shard.rows for shard in desk.store.shards.of_job(second.id)] == [2, 2]


def test_a_backend_that_is_new_takes_rows_that_had_nowhere_to_go(desk: Desk) -> None:
    job = desk.submit(plain(2))
    edit(desk, {"other": {}})
    desk.settle(job)
    assert {name for name, _ in shards(desk, job)} == {"other"}
    completed(desk, job, 2)


@pytest.mark.long
def test_what_is_at_a_backend_that_was_removed_is_collected_and_nothing_more_goes_there(desk: Desk) -> None:
    desk.backends({"openai": {"limits": {"max_rows": 2, "batches_per_hour": 1}}})
    job = desk.submit(plain(4))
    desk.settle(job)
    assert shards(desk, job) == [("openai", ShardState.SUBMITTED), ("openai", ShardState.PENDING)]
    edit(desk, {"other": {}})
    completed(desk, job, 4)
    ended = [name for name, state in shards(desk, job) if state == ShardState.COLLECTED]
    assert ended == ["openai", "other"]
    assert desk.billed() == {f"r{number}": 1 for number in range(4)}, "none is paid twice"


def test_another_key_is_taken_at_once_and_must_be_of_the_same_account(desk: Desk) -> None:
    job = desk.submit(plain(2))
    desk.settle(job)
    desk._env.setenv("ANOTHER_KEY", "sk-another-0123456789abcdef")
    found = {"openai": settings_of(desk.provider, "openai", api_key_env="ANOTHER_KEY")}
    write_toml(desk.folder / "orch.toml", found)
    assert desk.daemon is not None
    desk.daemon.use(load(desk.place))
    desk.later(HOUR, job)
    handle = desk.daemon.open("openai")
    assert handle.api is desk.daemon.open("openai").api
    edit(desk, {"openai": {}})
    assert desk.daemon.open("openai").api is not handle.api, "a client of its own for each key"
    completed(desk, job, 2)


def test_a_backend_that_becomes_another_kind_is_not_asked_for_the_others_batches(desk: Desk) -> None:
    """Its name is the same, and nothing that it has never heard of is taken for gone."""
    job = desk.submit(plain(2))
    desk.settle(job)
    found = {"openai": settings_of(desk.provider, "flex")}
    write_toml(desk.folder / "orch.toml", found)
    desk._env.setenv("FLEX_KEY", KEY)
    assert desk.daemon is not None
    desk.daemon.use(load(desk.place))
    desk.later(HOUR, job)
    assert not desk.is_over(job)
    assert "which cannot see it" in desk.said[-1]
    edit(desk, {"openai": {}})
    completed(desk, job, 2)
    assert desk.billed() == {"r0": 1, "r1": 1}


def test_whoever_listens_is_told(desk: Desk) -> None:
    assert desk.daemon is not None
    daily = Daily(desk.store, desk.home, desk.config.retention)
    desk.daemon.listeners.append(daily.use)
    edit(
        desk, {"openai": {}}, '[retention]\nresults = "30d"\n[alerts]\nchance = 0.5\n[reports]\nfolder = "reports"\n'
    )
    assert daily.terms.results == 30 * 86_400
    assert desk.daemon._monitor._config.alerts.chance == 0.5
    assert [way.name for way in desk.daemon._monitor._channels] == ["folder"]


def test_webhooks_are_checked_with_the_secrets_that_are_named_now(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRST_SECRET", "one")
    monkeypatch.setenv("SECOND_SECRET", "two")
    edit(desk, {"openai": {"webhook_secret_env": "FIRST_SECRET"}})
    secrets = webhooks.secrets_of(desk.config)
    edit(desk, {"openai": {"webhook_secret_env": "SECOND_SECRET"}, "other": {"webhook_secret_env": "FIRST_SECRET"}})
    _keep_secrets(secrets, desk.config)
    assert secrets == {"openai": "two", "other": "one"}
    edit(desk, {"other": {"webhook_secret_env": "SECOND_SECRET"}})
    _keep_secrets(secrets, desk.config)
    assert secrets == {"other": "two"}
    edit(desk, {"other": {}})
    _keep_secrets(secrets, desk.config)
    assert secrets == {"other": "two"}, "without any secret, nothing more would be believed"


def test_a_backend_that_cannot_be_opened_keeps_no_other(desk: Desk) -> None:
    edit(desk, {"openai": {}, "other": {}})
    desk._env.delenv("OTHER_KEY")
    assert desk.daemon is not None
    with pytest.raises(OrchError):
        desk.daemon.open("other")
    completed(desk, desk.submit(plain(2), backend="openai"), 2)
    desk.later(MINUTE)
