"""Jobs at hosted backends, in this process: the daemon's own backends and pipeline before the emulated provider.

A test moves the clock and sees what a user sees: rows, states, what is waited for, events; and the provider's bill.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.core.errors import BackendError, JobFilesError, RefusedError, StateConflict, UsageError
from orchestrator.core.model import CancelCode, Job
from orchestrator.daemon.loop import Daemon
from orchestrator.pipeline.build import submission
from orchestrator.pipeline.finish.finisher import merged_lines
from orchestrator.pipeline.provider_calls import Inline
from orchestrator.reports import status
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.driving import chat_line, jsonl
from tests.support.aws import aws_environment, bedrock_told
from tests.support.databases import new_sqlite
from tests.support.google import vertex_told
from tests.support.process import wait_until
from tests.support.scaleway import scaleway_told

KEY = "sk-test-0123456789abcdef"
MODEL = "m"
RATES = {"input": Decimal(2), "output": Decimal(8), "cached": Decimal("0.5"), "cache_write": Decimal("2.5")}
"""Dollars for a million tokens in a batch; realtime costs twice as much."""

EVERY_KIND = ("openai", "azure", "claude", "gemini", "bedrock", "mistral", "vertex", "xai", "openrouter", "together",
              "fireworks", "scaleway", "cohere")  # fmt: skip
"""A backend of each kind of Batch API, by the names that `settings_of` knows."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
USUAL = {
    "validating_s": [30, 30],
    "turnaround_s": [600, 600],
    "finalizing_s": [10, 10],
    "cancelling_s": [60, 60],
}
FIRST_PAUSE, LONGEST_PAUSE = 5 * MINUTE, 4 * HOUR
MOST_ROUNDS = 300

Json = dict[str, Any]


def table(values: Mapping[str, Any]) -> str:
    """The lines of a TOML table."""
    return "".join(f"{name} = {_value(value)}\n" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_value(one)}" for name, one in value.items()) + " }"
    # JSON's strings, numbers, lists and booleans are TOML's too.
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def settings_of(at: Emulator, name: str, **more: Any) -> Json:
    """What orch.toml says of a backend; its kind is told from its name. `more` may turn the preflight on."""
    told: Json = {} if name == "bedrock" else {"api_key_env": f"{name.upper()}_KEY"}
    if name != "flex":
        told["preflight"] = False
    match name:
        case "claude":
            told |= {"kind": "anthropic", "base_url": at.url_anthropic}
        case "mistral":
            told |= {"kind": "mistral", "base_url": at.url_of("mistral")}
        case "fireworks":
            told |= {"kind": name, "base_url": at.url_of(name), "account": "a"}
        case "together" | "cohere":
            told |= {"kind": name, "base_url": at.url_of(name)}
        case "openrouter":
            told |= {"kind": "openrouter", "base_url": at.url_of("openrouter")}
        case "xai":
            told |= {"kind": "xai", "base_url": at.url_of("xai")}
        case "gemini":
            told |= {"kind": "gemini", "base_url": at.url_of("gemini")}
        case "bedrock":
            told |= bedrock_told(at.url_of("bedrock"), KEY)
        case "scaleway":
            told |= scaleway_told(at.url_of("scaleway"), KEY)
        case "vertex":
            told |= vertex_told(at.url_of("vertex"), KEY)
        case "azure":
            told |= {"kind": "azure", "base_url": at.url_azure}
        case "flex":
            told |= {"kind": "sync", "base_url": at.url_openai, "service_tier": "flex", "retry_delay": 0.01}
        case "zhipu" | "siliconflow":
            told |= {"kind": "openai", "base_url": at.url_of(name), "profile": name}
        case _:
            told |= {"kind": "openai", "base_url": at.url_openai, "profile": "openai"}
    return told | more


def write_toml(path: Path, backends: Mapping[str, Json], more: str = "") -> None:
    """An orch.toml with these backends, and prices for MODEL."""
    lines = [f"[backends.{name}]\n{table(told)}\n" for name, told in backends.items()]
    realtime = {name: rate * 2 for name, rate in RATES.items()}
    lines.append(f"[prices.{MODEL}]\n{table(realtime)}batch = {_value(RATES)}\nflex = {_value(RATES)}\n")
    path.write_text("".join([*lines, more]), encoding="utf-8")


def row(custom_id: str, *faults: str, **body: Any) -> Json:
    """A line whose row meets these faults at the provider."""
    text = "".join([f"what of {custom_id}?", *(f" [[fault:{fault}]]" for fault in faults)])
    return chat_line(custom_id, text, MODEL, **{"max_tokens": 50, **body})


def plain(count: int, **body: Any) -> list[Json]:
    """Lines r0, r1, ... that meet none."""
    return [row(f"r{number}", **body) for number in range(count)]


def cost_of(bill: Json) -> Decimal:
    """The dollars of a provider's bill for batches."""
    total = Decimal(0)
    for line in bill["lines"]:
        total += (line["input"] - line["cached"] - line["cache_write"]) * RATES["input"]
        total += line["cached"] * RATES["cached"] + line["cache_write"] * RATES["cache_write"]
        total += line["output"] * RATES["output"]
    return total / 1_000_000


def script(
    desk: Desk, do: str, *, verb: str | None = None, nth: int = 1, times: int | None = 1, **options: Any
) -> None:
    """A fault of the `nth` call of a verb, or of the batch that it makes."""
    desk.provider.script({"do": do, "match": {"nth": nth, "verb": verb}, "times": times, **options})


class Desk:
    """A home with an orch.toml, its daemon, and the provider behind it."""

    def __init__(
        self, provider: Emulator, folder: Path, monkeypatch: pytest.MonkeyPatch, database_url: str | None = None
    ) -> None:
        self.provider = provider
        self.folder = folder
        self.said: list[str] = []
        self._env = monkeypatch
        self._number = 0
        for name, value in provider.environment.items():
            monkeypatch.setenv(name, value)
        self.home = Home(folder / "home")
        self.home.root.mkdir(exist_ok=True)
        self._database_url = database_url or new_sqlite(self.home.root / "orch.db")
        self.store = Store.open(self._database_url)
        self.daemon: Daemon | None = None

    @property
    def place(self) -> Place:
        return Place(self.folder / "orch.toml", self.home.root, self._database_url, 10.0)

    def backend(self, name: str = "openai", **more: Any) -> None:
        """One backend alone."""
        self.backends({name: more})

    def backends(self, told: Mapping[str, Json], more: str = "") -> None:
        """These backends from now on, as if orch had been started anew with them."""
        found = {name: settings_of(self.provider, name, **facts) for name, facts in told.items()}
        write_toml(self.folder / "orch.toml", found, more)
        for facts in found.values():
            if "api_key_env" in facts:
                self._env.setenv(facts["api_key_env"], KEY)
        for name, value in aws_environment(KEY, self.folder).items() if "bedrock" in found else ():
            self._env.setenv(name, value)
        self.start_anew()

    def key(self, name: str, key: str) -> None:
        """Another key for a backend; it is read at the next start."""
        self._env.setenv(f"{name.upper()}_KEY", key)

    def start_anew(self) -> None:
        """Another process goes on."""
        self._stop()
        self.config = load(self.place)
        self.daemon = Daemon(self.config, self.store, provider_calls=Inline())

    def _stop(self) -> None:
        if self.daemon is not None:
            self.daemon.__exit__(None, None, None)

    def close(self) -> None:
        self._stop()
        self.store.close()

    # --- jobs

    def submit(self, lines: Sequence[Json | bytes] | Path, **options: Any) -> Job:
        """A batch file of these lines, or a job file, as `orch submit` takes it."""
        path = lines if isinstance(lines, Path) else self._written(jsonl(lines))
        given = submission.Options(**options)
        return submission.submit(self.store, self.home, self.config, path, given, now, lambda *_: None).job

    def written(self, content: bytes) -> Path:
        """A batch file of its own."""
        return self._written(content)

    def _written(self, content: bytes) -> Path:
        self._number += 1
        path = self.folder / f"rows-{self._number}.jsonl"
        path.write_bytes(content)
        return path

    def step(self, job: Job) -> bool:
        """One step, as the daemon takes it: what keeps the job from going on is put into `said`."""
        return self._step(self.store.jobs.get(job.id))

    def _step(self, current: Job) -> bool:
        assert self.daemon is not None
        try:
            return self.daemon.pipeline.advance(current)
        except StateConflict:
            return True
        except (BackendError, UsageError, RefusedError, JobFilesError) as error:
            self.said.append(str(error))
            return False

    def until(self, job: Job, holds: Callable[[], object]) -> None:
        """Steps until something holds."""
        for _ in range(50):
            if holds():
                return
            self.step(job)
        raise AssertionError(f"{self.states(job)} {self.said}")

    def settle(self, *jobs: Job) -> bool:
        """Steps until nothing moves; whether anything did."""
        moved = False
        while sum(self._step(current) for job in jobs if not _is_over(current := self.store.jobs.get(job.id))):
            moved = True
        assert self.daemon is not None
        self.daemon.pipeline.remote_cleanup.tick()
        return moved

    def later(self, seconds: float, *jobs: Job) -> None:
        """So much time passes, then what is due is done."""
        self.provider.clock.advance(seconds)
        self.settle(*jobs)

    def finish(self, *jobs: Job) -> None:
        """Until all of them are over; the longer nothing moves, the rarer the looks."""
        pause = FIRST_PAUSE
        for _ in range(MOST_ROUNDS):
            pause = FIRST_PAUSE if self.settle(*jobs) else min(pause * 2, LONGEST_PAUSE)
            if all(self.is_over(job) for job in jobs):
                return
            self.provider.clock.advance(pause)
        raise AssertionError(f"not over: {[self.detail(job)['shards'] for job in jobs]}, {self.said[-3:]}")

    def run(self, lines: Sequence[Json | bytes] | Path, **options: Any) -> Job:
        job = self.submit(lines, **options)
        self.finish(job)
        return job

    def is_over(self, job: Job) -> bool:
        return _is_over(self.store.jobs.get(job.id))

    def cancel(self, job: Job) -> None:
        """As `orch cancel` asks for it."""
        self.store.jobs.request_cancel(job.id, CancelCode.USER, "cancelled by the user", now())

    # --- what a user sees

    def detail(self, job: Job) -> Json:
        """`orch status JOB --json`."""
        current = self.store.jobs.get(job.id)
        return status.detail(self.store, current, now(), lambda shard: Decimal(0)).to_json()

    def held(self, job: Job) -> list[str]:
        """What shards wait for."""
        return [shard["held"] for shard in self.detail(job)["shards"] if shard["held"] is not None]

    def states(self, job: Job) -> list[str]:
        """Of each batch, with what its provider says of it."""
        return [f"{shard['state']} ({shard['batch_status']})" for shard in self.detail(job)["shards"]]

    def events(self, job: Job, kind: str) -> list[str]:
        return [event["reason"] for event in self.detail(job)["events"] if event["kind"] == kind]

    def rows(self, job: Job) -> dict[str, Json]:
        """The merged rows by custom_id."""
        current = self.store.jobs.get(job.id)
        lines = merged_lines(self.store, self.home, current, style="jsonl")
        return {found["custom_id"]: found for found in map(json.loads, lines)}

    def ends(self, job: Job) -> dict[str, str]:
        """Each row's outcome, with the code of its error where it has one."""
        return {name: _end(found) for name, found in self.rows(job).items()}

    def attempts(self, job: Job) -> dict[str, int]:
        """Which try gave each row its outcome, from 1."""
        return {name: found["provenance"]["attempt"] for name, found in self.rows(job).items()}

    def cost(self, job: Job) -> Decimal:
        return self.store.ledger.spent(job.id)

    def uncertain(self, job: Job) -> Decimal:
        """What may have been billed without an answer."""
        return sum((total.uncertain for total in self.store.ledger.totals("job", job_id=job.id)), Decimal(0))

    def billed(self) -> dict[str, int]:
        """How often the provider has billed each row."""
        return dict(self.provider.bill(rows=True)["rows"])

    def batches(self) -> list[Json]:
        """What the provider has, oldest first."""
        found: list[Json] = self.provider.state()["batches"]
        return found

    def inputs(self, job: Job) -> list[str]:
        """The inputs of batches that are still here."""
        return sorted(path.name for path in self.home.job(job.id).rglob("*.input.jsonl*"))

    def files(self) -> list[Json]:
        """The files that are still at the provider."""
        return [file for file in self.provider.state()["files"] if file["is_there"]]


def _is_over(current: Job) -> bool:
    return current.finished_at is not None or current.error is not None


def _end(found: Json) -> str:
    error = found["error"]
    return str(found["status"]) if error is None else f"{found['status']}: {error['code']}"


def all_are(end: str, count: int) -> dict[str, str]:
    """`r0`, `r1`, ... with the same end."""
    return {f"r{number}": end for number in range(count)}


def finds_a_lost_create(desk: Desk) -> None:
    """A batch whose create was not answered, and that shows late, is the only one."""
    script(desk, "cut_after", verb="create")
    script(desk, "hidden", verb="create", seconds=300.0)
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


@contextmanager
def desk_of(
    provider: Emulator, folder: Path, monkeypatch: pytest.MonkeyPatch, database_url: str | None = None
) -> Iterator[Desk]:
    """An empty home, with one OpenAI backend until the test says otherwise, before a provider that is as new.

    With a database, the home that is in the folder.
    """
    provider.reset()
    provider.settings(**USUAL)
    desk = Desk(provider, folder, monkeypatch, database_url)
    try:
        desk.backend()
        yield desk
    finally:
        desk.close()


def foreign_batch(desk: Desk, rows: int) -> str:
    """Another program's batch in the same account, at Anthropic; its id."""
    import anthropic

    with anthropic.Anthropic(
        api_key=KEY, base_url=desk.provider.url_anthropic, max_retries=0, default_headers={"x-api-key": KEY}
    ) as other:
        params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "theirs"}]}
        requests = [{"custom_id": f"theirs-{number}", "params": params} for number in range(rows)]
        return other.messages.batches.create(requests=requests).id  # type: ignore[arg-type]


def rescued_and_paid_twice(desk: Desk, name: str) -> None:
    """Late rows of a batch that cannot be ended go elsewhere in time; both payments are booked and told."""
    desk.backends({name: {"poll_seconds": 10}})
    for number in range(12):
        desk.run([row(f"earlier{number}")])
    earlier = cost_of(desk.provider.bill())
    desk.backends({name: {"poll_seconds": 10}, "flex": {"service_tier": "default"}})
    desk.provider.settings(turnaround_s=[0.5 * DAY, 0.5 * DAY])
    job = desk.submit(plain(6), deadline="3h")
    desk.settle(job)
    assert desk.store.shards.of_job(job.id)[0].backend == name
    while len(desk.store.shards.of_job(job.id)) == 1:
        desk.later(MINUTE, job)
    assert desk.uncertain(job) > 0, "what runs on there is booked when it is given up"
    desk.provider.clock.set(speed=5.0)
    wait_until(lambda: not desk.settle(job) and desk.is_over(job), 30)  # its rows run in real time
    current = desk.store.jobs.get(job.id)
    assert current.finished_at is not None
    assert current.deadline_at is not None
    assert current.finished_at < current.deadline_at
    assert desk.ends(job) == all_are("succeeded", 6)
    assert any("paid for there as well" in told for told in desk.events(job, "rerouted"))
    assert any("they are paid for there and elsewhere" in told for told in desk.events(job, "ended"))
    desk.later(0.6 * DAY, job)
    assert sum(line["rows"] for line in desk.provider.bill()["lines"]) == 12 + 6 + 6
    assert any("too late for their rows, and are booked" in told for told in desk.events(job, "late"))
    # The six rows at a batch's price, and again at twice that.
    assert desk.cost(job) == (cost_of(desk.provider.bill()) - earlier) / 2 * 3
    assert desk.uncertain(job) == 0
