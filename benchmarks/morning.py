"""The morning after: 1,000,000 answers merged, and a home of 1,000,000 rows and 400 nights looked at.

`merge` is `orch fetch` of one job, whose answers were checked against a schema of five fields, as JSONL and as
Parquet: seconds, CPU, peak of resident memory. `pages` is a home with 400 nights of 1,500 answered rows and a job of
400,000 that runs: seconds for each page of `orch view`, shown once before, and for `orch report cost`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from benchmarks.databases import SETTINGS
from benchmarks.pages import ORCH, serving, site_of, visitor
from benchmarks.serving import Constant, Unavailable, note, say, scratch
from orchestrator.core.model import Job
from orchestrator.core.shards import ShardState
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.nights import Nights
from tests.support.webhome import web_home

ROUNDS, NIGHTS, NIGHT_ROWS = 7, 400, 1_500
ANSWER = json.dumps({"party": "Ada & Sons", "begin": "2026-01-01", "months": 24, "renews": True, "note": "n" * 120})
JOB = """\
name: bench
documents: {path: rows.csv, text_column: text}
tasks:
  - id: terms
    model: small
    max_tokens: 64
    prompt: "Which terms?"
    output_schema:
      type: object
      properties:
        party: {type: string}
        begin: {type: string}
        months: {type: integer}
        renews: {type: boolean}
        note: {type: string}
      required: [party, begin, months, renews, note]
models: {small: m}
"""


def main(argv: Sequence[str] = ()) -> None:
    """Measure the parts that are chosen, both otherwise."""
    parts = {"merge": _merge, "pages": _pages}
    parser = argparse.ArgumentParser(prog="python -m benchmarks morning", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=parts, default=[*parts])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the job that is merged")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args(argv)
    for name in chosen.parts:
        with scratch() as place:
            parts[name](place, chosen.rows, chosen.rounds)


def _merge(place: Path, rows: int, rounds: int) -> None:
    with Constant("--content", ANSWER) as upstream:
        _use(place, SETTINGS.format(url=upstream.url))
        (place / "job.yaml").write_text(JOB, encoding="utf-8")
        with (place / "rows.csv").open("w", encoding="utf-8") as file:
            file.write("text\n")
            file.writelines(f"Contract {number} of two parties.\n" for number in range(rows))
        note(f"{rows:,} rows are asked first")
        _took([*ORCH, "run", str(place / "job.yaml"), "--quiet"], place)
    for form in ("jsonl", "parquet"):
        out = place / f"merged.{form}"
        found = []
        for _ in range(rounds):
            out.unlink(missing_ok=True)
            found.append(_took([*ORCH, "fetch", "bench", "--quiet", "-o", str(out)], place))
            note(f"{form}: {found[-1][0]:.1f} s")
        seconds, cpu, peak = (statistics.median(values) for values in zip(*found, strict=True))
        least, most = min(each[0] for each in found), max(each[0] for each in found)
        say(
            f"morning {rows:,} rows merged to {form} ({out.stat().st_size / 1e6:.0f} MB): {seconds:.1f} s "
            f"[{least:.1f}, {most:.1f}], {cpu:.1f} s of CPU, {peak:.0f} MB peak, {rounds} rounds"
        )


def _pages(place: Path, rows: int, rounds: int) -> None:
    _use(place, "")
    home = web_home(place, 400_000)
    with Store.open(home.url) as store:
        last = _add_nights(store, Home(place), home.big)
    big = f"/jobs/{home.big.id}"
    pages = [
        *(
            "/",
            "/jobs",
            "/nights",
            f"/nights/{last.created_at:%Y-%m-%d}",
            "/schedules",
            "/backends",
            "/quarantine",
            "/money",
        ),
        *(
            "/money?since=all",
            big,
            f"{big}/rows",
            f"{big}/rows?q=scan-99999",
            f"/jobs/{last.id}",
            f"/jobs/{last.id}/rows",
        ),
        f"/jobs/{last.id}/rows/7",
    ]
    with serving("view", "127.0.0.1:0") as (_, link):
        for page, seconds in asyncio.run(_visits(link, pages, rounds)):
            told = f"{statistics.median(seconds):.2f} s [{min(seconds):.2f}, {max(seconds):.2f}]"
            say(f"morning page {page.replace(home.big.id, 'LARGE').replace(last.id, 'NIGHT')}: {told}")
    for options in (("--since", "30d"), ("--since", "30d", "--by", "task"), ()):
        found = [_took([*ORCH, "report", "cost", *options], place)[:2] for _ in range(rounds)]
        seconds, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        say(f"morning {' '.join(('orch report cost', *options))}: {seconds:.2f} s, {cpu:.2f} s of CPU")


def _add_nights(store: Store, home: Home, after: Job) -> Job:
    nights = Nights(store, home)
    for number in range(NIGHTS):
        at = after.created_at - timedelta(days=NIGHTS - number)
        answers = {f"in/{night_row:04}.txt": {"party": f"Party {number}"} for night_row in range(NIGHT_ROWS)}
        night = nights.run(answers, at=at, cost="0.0005", id=f"night-{number:03}", name="nightly", series="nightly")
        [batch] = store.shards.of_job(night.id)
        for state in (ShardState.ENDED, ShardState.COLLECTED):
            store.shards.move(store.shards.get(batch.id), state)
        last = nights.finish(night, at + timedelta(hours=2))
        if number % 50 == 49:
            note(f"{number + 1} nights")
    return last


async def _visits(link: str, pages: Sequence[str], rounds: int) -> list[tuple[str, list[float]]]:
    found = []
    async with visitor(link) as session:
        for page in pages:
            seconds = []
            for _ in range(rounds + 1):
                began = time.monotonic()
                async with session.get(site_of(link) + page) as answer:
                    await answer.read()
                if answer.status != 200:
                    raise Unavailable(f"{page} answered {answer.status}")
                seconds.append(time.monotonic() - began)
            found.append((page, seconds[1:]))
    return found


def _use(place: Path, settings: str) -> None:
    (place / "orch.toml").write_text(settings, encoding="utf-8")
    os.environ.update(ORCH_HOME=str(place), ORCH_CONFIG=str(place / "orch.toml"))


def _took(command: Sequence[str], place: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak MB of a command. Raises Unavailable if it fails."""
    with (place / "said.txt").open("wb") as said:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=place, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Unavailable(
            f"`{' '.join(command[3:])}` ended with {process.returncode}: {(place / 'said.txt').read_text()}"
        )
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
