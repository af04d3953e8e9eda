"""A home as its pages show it: nights that are over, a job that runs, a large one, and texts that mean harm."""

from __future__ import annotations

import base64
import io
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from PIL import Image

from orchestrator.core.clock import now
from orchestrator.core.events import EventKind
from orchestrator.core.model import Forecast, Job, Outcome, Price, RequestState, Span, Usage
from orchestrator.core.quote_marks import Quote
from orchestrator.core.schedules import Misfire, Night, NightState, Overlap, Schedule
from orchestrator.core.shards import ShardState
from orchestrator.policy.grounding import SentDocument, SentText, check_quotes
from orchestrator.policy.sent_text import TextAt
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.limits import LearnedLimit
from orchestrator.store.refused_fields import LearnedField
from tests.support.nights import SPEC, Bad, Nights, result_line
from tests.support.raycluster import below, command_of
from tests.support.stored import job, row, settle, sharded

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
BIG = 100_000
LONG_ERRORS = {
    "schema_mismatch": "kündigungsfrist/ende: '31. März zweitausendsiebenundzwanzig' does not match the pattern "
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "context_length_exceeded": "This model's maximum context length is 128000 tokens. However, your messages "
    "resulted in 190211 tokens. Please reduce the length of the messages.",
    "encrypted": "the password of https://archive.example/scans/2026-11-24/9f86d081884c7d659a2feaa0c55ad015"
    "a3bf4f1b2b0b822cd15d6c15b0f00a08.pdf is not known",
}
LETTER_AT = len("Who signed this?\n\n")
SETTINGS = """
[backends.gpu]
kind = "local"
upstreams = ["http://127.0.0.1:9/v1"]
cost_per_hour = 2.5
[backends.hosted]
kind = "openai"
api_key_env = "NO_SUCH_KEY"
[[budgets]]
name = "team"
amount = 40
period = "month"
"""


@dataclass(frozen=True)
class WebHome:
    """Where it is, and the jobs that it has."""

    root: Path
    old: Job
    new: Job
    letters: Job
    running: Job
    big: Job
    long: Job

    @property
    def url(self) -> str:
        return f"sqlite:///{self.root / 'orch.db'}"


def web_home(root: Path, big: int = BIG) -> WebHome:
    """Make one; nothing of it is looked at by a daemon."""
    (root / "orch.toml").write_text(SETTINGS)
    at = now()
    home = Home(root)
    with Store.open(f"sqlite:///{root / 'orch.db'}") as store:
        nights = Nights(store, home)
        first = {
            f"letters/2026/letter-{n:03}.txt": {"party": f"Party {n}", "end": f"2027-{1 + n % 12:02}-01"}
            for n in range(60)
        }
        then = {
            name: {**fields, "party": f"{fields['party']} & Sons"} if n % 7 == 0 else fields
            for n, (name, fields) in enumerate(first.items())
        }
        broken = {f"scans/page-{n}.pdf": Bad("truncated", f"the answer ends in the middle {EVIL}") for n in range(4)}
        old = nights.finish(
            nights.run(first, at=at - timedelta(days=2), cost="0.0123"), at - timedelta(days=2, hours=-2)
        )
        new = nights.run(
            {**then, **broken},
            at=at - timedelta(days=1),
            cost="0.0145",
            deadline_at=at - timedelta(hours=18),
            budget=Decimal(5),
        )
        made, first_shard = at - timedelta(days=1), f"{new.id}.001"
        store.forecasts.made(
            [
                Forecast(new.id, "cost", "", "", made, 0.8, 1.2, "prior"),
                Forecast(
                    new.id, "turnaround", "provider-overnight", "m", made, 8200, 47_400, "", "", first_shard, 8100
                ),
            ]
        )
        new = nights.finish(new, at - timedelta(hours=17))
        for of in (old, new):
            for found in store.shards.of_job(of.id):
                began = of.created_at + timedelta(minutes=4)
                for to, facts in (
                    (ShardState.ENDED, {"started_at": began, "ended_at": began + timedelta(minutes=50)}),
                    (ShardState.COLLECTED, {"collected_at": began + timedelta(minutes=55)}),
                ):
                    store.shards.move(store.shards.get(found.id), to, **facts)
                store.shards.note(store.shards.get(found.id), created_at=of.created_at, submitted_at=of.created_at)
        letters = _letters(store, home, at - timedelta(hours=2))
        running = _running(store, home, at - timedelta(minutes=40))
        large = _large(root, store, home, at - timedelta(minutes=30), big)
        long = _long_names(nights, at)
        words = "Invalid schema for response_format 'letters': 'additionalProperties' is required to be false."
        refused = ("hosted", "gpt-5-mini", "/v1/chat/completions", "response_format", "invalid_request_error")
        store.refused_fields.put(LearnedField(*refused, words, at))
        store.limits.put(
            LearnedLimit(
                "hosted",
                "gpt-5-mini",
                2_000_000,
                50_000,
                at,
                at + timedelta(hours=1),
                1,
                "429: the limit of 2M queued tokens was reached",
            )
        )
    return WebHome(root, old, new, letters, running, large, long)


def _long_names(nights: Nights, at: datetime) -> Job:
    """Two nights of a job whose documents, task and texts have names as people give them."""
    task = "notice_period_and_end_of_each_agreement"
    folder = "Verträge/Müller, Söhne & Partner GmbH/2026/Rahmenverträge und Nachträge"
    party = "Österreichische Gesellschaft für Grundstücksverwaltung und Liegenschaftsbewertung mbH"
    first: dict[str, Any] = {
        f"{folder}/Rahmenvertrag_über_Lieferungen_und_Leistungen_Anlage_{n}b_unterschrieben.pdf": {
            "party": party, "end": f"{2027 + n}-03-31"
        }
        for n in range(8)
    }  # fmt: skip
    bad = {
        f"{folder}/Nachtrag Nr. {n} (eingescannt).pdf": Bad(code, message, unreadable=code == "encrypted")
        for n, (code, message) in enumerate(LONG_ERRORS.items())
    }
    facts: dict[str, Any] = {
        "name": "Vertragsprüfung Liegenschaften Süddeutschland, wöchentlich",
        "series": "vertragspruefung-liegenschaften-sueddeutschland",
        "source": "/srv/abteilungen/recht-und-compliance/Vertragsprüfung/liegenschaften-sueddeutschland.yaml",
        "task": task,
        "spec": {**SPEC, "name": "vertragspruefung", "tasks": [{**SPEC["tasks"][0], "id": task}]},
    }
    for days in (3, 1):
        name = f"vertragspruefung-liegenschaften-sueddeutschland-{days}f3a"
        run = nights.run({**first, **bad}, at=at - timedelta(days=days), id=name, **facts)
        nights.finish(run, at - timedelta(days=days, hours=-3))
        first = {key: {**fields, "party": f"{fields['party']} & Co. KG"} for key, fields in first.items()}
    return nights.store.jobs.get(run.id)


def add_schedules(home: WebHome) -> None:
    """Add schedules of another home, whose daemon runs them, with names as people give them."""
    at = now()
    name = "vertragspruefung-liegenschaften-sueddeutschland"
    with Store.open(home.url) as store:
        first = Schedule(
            "s-1", name, "another", str(home.root / "orch.toml"), home.long.source, "0 22 * * 1-5",
            "Europe/Berlin", "06:00", Decimal("12.5"), Misfire.RUN, timedelta(hours=6), Overlap.SKIP, at, at,
        )  # fmt: skip
        second = replace(
            first, id="s-2", name=f"{name}-zusammenfassung", cron="", after="s-1", deadline=None, budget=None
        )
        for one in (first, second):
            store.schedules.add(one)
        reason = "only the newest missed night is run; no daemon ran between Mon 22:00 and Tue 04:00"
        for days, state in ((2, NightState.DONE), (1, NightState.MISSED)):
            night = (at - timedelta(days=days)).date()
            store.schedules.claim(Night("s-1", night, at - timedelta(days=days), state, reason, at, home.long.id))


def _quotes(question: str) -> str:
    """Quotes of a letter: once, many times over, and one that nothing can be said of."""
    texts = ("Dear sirs, " + EVIL, "the contract. we herewith", "not to be found in the letter")
    sent = SentDocument((SentText(question[LETTER_AT:], 1),), has_pictures=True)
    return check_quotes([Quote(f"reasons/{number}/quote", text) for number, text in enumerate(texts)], sent).to_json()


def _letters(store: Store, home: Home, at: datetime) -> Job:
    """Rows with their requests and answers: one that means harm, one with a scanned page."""
    spec = {**SPEC, "name": "letters", "tasks": [{"id": "t", "prompt": "Who?", "model": "m"}]}
    new = job(
        "letters-5f2c",
        spec=spec,
        home=home.identity(),
        created_at=at,
        name=f"letters {EVIL[:30]}",
        series="letters",
        source=f"/data/{EVIL[:20]}/job.yaml",
    )
    store.jobs.add(new, {"team": EVIL, "case": "42"})
    image = io.BytesIO()
    Image.linear_gradient("L").resize((320, 440)).save(image, "PNG")
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()},
    }
    contents: list[Any] = [
        f"Who signed this?\n\nDear sirs, {EVIL}\n\n" + "we herewith give notice of the contract. " * 40,
        [{"type": "text", "text": "What is on this page?"}, picture],
        "plain",
    ]
    path, rows, place = home.requests(new.id), [], 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for seq, content in enumerate(contents):
            messages = [
                {"role": "system", "content": "You read contracts. Answer with JSON."},
                {"role": "user", "content": content},
            ]
            line = json.dumps(
                {
                    "custom_id": f"l-{seq}",
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": {"model": "m", "messages": messages, "max_tokens": 400},
                }
            ).encode()
            file.write(line + b"\n")
            rows.append(
                row(
                    seq,
                    span=Span(place, len(line)),
                    document=f"letters/{EVIL if seq == 0 else f'scan-{seq}.pdf'}",
                    custom_id=f"l-{seq}",
                    text_at=str(TextAt(LETTER_AT, len(content), 1)) if seq == 0 else None,
                )
            )
            place += len(line) + 1
    store.rows.add(new.id, rows, {}, at)
    store.jobs.mark_built(new.id, at)
    found = sharded(store, new, state=ShardState.SUBMITTED)
    results = home.results(found.id, "output")
    results.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        result_line(f"l-{seq}", {"party": EVIL, "signed": ["2026-03-01", "2026-03-04"], "value": 12500})
        for seq in range(2)
    ]
    results.write_bytes(b"\n".join(lines) + b"\n")
    spans = [Span(0, len(lines[0])), Span(len(lines[0]) + 1, len(lines[1]))]
    done = [
        (
            Outcome(
                seq,
                RequestState.SUCCEEDED,
                kind="output",
                span=spans[seq],
                usage=Usage(1840, 1024, 61),
                model="m",
                latency_ms=840,
                quotes=_quotes(contents[0]) if seq == 0 else None,
            ),
            Price(Decimal("0.00123"), "list"),
        )
        for seq in range(2)
    ]
    bad = (
        Outcome(
            2, RequestState.FAILED, error_code="schema_mismatch", error_message=f"party: {EVIL} is not of type string"
        ),
        None,
    )
    settle(store, found, *done, bad, now=at + timedelta(minutes=9))
    store.shards.move(store.shards.get(found.id), ShardState.ENDED)
    store.shards.move(store.shards.get(found.id), ShardState.COLLECTED)
    store.jobs.note(new.id, EventKind.WAITING, f"waits {EVIL}", at)
    store.jobs.finish(new.id, "/out.jsonl", at + timedelta(minutes=11))
    return store.jobs.get(new.id)


def _running(store: Store, home: Home, at: datetime) -> Job:
    new = job(
        "invoices-81aa",
        home=home.identity(),
        created_at=at,
        name="invoices",
        series="invoices",
        deadline_at=at + timedelta(hours=5),
        budget=Decimal("2.50"),
        source="/data/invoices.yaml",
    )
    store.jobs.add(new, {"team": "finance"})
    store.rows.add(new.id, [row(seq) for seq in range(400)], {}, at)
    store.jobs.mark_built(new.id, at)
    found = sharded(store, new, state=ShardState.SUBMITTED)
    store.shards.note(
        found,
        provider_completed=140,
        provider_failed=2,
        provider_seconds=700.0,
        provider_input_tokens=91_000,
        provider_output_tokens=12_000,
        created_at=at,
        submitted_at=at + timedelta(minutes=1),
        started_at=at + timedelta(minutes=3),
        batch_id="batch_6730a1",
        provider_status="in_progress",
    )
    store.jobs.note(new.id, EventKind.HELD, "queued behind quota: 1.9M of 2M tokens", at, found.id)
    return store.jobs.get(new.id)


def _large(root: Path, store: Store, home: Home, at: datetime, rows: int) -> Job:
    """A job of so many rows: the first is stored, and the database makes the others of it."""
    new = job(
        "archive-c0de",
        home=home.identity(),
        created_at=at,
        name="archive",
        series="archive",
        source="/data/archive.yaml",
        deadline_at=at + timedelta(hours=9),
    )
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(0)], {}, at)
    store.jobs.mark_built(new.id, at)
    sharded(store, new, state=ShardState.SUBMITTED)
    with closing(sqlite3.connect(root / "orch.db")) as database:
        _multiply(database, new.id, rows, int(at.timestamp() * 1e6))
        database.commit()
    return store.jobs.get(new.id)


def _multiply(database: sqlite3.Connection, job_id: str, rows: int, at: int) -> None:
    names = [name for _, name, *_ in database.execute("PRAGMA table_info(requests)")]
    document = "'archive/' || (n % 97) || '/scan-' || n || '.pdf'"
    changes = {"seq": "n", "custom_id": "'row-' || n", "document": document, "fingerprint": "'f' || n"}
    values = ", ".join(changes.get(name, f'p."{name}"') for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    numbers = f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {rows})"
    source = f"SELECT {values} FROM requests p CROSS JOIN numbers WHERE p.job_id = ? AND p.seq = 0"
    database.execute(f"INSERT INTO requests ({columns}) {numbers} {source}", (job_id,))
    done = "state = 'succeeded', cost = 1000000, input_tokens = 900, output_tokens = 40, settled_at = ?"
    database.execute(f"UPDATE requests SET {done} WHERE job_id = ? AND seq % 10 < 6", (at, job_id))
    bad = "state = 'failed', error_code = 'truncated', error_message = 'the answer ends in the middle'"
    database.execute(f"UPDATE requests SET {bad} WHERE job_id = ? AND seq % 1000 = 7", (job_id,))
    database.execute("UPDATE shards SET rows = ? WHERE job_id = ?", (rows, job_id))


def pages_of(daemon: int) -> list[int]:
    """The processes that serve the pages of a daemon: one, or none for a moment. Linux."""
    return [pid for pid in below(daemon) if "pages_process" in command_of(pid)]


if __name__ == "__main__":
    place = Path(os.environ["ORCH_HOME"])
    place.mkdir(parents=True, exist_ok=True)
    web_home(place)
