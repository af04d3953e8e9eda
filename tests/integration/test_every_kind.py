"""One home with a backend of every kind: its plan, a night of one job, and every command that asks the providers."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.cli import run
from orchestrator.cli.pages import PagesOptions, serve_pages
from orchestrator.core.listening import bound
from orchestrator.core.model import Job
from orchestrator.library.context import opened
from orchestrator.settings.backend_packages import hosted_kinds
from tests.emulator.driving import chat_line
from tests.support.figures import words_of
from tests.support.hostedjob import DAY, EVERY_KIND, HOUR, MINUTE, MODEL, Desk, cost_of, table

NAMES = {"claude": "anthropic"}
"""Backends whose name is not that of their kind."""
DOCUMENTS = 3
Ask = Callable[..., Any]


@pytest.fixture
def every(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A home with all of them, in which two rows make a batch."""
    limits = {"min_rows": 1, "max_rows": 2}
    models = {f"of-{name}": {name: MODEL} for name in EVERY_KIND}
    more = f"[routing]\nprobe = false\n[models]\n{table(models)}"
    desk.backends({name: {"limits": limits} for name in EVERY_KIND}, more)
    desk.provider.settings(min_rows=1, models=[MODEL])
    for name, value in {"ORCH_CONFIG": desk.place.path, "ORCH_HOME": desk.home.root}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    return desk


@pytest.fixture
def ask(every: Desk, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a command says, with --json, and the code that it ends with."""

    def ran(*command: str, code: int = 0) -> Any:
        capsys.readouterr()
        ended = run([*command, "--json"])
        said = capsys.readouterr()
        assert ended == code, said.out + said.err
        return json.loads(said.out)

    return ran


def job_file(desk: Desk, name: str = "every") -> Path:
    """A task for each backend, whose model is there alone."""
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for number in range(DOCUMENTS):
        (folder / f"{number}.txt").write_text(f"Letter {number}.")
    tasks = [{"id": one, "model": f"of-{one}", "prompt": f"Who, {name}?", "max_tokens": 50} for one in EVERY_KIND]
    path = desk.folder / f"{name}.yaml"
    path.write_text(json.dumps({"name": name, "documents": "documents", "tasks": tasks}))
    return path


def under_way(desk: Desk, name: str) -> Job:
    """A job that has its batches at all of them."""
    job = desk.submit(job_file(desk, name))
    desk.settle(job)
    shards = desk.detail(job)["shards"]
    assert sorted(shard["backend"] for shard in shards if shard["batch_id"]) == sorted(2 * EVERY_KIND)
    return job


def test_no_kind_is_missing_here() -> None:
    assert {NAMES.get(name, name) for name in EVERY_KIND} == set(hosted_kinds())


@pytest.mark.long
def test_a_night_over_every_kind_is_planned_paid_once_and_told(
    every: Desk, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = every
    checks = ask("doctor")
    assert not [one for one in checks if not one["ok"]]
    found = {one["check"]: one["found"] for one in checks}
    for name in EVERY_KIND:
        assert "2 rows and" in found[f"backend {name}"]
        assert found[f"{name}: batches"].startswith("can be listed")
        assert f"{name}: model {MODEL}" in found
        assert "per million tokens" in found[f"{name}: price of {MODEL}"]
    assert desk.batches() == []

    plan = ask("plan", str(job_file(desk)))
    assert {route["backend"]: route["rows"] for route in plan["routes"]} == dict.fromkeys(EVERY_KIND, DOCUMENTS)

    job = under_way(desk, "every")
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert len(desk.rows(job)) == DOCUMENTS * len(EVERY_KIND)
    assert desk.cost(job) == cost_of(desk.provider.bill())
    assert sum(line["rows"] for line in desk.provider.bill()["lines"]) == DOCUMENTS * len(EVERY_KIND)

    compared = {one["backend"]: one for one in ask("reconcile")}
    assert {name: (one["batches"], one["known"], one["findings"]) for name, one in compared.items()} == {
        name: (2, 2, []) for name in EVERY_KIND
    }
    reported = {one["backend"]: one for one in ask("report", "backends")}
    assert {name: (reported[name]["rows_24h"], reported[name]["problem"]) for name in EVERY_KIND} == dict.fromkeys(
        EVERY_KIND, (DOCUMENTS, None)
    )
    with opened() as context:
        listener = bound("127.0.0.1", 0)
        capsys.readouterr()
        with (
            serve_pages(listener, context, PagesOptions("127.0.0.1"), lambda: context) as url,
            httpx2.Client(follow_redirects=True, timeout=30) as reader,
        ):
            reader.get(capsys.readouterr().err.split()[-1])
            page = words_of(reader.get(f"{url}/backends").text)
    assert not [name for name in EVERY_KIND if name not in page]


def test_batches_that_every_kind_has_lost_are_told(every: Desk, ask: Ask) -> None:
    every.provider.script({"do": "vanishes", "seconds": MINUTE, "match": {"verb": "create"}, "times": None})
    job = under_way(every, "lost")
    every.provider.clock.advance(HOUR)
    told = {one["backend"]: one["findings"] for one in ask("reconcile", code=1)}
    ids = {
        name: {one.batch_id for one in every.store.shards.of_job(job.id) if one.backend == name}
        for name in EVERY_KIND
    }
    for name in EVERY_KIND:
        assert [one["kind"] for one in told[name]] == ["gone", "gone"], name
        assert {one["id"] for one in told[name]} == ids[name]


@pytest.mark.long
def test_batches_that_lists_of_every_kind_leave_out_are_not_told_as_lost(every: Desk, ask: Ask) -> None:
    every.provider.script({"do": "hidden", "seconds": HOUR, "match": {"verb": "create"}, "times": None})
    under_way(every, "hidden")
    told = {one["backend"]: (one["batches"], one["known"], one["findings"]) for one in ask("reconcile")}
    assert told == {name: (2, 2, []) for name in EVERY_KIND}


def test_a_batch_that_is_not_listed_and_has_no_answers_any_more_is_told_as_lost(every: Desk, ask: Ask) -> None:
    every.backend("claude")
    every.provider.script({"do": "hidden", "seconds": 60 * DAY, "match": {"verb": "create"}})
    job = every.submit([chat_line("a", "What?", MODEL, max_tokens=50)])
    every.settle(job)
    assert ask("reconcile")[0]["findings"] == []
    every.provider.clock.advance(40 * DAY)
    [claude] = ask("reconcile", code=1)
    assert [one["kind"] for one in claude["findings"]] == ["gone"]


@pytest.mark.long
def test_a_quota_of_every_kind_is_waited_for_and_fails_no_row(every: Desk) -> None:
    desk = every
    for name in EVERY_KIND:
        flavour = NAMES.get(name, name)
        desk.provider.script({"do": "status", "status": 429, "match": {"verb": "create", "flavour": flavour}})
    job = desk.submit(job_file(desk, "quota"))
    desk.settle(job)
    held = {shard["backend"] for shard in desk.detail(job)["shards"] if shard["held"]}
    assert held == set(EVERY_KIND)
    desk.later(HOUR, job)
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_what_a_newer_model_of_openai_writes_to_its_cache_costs_a_quarter_more(desk: Desk) -> None:
    """Nobody has to ask it to: a million tokens cost $0.10 in a batch, and $0.125 if they are written."""
    desk.backend()
    job = desk.run([chat_line("a", "What? [[fault:cache_write]]", "gpt-5.6-luna", max_tokens=50)])
    tokens = desk.rows(job)["a"]["provenance"]["tokens"]
    written = tokens["cache_write"]
    assert written > 0
    plain = (tokens["input"] - written) * Decimal("0.1") + tokens["output"] * Decimal("0.6")
    assert desk.cost(job) == (plain + written * Decimal("0.125")) / 1_000_000


@pytest.mark.parametrize("name", ["claude", "gemini", "vertex", "bedrock", "cohere"])
def test_a_hint_for_the_cache_of_openai_is_left_out_where_there_is_none(desk: Desk, name: str) -> None:
    desk.backend(name, limits={"min_rows": 1})
    desk.provider.settings(min_rows=1)
    hints = {"prompt_cache_options": {"mode": "explicit"}, "prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    job = desk.run([chat_line("a", "What?", MODEL, max_tokens=50, **hints)])
    assert desk.ends(job) == {"a": "succeeded"}


OUR_CACHE = {"cachedContent": "cachedContents/c"}


@pytest.mark.parametrize(
    ("name", "fields", "end"),
    [
        ("gemini", OUR_CACHE, "succeeded"),
        ("vertex", OUR_CACHE, "failed: unsupported_parameter"),
        ("mistral", {"prompt_cache_key": "k"}, "succeeded"),
        ("openai", {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit"}}, "succeeded"),
    ],
)
def test_a_cache_of_the_users_own_is_named_where_batches_take_one(
    desk: Desk, name: str, fields: dict[str, Any], end: str
) -> None:
    desk.backend(name)
    ask = {"model": MODEL, "max_tokens": 50}
    job = desk.run([chat_line("a", "What?", **ask, **fields), chat_line("plain", "Why?", **ask)])
    assert desk.ends(job) == {"a": end, "plain": "succeeded"}
    assert sum(line["rows"] for line in desk.provider.bill()["lines"]) == 1 + (end == "succeeded")


def test_a_cached_token_costs_in_a_batch_of_vertex_what_it_costs_at_once(desk: Desk) -> None:
    """Its discounts do not stack; Gemini's do. A million tokens from the cache cost $0.075 at once."""
    desk.backends({"gemini": {}, "vertex": {}})
    tokens, costs = {}, {}
    for name in ("gemini", "vertex"):
        lines = [chat_line(f"of-{name}", "What? [[fault:cached]]", "gemini-3.8-flash", max_tokens=50)]
        job = desk.run(lines, backend=name)
        tokens[name] = desk.rows(job)[f"of-{name}"]["provenance"]["tokens"]
        costs[name] = desk.cost(job)
    assert tokens["gemini"] == tokens["vertex"]
    cached = tokens["vertex"]["cached"]
    assert cached > 0
    assert costs["vertex"] - costs["gemini"] == cached * (Decimal("0.075") - Decimal("0.0375")) / 1_000_000
