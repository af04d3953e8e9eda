"""`orch run` before the emulator, ended with SIGKILL again and again, then let finish; and what must hold then."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from orchestrator.core.model import Job
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.support.aws import aws_environment, bedrock_told
from tests.support.billing import RATES, Books, booked_twice, cost_of, mistakes, usage_of
from tests.support.cli import Orch, kill_group
from tests.support.faulty_disk import FaultyDisk
from tests.support.google import vertex_told
from tests.support.hostedjob import table
from tests.support.process import wait_until
from tests.support.scaleway import scaleway_told
from tests.support.schedules import (
    BEDROCKS_MARKS,
    MARKS,
    MODEL,
    ORDERS,
    OTHERS,
    PLAIN,
    Kills,
    Mark,
    Orders,
    Schedule,
    given,
    with_odd_answers,
    write,
)

SPEED = 900.0
"""Virtual seconds a second: a batch of minutes takes less than one."""
SPEED_TO_THE_END = 16 * SPEED
"""And once nobody kills it any more: a file that lacks a row is read again for a day."""
MAX_CONCURRENCY = 16
LATENCY_MS = 40
# The rows in flight, and those answered in the 100 ms before, which may not be durable yet.
PER_KILL = MAX_CONCURRENCY + MAX_CONCURRENCY * 100 // LATENCY_MS
LONGEST_RUN = 600.0
KEY = "sk-test-0123456789"
ENDED = (0, 1)
"""What `orch run` ends with: 1 where rows have failed."""
STORAGE = 4
"""And where the disk fails."""

# None here that ends a run so that somebody looks at the account, nor any that another run of the file tries again.
HARMLESS = tuple(mark for mark in MARKS if mark.text not in ("insufficient_quota:1", "status:500", "missing"))


@dataclass(slots=True)
class KillReport:
    """What a series of kills did. `doubled` counts rows of a synchronous API that were paid again."""

    kills: int = 0
    rows: int = 0
    batches: int = 0
    billed: int = 0
    unexplained: int = 0
    doubled: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def hosted_schedule(seed: int, rows: int, orders: Orders = ORDERS[:2]) -> Schedule:
    """Rows for two providers in four batches, one row in ten with a fault."""
    dice = random.Random(f"kills {seed}")
    order = dice.choice(orders)
    marks = [dice.choice(HARMLESS) if dice.random() < 0.1 else PLAIN for _ in range(rows)]
    return _schedule(seed, order, marks, -(-rows // 4))


def odd_hosted_schedule(seed: int, rows: int) -> Schedule:
    """The same at a provider whose answers are odd as well, none of them for so long that it holds up the test."""
    return with_odd_answers(hosted_schedule(seed, rows), most_lasting=200.0)


def schedule_at(other: str) -> Callable[[int, int], Schedule]:
    """The same with this provider as one of the two."""

    def odd(seed: int, rows: int) -> Schedule:
        schedule = hosted_schedule(seed, rows, OTHERS[other])
        # Bedrock's Converse and Cohere count no thoughts by themselves.
        is_counted = other not in ("bedrock", "cohere")
        lines = [row if is_counted or row.mark in BEDROCKS_MARKS else given(row.custom_id) for row in schedule.rows]
        return with_odd_answers(replace(schedule, rows=lines), most_lasting=200.0)

    return odd


def sync_schedule(seed: int, rows: int) -> Schedule:
    """Rows for a synchronous API, all of which are answered."""
    return _schedule(seed, ("flex",), [PLAIN] * rows, rows)


def _schedule(seed: int, order: tuple[str, ...], marks: list[Mark], most_rows: int) -> Schedule:
    lines = [given(f"row-{number:04d}", mark) for number, mark in enumerate(marks)]
    return Schedule(seed, order, lines, most_rows, [], Kills(), {"turnaround_s": [200, 900]})


def toml_of(provider: Emulator, schedule: Schedule) -> str:
    """The orch.toml of a schedule's backends, with the price of its model."""
    kinds = {
        "cloud": f'kind = "openai"\nprofile = "openai"\nbase_url = "{provider.url_openai}"',
        "claude": f'kind = "anthropic"\nbase_url = "{provider.url_anthropic}"',
        "bedrock": table(bedrock_told(provider.url_of("bedrock"), KEY)).rstrip(),
        "scaleway": table(scaleway_told(provider.url_of("scaleway"), KEY)).rstrip(),
        "vertex": table(vertex_told(provider.url_of("vertex"), KEY)).rstrip(),
        "flex": f'kind = "sync"\nbase_url = "{provider.url_openai}"\nservice_tier = "flex"\n'
        f"max_concurrency = {MAX_CONCURRENCY}",
    }
    kinds |= {
        name: f'kind = "{name}"\nbase_url = "{provider.url_of(name)}"'
        for name in ("mistral", "gemini", "together", "xai", "fireworks", "openrouter", "cohere")
    }
    kinds["fireworks"] += '\naccount = "a"'
    # Its calls and its bill are those of batches alone.
    kinds |= {name: f"{told}\npreflight = false" for name, told in kinds.items() if name != "flex"}
    limits = f"{{ min_rows = 1, max_rows = {schedule.most_rows} }}"
    keys = {name: "" if name == "bedrock" else '\napi_key_env = "KEY"' for name in kinds}
    blocks = [f"[backends.{name}]\n{kinds[name]}{keys[name]}\nlimits = {limits}" for name in schedule.order]
    for name, tier in ((MODEL, "standard"), (f"{MODEL}.batch", "batch"), (f"{MODEL}.flex", "batch")):
        rates = [f"{kind} = {rate}" for kind, rate in RATES[tier].items()]
        blocks.append("\n".join([f"[prices.{name}]", *rates]))
    return "\n\n".join(blocks) + "\n"


class KillRun:
    """One job, run by the command line, killed at random moments until it is let finish."""

    def __init__(self, orch: Orch, provider: Emulator, schedule: Schedule, folder: Path, database_url: str) -> None:
        self._orch = orch
        self._provider = provider
        self._schedule = schedule
        self._url = database_url
        self._source, self._output = folder / "requests.jsonl", folder / "out.jsonl"
        self._env = {**provider.environment, "ORCH_DATABASE_URL": database_url, "KEY": KEY}
        self._env |= aws_environment(KEY, folder)
        self.report = KillReport(rows=len(schedule.rows))
        write(self._source, schedule.rows)
        (orch.home / "orch.toml").write_text(toml_of(provider, schedule), encoding="utf-8")
        provider.settings(**schedule.settings, latency_ms=LATENCY_MS, min_rows=1)
        provider.script(*schedule.script)

    def until_done(self, kills: int, most_calls: int, dice: random.Random) -> KillReport:
        """Kill behind up to `most_calls` calls of each start, `kills` times; then finish and check."""
        for _ in range(kills):
            if not self._kill_after(dice.randint(0, most_calls), dice.uniform(0, 0.1)):
                break
            self.report.stages[self._stage()] += 1
        self._finish()
        return self.report

    def until_done_on(self, disk: FaultyDisk) -> KillReport:
        """Run before a disk that fails, a few times; then finish on one that does not and check."""
        disk.beset(self._orch, self._command(), self._env, allowed=(*ENDED, STORAGE))
        # A run that a fault has ended leaves as much behind as one that was killed.
        self.report.kills = disk.codes.total()
        self._finish()
        return self.report

    def _calls(self) -> int:
        return sum(entry["count"] for entry in self._provider.state()["requests"])

    def _command(self) -> tuple[str, ...]:
        return "run", str(self._source), "-o", str(self._output), "-q"

    def _kill_after(self, calls: int, seconds: float) -> bool:
        """Run for so many calls to the provider, and a moment more. False where the run ended by itself first."""
        before = self._calls()
        process = self._orch.start(*self._command(), env=self._env)
        # Told by what it does: how long it takes to start says more about the machine.
        wait_until(lambda: process.poll() is not None or self._calls() >= before + calls, LONGEST_RUN)
        with suppress(subprocess.TimeoutExpired):
            if process.wait(seconds) not in ENDED:
                self.report.broken.append(f"exit {process.returncode}: {self._orch.output(process)[-2000:]}")
            return False
        kill_group(process)
        process.wait()
        self.report.kills += 1
        return True

    def _stage(self) -> str:
        """Where the kill struck, told by the shards that are not over."""
        with Store.open(self._url) as store:
            jobs = store.jobs.newest()
            states = {shard.state.value for job in jobs for shard in store.shards.of_job(job.id)}
        order = ("submitting", "ended", "pending", "submitted", "collected", "cancelled")
        return next((state for state in order if state in states), "building" if jobs else "starting")

    def _finish(self) -> None:
        self._provider.clock.set(speed=SPEED_TO_THE_END)
        done = self._orch(*self._command(), env=self._env, timeout=LONGEST_RUN)
        if done.returncode not in ENDED:
            self.report.broken.append(f"the last run ended with {done.returncode}: {done.stderr[-2000:]}")
            return
        with Store.open(self._url) as store:
            (job,) = store.jobs.newest()
            books = Books.read(store, Home(self._orch.home), self._provider, job)
            self.report.broken += self._mistakes(store, job, books)
        if self._output.read_bytes() != Path(job.output_path or "").read_bytes():
            self.report.broken.append("the output is another one than the job's")
        self.report.batches, self.report.billed = len(books.batches), books.bill_rows
        self.report.unexplained = books.unexplained

    def _mistakes(self, store: Store, job: Job, books: Books) -> Iterator[str]:
        if self._schedule.order == ("flex",):
            return self._of_calls(store, job, books)
        return mistakes(self._schedule, books, kills=self.report.kills)

    def _of_calls(self, store: Store, job: Job, books: Books) -> Iterator[str]:
        """Rows of a synchronous API: what was in flight at a kill may be paid again, and is booked as uncertain."""
        if books.merged != [row.custom_id for row in self._schedule.rows]:
            yield f"the output has {len(books.merged)} rows: {books.merged[:5]}"
        uncertain = sum(total.uncertain for total in store.ledger.totals("job", job_id=job.id))
        doubts = booked_twice(store, job)
        settled = sum((cost_of(usage_of(row.tokens)) for row in self._schedule.rows), Decimal(0))
        if books.cost - uncertain != settled:
            yield f"${books.cost - uncertain} are settled where {settled} are right"
        for row in self._schedule.rows:
            billed, seq = books.asked.get(row.digest, 0), books.rows[row.custom_id].seq
            in_doubt = doubts.get(seq, Decimal(0)) / cost_of(usage_of(row.tokens))
            if not 1 <= billed <= 1 + in_doubt:
                yield f"{row.custom_id} was billed {billed} times and is booked once and {in_doubt} times uncertain"
            self.report.doubled += billed - 1
        sends = sum(
            int(doubts.get(books.rows[row.custom_id].seq, Decimal(0)) / cost_of(usage_of(row.tokens)))
            for row in self._schedule.rows
        )
        if sends > PER_KILL * self.report.kills:
            yield f"{sends} sends are uncertain behind {self.report.kills} kills"
        if books.left_here:
            yield f"files are left here that nobody needs: {books.left_here}"
