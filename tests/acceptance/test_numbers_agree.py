"""While a night runs, every command and page says the same of its rows, batches and money.

The moment is frozen: the engine holds its last answers, the provider's batch stands still with the clock, and the
daemon is stopped. What each command and page says is then compared with what the upstreams have done.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.core.money import money
from tests.emulator.client import Emulator
from tests.support.cli import CONFIG, Orch
from tests.support.figures import figures, words_of
from tests.support.hostedjob import KEY, USUAL, settings_of, write_toml
from tests.support.process import upstreams, wait_until

WAIT = 150.0
HOURS = 3600.0
JOB = """\
name: {name}
documents: {{path: documents}}
tasks:
  - id: facts
    model: small
    max_tokens: 100
    prompt: What are the facts?
    schema: {{type: object, properties: {{topic: {{type: string}}}}, required: [topic]}}
models: {{small: {{{backend}: m}}}}
"""
BAD, REFUSED, HANGS = "[[fault:notjson]]", "[[fault:status:400]]", "[[fault:hang]]"
BUDGET = '[[budgets]]\nname = "team"\namount = 40\nperiod = "month"\n'
PAGES = ("/", "/jobs", "/nights", "/schedules", "/money", "/money?by=job", "/money?by=tag&since=all", "/quarantine")
GROUPS = ("job", "day", "task", "model", "backend")


@dataclass(frozen=True)
class Moment:
    """A night that stands still: 17 letters at our engine, 10 notes at a provider, and a run that is over."""

    letters: str
    notes: str
    before: str
    said: dict[str, str]
    """What each command has said, by its words; with `--json`, as JSON."""
    shown: dict[str, str]
    """Each page, by its path."""

    def json(self, command: str) -> Any:
        return json.loads(self.said[f"{command} --json"])

    def words(self, command: str) -> str:
        """What a command says, with one blank between words."""
        return " ".join(self.said[command].split())

    def page(self, path: str) -> str:
        return words_of(self.shown[path])

    @property
    def jobs(self) -> dict[str, Any]:
        return {job: self.json(f"status {job}") for job in (self.letters, self.notes, self.before)}

    @property
    def at_provider(self) -> int:
        """Notes that the provider has answered."""
        [shard] = self.jobs[self.notes]["shards"]
        return int(shard["done"])

    @property
    def running(self) -> Decimal:
        """What running batches have cost so far."""
        return sum((Decimal(job["running_usd"]) for job in self.jobs.values()), Decimal(0))

    @property
    def paid(self) -> Decimal:
        return sum((Decimal(job["cost_usd"]) for job in self.jobs.values()), Decimal(0)) - self.running


def _folder(root: Path, name: str, backend: str, texts: list[str]) -> str:
    folder = root / name
    (folder / "documents").mkdir(parents=True, exist_ok=True)
    for text in texts:
        number = len(list((folder / "documents").iterdir()))
        (folder / "documents" / f"{number:02}.txt").write_text(f"Number {number}. {text}", encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(JOB.format(name=name, backend=backend), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def moment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moment]:
    root = tmp_path_factory.mktemp("numbers")
    home = root / "home"
    home.mkdir(mode=0o700)
    orch = Orch(home)
    with Emulator(root / "provider", speed=600.0) as provider, upstreams(root) as start:
        # All of it is one night, however slow this machine is: the clock runs fast until the batches are there.
        provider.clock.set(provider.clock.now().replace(hour=12, minute=1))
        provider.settings(**{**USUAL, "turnaround_s": [25 * HOURS, 25 * HOURS]}, latency_ms=1)
        local = {"kind": "local", "upstreams": [start().base_url], "cost_per_hour": 20.0, "retry_delay": 0.01}
        hosted = settings_of(provider, "openai", poll_seconds=1)
        write_toml(home / CONFIG, {"openai": hosted, "gpu": {**local, "location": "local"}}, BUDGET)
        env = {**provider.environment, "OPENAI_KEY": KEY, "COLUMNS": "250"}

        def ask(*words: str) -> Any:
            return json.loads(orch(*words, "--json", env=env, timeout=WAIT).stdout)

        letters = _folder(root, "letters", "gpu", [""] * 6 + [BAD])
        before = ask("run", letters)["job"]
        _folder(root, "letters", "gpu", [""] * 6 + [BAD, REFUSED, HANGS, HANGS])
        notes = _folder(root, "notes", "openai", [""] * 10)
        jobs = [
            ask("submit", letters, "--deadline", "24h", "--budget", "5")["job"],
            ask("submit", notes, "--deadline", "40h")["job"],
        ]
        up = orch.start("up", "--web", "127.0.0.1:0", env=env)
        try:
            link = wait_until(lambda: re.search(r"http://\S+", orch.output(up)), WAIT)[0]
            wait_until(
                lambda: all(
                    one["batch_id"] for job in jobs for one in ask("status", job)["shards"] or [{"batch_id": None}]
                ),
                WAIT,
            )
            wait_until(lambda: _rows(ask("status", jobs[0])) == (8, 3), WAIT)
            provider.clock.set(provider.clock.now() + timedelta(hours=8), speed=60.0)
            wait_until(lambda: _rows(ask("status", jobs[1]))[0] >= 3, WAIT)
            provider.clock.set(speed=0.0)
            yield _look(
                orch, env, (jobs[0], jobs[1], before), (letters, notes), link, lambda: os.kill(up.pid, signal.SIGSTOP)
            )
        finally:
            orch.close()


def _rows(told: Any) -> tuple[int, int]:
    return told["requests"]["finished_in_batches"], told["requests"]["failed_so_far"]


def _look(
    orch: Orch,
    env: dict[str, str],
    jobs: tuple[str, str, str],
    files: tuple[str, str],
    link: str,
    stop: Callable[[], None],
) -> Moment:
    """Ask every command and open every page; a stopped daemon's servers no longer answer, so they are asked first."""
    said, shown = {}, {}

    def ask(*words: str, name: str | None = None) -> None:
        done = orch(*words, env=env, timeout=WAIT)
        said[name or " ".join(words)] = done.stdout + done.stderr

    with httpx2.Client(base_url=link.partition("/enter")[0], timeout=WAIT) as client:
        assert client.get(link).status_code == 200
        for job in jobs:
            ask("fetch", job, "--partial", "-o", str(orch.home.parent / f"{job}.jsonl"), name=f"fetch {job}")
        for more in ((), ("--json",)):
            ask("report", "backends", *more)
        shown["/backends"] = client.get("/backends").text
        stop()
        commands = [("status",), ("budget",), ("report", "night"), ("report", "forecast"), ("schedule", "list")]
        commands += [("schedule", "nights", "--all"), ("quarantine", "list"), ("report", "cost", "--by", "tag")]
        commands += [("report", "cost", "--by", group) for group in GROUPS]
        for group in ("day", "job"):
            commands += [("report", "cost", "--by", group, "--since", "30d")]
            commands += [("report", "forecast", "--since", "30d")]
        for job in jobs:
            commands += [("status", job), ("report", "night", job), ("report", "cost", "--job", job)]
            commands += [("report", "cost", "--by", "task", "--job", job)]
        commands += [("plan", file) for file in files]
        for words in commands:
            ask(*words)
            ask(*words, "--json")
        for path in (*PAGES, *(f"/jobs/{job}" for job in jobs), f"/jobs/{jobs[0]}/rows"):
            shown[path] = client.get(path).text
    return Moment(*jobs, said, shown)


@pytest.mark.long
def test_rows_are_the_same_wherever_they_are_counted(moment: Moment) -> None:
    letters, notes, at = moment.letters, moment.notes, moment.at_provider
    assert 3 <= at < 10
    rows = {job: told["requests"] for job, told in moment.jobs.items()}
    assert [rows[letters][name] for name in ("total", "succeeded", "failed", "pending")] == [17, 6, 1, 10]
    assert [rows[letters][name] for name in ("done", "finished_in_batches", "failed_so_far")] == [15, 8, 3]
    assert [rows[notes][name] for name in ("total", "pending", "done", "finished_in_batches")] == [10, 10, at, at]
    for told in moment.json("status"):
        assert told["requests"] == rows[told["job"]]
    night = moment.json("report night")
    assert (night["asked"], night["answered"], night["finished_in_batches"]) == (27, 6, 8 + at)
    for told in (*night["jobs"], *(moment.json(f"report night {job}")["jobs"][0] for job in rows)):
        same = {name: told["requests"][name] for name in told["requests"]}
        assert same == {name: rows[told["job"]][name] for name in same}
    there = {
        one["backend"]: (one["batches"], one["rows"], one["rows_done"]) for one in moment.json("report backends")
    }
    assert there == {"gpu": (1, 10, 8), "openai": (1, 10, at)}


def test_rows_read_the_same_in_words(moment: Moment) -> None:
    letters, notes, at = moment.letters, moment.notes, moment.at_provider
    so_far = "8 pending rows finished in running batches, 2 of them failed"
    assert f"{letters} running 15/17 3, 1 known" in moment.words("status")
    assert f"{notes} running {at}/10" in moment.words("status")
    assert "rows 17: 6 succeeded, 1 failed, 10 pending failures 1 known" in moment.words(f"status {letters}")
    assert f"so far {so_far}" in moment.words(f"status {letters}")
    assert "gpu m 10 8 2 batch_" in moment.words(f"status {letters}")
    assert f"so far {at} pending rows finished in running batches" in moment.words(f"status {notes}")
    assert "gpu m 7 7 1 batch_" in moment.words(f"status {moment.before}"), "an answer that fails its check"
    assert f"{8 + at} pending rows finished in running batches, 2 of them failed" in moment.words("report night")
    assert "6 of 27 rows answered (1 failed, 20 pending)" in moment.words("report night")
    assert f"6 of 17 rows answered (1 failed, 10 pending) • {so_far}" in moment.words(f"report night {letters}")
    assert "gpu up 1 10" in moment.words("report backends")
    assert re.search(r"\b15 rows in \S+; 2 of 17 are not here yet$", moment.words(f"fetch {letters}"))
    assert moment.words(f"fetch {notes}").endswith(
        f"10 of 10 are not here yet, {at} of them finished in batches that give their answers at their end"
    )
    plans = [
        moment.words(command) for command in moment.said if command.startswith("plan ") and "--json" not in command
    ]
    assert "7 unchanged since an earlier run, 10 under way in another job" in plans[0]
    assert "10 requests of 10 documents, 10 under way in another job" in plans[1]


def test_rows_read_the_same_on_the_pages(moment: Moment) -> None:
    letters, notes, at = moment.letters, moment.notes, moment.at_provider
    assert f"rows done {15 + at} of 27" in moment.page("/")
    assert "failed 3 jobs open 2 of 3" in moment.page("/")
    for path in ("/", "/jobs"):
        assert re.search(rf"{letters} running .*?15/17 3 ", moment.page(path))
        assert re.search(rf"{notes} running .*?{at}/10 0 ", moment.page(path))
    page = moment.page(f"/jobs/{letters}")
    assert "rows done 15 of 17 3 failed" in page
    assert "of the pending, finished in running batches 8" in page
    assert re.search(r"submitted gpu m 10 8 2 ", page)
    assert f"{12 + at}/27" in moment.page("/nights"), "answered, of all"
    assert "3 failed, 1 known" in moment.page("/nights")
    assert "open batches 1 rows done 8 of 10 in open batches" in moment.page("/backends")
    assert f"open batches 1 rows done {at} of 10 in open batches" in moment.page("/backends")
    assert "pending (10) succeeded (6) failed (1)" in moment.page(f"/jobs/{letters}/rows")


def test_money_is_paid_or_in_running_batches_and_both_are_what_is_spent(moment: Moment) -> None:
    paid, running = moment.paid, moment.running
    assert paid > 0
    assert running > 0
    for group in GROUPS:
        told = moment.json(f"report cost --by {group}")
        assert (Decimal(told["total"]["cost_usd"]), Decimal(told["running_usd"])) == (paid, running)
        assert f"not in the table: {money(running)} so far in running batches" in moment.words(
            f"report cost --by {group}"
        )
    night = moment.json("report night")
    assert (Decimal(night["cost_usd"]), Decimal(night["running_usd"])) == (paid, running)
    assert f"{money(paid)} paid; {money(running)} so far in running batches" in moment.words("report night")
    [budget] = moment.json("budget")
    assert (Decimal(budget["spent_usd"]), Decimal(budget["running_usd"])) == (paid + running, running)
    spent = f"{money(paid + running)} spent ({money(paid)} paid, {money(running)} in running batches)"
    assert spent in moment.words("budget")
    for job, told in moment.jobs.items():
        cost, ran = Decimal(told["cost_usd"]), Decimal(told["running_usd"])
        of_job, [of_night] = moment.json(f"report cost --job {job}"), moment.json(f"report night {job}")["jobs"]
        for found in (
            (of_job["total"]["cost_usd"], of_job["running_usd"]),
            (of_night["cost_usd"], of_night["running_usd"]),
        ):
            assert tuple(map(Decimal, found)) == (cost - ran, ran), job
    before = moment.json(f"report cost --job {moment.before}")["total"]["tokens"]
    assert (before["input"], before["output"]) == tuple(
        moment.jobs[moment.before]["tokens"][name] for name in ("input", "output")
    )
    words = f"cost {money(running)} of $5.00; {money(running)} so far in running batches"
    assert words in moment.words(f"status {moment.letters}")
    assert f"Nothing was paid for yet; {money(running)} so far" in moment.words(f"report cost --job {moment.letters}")


def test_money_reads_the_same_on_the_pages(moment: Moment) -> None:
    paid, running = money(moment.paid), money(moment.running)
    spent = money(moment.paid + moment.running)
    assert f"money so far {spent} {running} of it in running batches" in moment.page("/")
    assert f"money so far {running} {running} of it in running batches" in moment.page(f"/jobs/{moment.letters}")
    for path in ("/money", "/money?by=job"):
        assert f"paid {paid} {running} more in running batches" in moment.page(path)
        assert f"{spent} {running} of it in running batches" in moment.page(path)
        assert f"; {running} so far in running batches" in moment.page(path)
    assert f"{spent} 3 failed" in moment.page("/nights")


def test_each_figure_of_a_page_is_in_the_json_of_its_command(moment: Moment) -> None:
    number = 0
    for path, page in moment.shown.items():
        for figure in figures(page):
            if path != "/backends" and figure.command.startswith("report backends"):
                continue
            assert figure.is_in(moment.json(" ".join(figure.words))), (path, figure)
            number += 1
    assert number > 150
