"""Traces and metrics of a home, sent to a receiver that decodes them: what they tell, and that nothing waits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.model import Job, Outcome, RequestState, Span
from orchestrator.core.shards import Shard, ShardState
from orchestrator.daemon.telemetry import sent
from orchestrator.daemon.telemetry.exporter import KEPT, MOST_SPANS, Exporter
from orchestrator.daemon.telemetry.reader import MOST_ROWS
from orchestrator.settings.config import Config, parse
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.databases import new_sqlite
from tests.support.nights import SPEC, Bad, Nights
from tests.support.otlp import Collector
from tests.support.process import wait_until
from tests.support.stored import NOW, job, row, settle, sharded

BACKENDS = """
[backends.gpu]
kind = "openai"
api_key_env = "NO_SUCH_KEY"
"""
ANSWERS = {"a.txt": {"party": "A"}, "b.txt": {"party": "B"}, "c.txt": Bad("schema_mismatch", "B & Sons is no date")}


@dataclass
class TestHome:
    """A home with a store, a clock that a test sets, and what people were told."""

    __test__ = False
    root: Path
    store: Store
    at: datetime = NOW
    told: list[str] = field(default_factory=list)

    @property
    def home(self) -> Home:
        return Home(self.root)

    def config(self, url: str, **settings: Any) -> Config:
        lines = [f"{name} = {_toml(value)}" for name, value in {"endpoint": url, **settings}.items()]
        place = Place(self.root / "orch.toml", self.root, "sqlite://", 1.0, is_found=False)
        return parse(place, BACKENDS + "[telemetry]\n" + "\n".join(lines))

    @contextmanager
    def exporting(self, url: str, **settings: Any) -> Iterator[Exporter]:
        exporter = Exporter(
            self.store, self.home, self.config(url, **settings), lambda: self.at, self.told.append, look_seconds=0.02
        )
        try:
            yield exporter
        finally:
            exporter.close()

    def begin(self) -> None:
        """Telemetry was asked for an hour ago."""
        sent.write(self.home, sent.SentLog(self.at - timedelta(hours=1)))

    def night(self, answers: Mapping[str, Any] = ANSWERS, **facts: Any) -> tuple[Job, Shard]:
        """A job that ended now; its batch ran for twenty minutes."""
        made = Nights(self.store, self.home).run(answers, at=self.at - timedelta(minutes=40), cost="0.25", **facts)
        [shard] = self.store.shards.of_job(made.id)
        batch = {"batch_id": "batch_1", "intended_at": made.created_at, "submitted_at": made.created_at}
        self.store.shards.note(shard, **batch)
        over = made.created_at + timedelta(minutes=20)
        shard = self.store.shards.get(shard.id)
        self.store.shards.move(shard, ShardState.ENDED, ended_at=over, provider_status="completed")
        shard = self.store.shards.get(shard.id)
        self.store.shards.move(shard, ShardState.COLLECTED, collected_at=over + timedelta(seconds=30))
        self.store.jobs.finish(made.id, "/out.jsonl", self.at)
        return self.store.jobs.get(made.id), self.store.shards.get(shard.id)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[TestHome]:
    (tmp_path / "orch.toml").touch()
    with Store.open(new_sqlite(tmp_path / "orch.db")) as store:
        found = TestHome(tmp_path, store)
        found.begin()
        yield found


def settled(here: TestHome) -> bool:
    log = sent.read(here.home)
    return log is not None and log.since == here.at - sent.OVERLAP


def test_a_night_is_one_trace(here: TestHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job, shard, batch and the row that failed, with the conventions' names, our cost, and no word of an answer."""
    monkeypatch.setenv("RECEIVER_KEY", "Basic c2VjcmV0")
    answers = {**ANSWERS, "broken.pdf": Bad("encrypted_document", "it has a password", unreadable=True)}
    made, _ = here.night(answers, deadline_at=here.at + timedelta(hours=1))
    with Collector() as collector, here.exporting(collector.url, headers_env={"Authorization": "RECEIVER_KEY"}):
        wait_until(lambda: settled(here) and bool(collector.points))
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"job contracts", "shard gpu", "batch gpu", "chat m", "document"}
    whole, shard, batch, failed, unread = (
        spans[name] for name in ("job contracts", "shard gpu", "batch gpu", "chat m", "document")
    )
    assert {span.raw.trace_id for span in spans.values()} == {whole.raw.trace_id}
    assert [span.raw.parent_span_id for span in (whole, shard, batch, failed, unread)] == [
        b"", whole.raw.span_id, shard.raw.span_id, batch.raw.span_id, whole.raw.span_id,
    ]  # fmt: skip
    assert (whole.seconds, batch.seconds) == (2400, 1200)
    assert whole.attributes["orch.cost"] == pytest.approx(0.5)
    assert whole.attributes["orch.rows.failed"] == 2
    assert whole.attributes["orch.deadline.kept"] is True
    assert batch.attributes["orch.batch.id"] == "batch_1"
    assert (batch.attributes["orch.tokens.input"], batch.attributes["orch.tokens.output"]) == (200, 20)
    assert {name: failed.attributes[name] for name in ("gen_ai.operation.name", "gen_ai.provider.name")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
    }
    assert (failed.attributes["gen_ai.request.model"], failed.attributes["error.type"]) == ("m", "schema_mismatch")
    assert failed.attributes["server.address"] == "api.openai.com"
    assert failed.raw.status.code == failed.raw.status.STATUS_CODE_ERROR
    assert unread.attributes["orch.document"] == "broken.pdf"
    everything = str(collector.messages)
    assert "Sons" not in everything
    assert "password" not in everything
    assert {headers["authorization"] for _, headers in collector.asked} == {"Basic c2VjcmV0"}
    tokens = collector.points["gen_ai.client.token.usage", "input", ""]
    assert (tokens.count, tokens.sum, tokens.min) == (2, 200, 100)
    assert [*tokens.explicit_bounds][:5] == [1, 4, 16, 64, 256]
    assert [*tokens.bucket_counts][:5] == [0, 0, 0, 0, 2]
    assert whole.attributes["orch.job.id"] == made.id
    assert here.told == []


def test_the_sample_has_rows_that_went_well(here: TestHome) -> None:
    here.night({f"d{n}": {"party": "P"} for n in range(10)})
    with Collector() as collector, here.exporting(collector.url, sample=0.25):
        wait_until(lambda: settled(here))
    rows = collector.named("chat")
    assert sorted(span.attributes["orch.row.number"] for span in rows) == [0, 4, 8]
    assert {span.attributes["gen_ai.usage.cost"] for span in rows} == {0.25}
    assert {span.raw.status.code for span in rows} == {0}


def test_content_is_told_where_it_is_asked_for(here: TestHome) -> None:
    made, _ = here.night()
    lines = here.home.requests(made.id)
    line = b'{"body":{"messages":[{"role":"system","content":"Read."},{"content":[{"type":"image_url"}]}]}}'
    # One that holds, of the length that the store has of it; the others are damaged.
    lines.write_bytes(line.ljust(99) + b"\n{broken" * 50)
    with Collector() as collector, here.exporting(collector.url, sample=1, content=True):
        wait_until(lambda: settled(here))
    by_document = {span.attributes["orch.document"]: span.attributes for span in collector.named("chat")}
    said = json.loads(by_document["a.txt"]["gen_ai.output.messages"])
    assert said[0]["role"] == "assistant"
    assert json.loads(said[0]["parts"][0]["content"]) == {"party": "A"}
    assert json.loads(by_document["a.txt"]["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Read."}]},
        {"role": "user", "parts": [{"type": "text", "content": "(image_url, left out)"}]},
    ]
    assert "gen_ai.input.messages" not in by_document["b.txt"]
    assert by_document["c.txt"]["orch.error.message"] == "B & Sons is no date"


@pytest.mark.parametrize(("settings", "is_told"), [({}, True), ({"location": "local"}, True)])
def test_a_receiver_of_ones_own_gets_what_local_jobs_say(
    here: TestHome, settings: dict[str, Any], is_told: bool
) -> None:
    """A receiver on this machine, or one that is declared local."""
    here.night(spec={**SPEC, "allow": {"location": "local"}})
    with Collector() as collector, here.exporting(collector.url, sample=1, content=True, **settings):
        wait_until(lambda: settled(here))
    assert ("orch.document" in collector.named("chat")[0].attributes) is is_told


def test_nothing_that_a_local_job_says_leaves(here: TestHome) -> None:
    """To a receiver elsewhere go its numbers alone: no text, no reason, and no name of a document."""
    from orchestrator.daemon.telemetry.reader import TraceReader

    here.night(spec={**SPEC, "allow": {"location": "local"}})
    config = here.config("https://collector.example.com", sample=1, content=True)
    assert config.telemetry is not None
    reader = TraceReader(here.store, here.home, lambda: config, lambda: here.at)
    spans = [span for one in reader.ended(NOW - timedelta(hours=1)) for span in reader.spans(one, config.telemetry)]
    assert len(spans) == 6
    told = str([(span.attributes, span.events) for span in spans])
    for word in ("party", "Sons", "a.txt", "c-a.txt", "gen_ai.input", "gen_ai.output", "orch.reason': 'T"):
        assert word not in told, word


@pytest.mark.long
def test_a_receiver_that_is_down_gets_everything_when_it_is_back(here: TestHome) -> None:
    """It is told once that it takes nothing, and once that it does again; the same span is not made twice."""
    here.night()
    status = 503
    with Collector(lambda path, message: status) as collector:
        with here.exporting(collector.url):
            wait_until(lambda: len(collector.asked) > 1)
            assert len(here.told) == 1
            assert "status 503" in here.told[0]
            status = 200
            wait_until(lambda: settled(here))
            wait_until(lambda: len(here.told) == 2)
        assert len(collector.spans) == len({span.raw.span_id for span in collector.spans}) == 4
        log = sent.read(here.home)
        assert log is not None
        assert (log.sent, log.dropped, log.failing) == (4, 0, None)
        before = len(collector.spans)
        with here.exporting(collector.url):  # a daemon that starts again knows what was told
            here.at += timedelta(minutes=1)
            wait_until(lambda: settled(here))
        assert len(collector.spans) == before


def test_what_cannot_be_sent_for_a_day_is_dropped_and_counted(here: TestHome) -> None:
    here.night()
    here.at += KEPT + timedelta(minutes=1)
    with Collector(lambda path, message: 503) as collector, here.exporting(collector.url):
        wait_until(lambda: bool((log := sent.read(here.home)) and log.dropped))
    log = sent.read(here.home)
    assert log is not None
    assert (log.sent, log.dropped) == (0, 4)
    assert log.failing == "it answers with status 503"


def test_spans_that_are_refused_keep_no_others(here: TestHome) -> None:
    """A request that is too large is halved; what is refused alone is dropped and counted."""
    here.night({f"d{n}": {"party": "P"} for n in range(9)})

    def answer(path: str, message: Any) -> int:
        if path == "/v1/metrics":
            return 404
        spans = message.resource_spans[0].scope_spans[0].spans
        is_bad = any(one.key == "orch.row.number" and one.value.int_value == 3 for one in spans[0].attributes)
        return 413 if len(spans) > 1 else 400 if is_bad else 200

    with Collector(answer) as collector, here.exporting(collector.url, sample=1):
        wait_until(lambda: settled(here))
    log = sent.read(here.home)
    assert log is not None
    assert (log.sent, log.dropped, len(collector.spans)) == (11, 1, 11)
    assert [told for told in here.told if "metrics" in told], "the metrics' failing is told, and apart"


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_receiver_without_metrics_is_asked_once_for_each_news(here: TestHome, status: int) -> None:
    """People are told what to set, and no span waits for what will never be taken. Phoenix is such a one."""
    here.night()
    with Collector(lambda path, message: status if path == "/v1/metrics" else 200) as collector:
        with here.exporting(collector.url):
            wait_until(lambda: settled(here) and bool(here.told))
        asked = [path for path, _ in collector.asked if path == "/v1/metrics"]
    assert here.told == [f"telemetry: {collector.url} refuses the metrics; `metrics = false` leaves them out"]
    assert len(asked) == 1


def test_the_end_of_a_daemon_waits_for_no_receiver(here: TestHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes connections and never answers."""
    monkeypatch.setattr("orchestrator.daemon.telemetry.exporter.END_SECONDS", 0.2)
    here.night()
    with Collector(lambda path, message: None) as collector:
        with here.exporting(collector.url):
            wait_until(lambda: bool(collector.asked))
        assert not settled(here)
    with Collector() as collector, here.exporting(collector.url):
        wait_until(lambda: settled(here))
    assert len(collector.spans) == 4


@pytest.mark.long
def test_a_retried_job_goes_on_in_its_trace(here: TestHome) -> None:
    """Its span comes again with the later end; the shards that were told are not told again."""
    made, _ = here.night()
    with Collector() as collector, here.exporting(collector.url):
        wait_until(lambda: settled(here))
        here.store.jobs.reopen(made.id)
        here.at += timedelta(minutes=5)
        here.store.jobs.finish(made.id, "/out.jsonl", here.at)
        wait_until(lambda: len(collector.named("job")) == 2)
    first, second = collector.named("job")
    assert (first.raw.span_id, first.raw.trace_id) == (second.raw.span_id, second.raw.trace_id)
    assert second.seconds - first.seconds == 300
    assert len(collector.named("shard")) == 1


def test_a_job_that_could_not_go_on_is_told(here: TestHome) -> None:
    made = replace(job("lost-1"), home=here.home.identity())
    here.store.jobs.add(made, {})
    here.store.jobs.fail(made.id, "the disk ate it", "job_files")
    here.store.jobs.note(made.id, "failed", "the disk ate it", here.at)  # type: ignore[arg-type]
    with Collector() as collector, here.exporting(collector.url):
        wait_until(lambda: settled(here))
    [span] = collector.spans
    assert span.attributes["error.type"] == "job_files"
    assert "disk" not in str(collector.messages)


@pytest.mark.long
def test_a_batch_of_failures_is_told_in_part(here: TestHome) -> None:
    """The first thousand rows; the batch says that there are more. Requests stay small."""
    made = replace(job("big-1"), home=here.home.identity())
    here.store.jobs.add(made, {})
    many = MOST_ROWS + 5
    here.store.rows.add(made.id, [row(seq) for seq in range(many)], {}, NOW)
    shard = sharded(here.store, made, state=ShardState.ENDED)
    bad = [
        (Outcome(seq, RequestState.FAILED, kind="error", span=Span(0, 1), error_code="http_500", latency_ms=30), None)
        for seq in range(many)
    ]
    settle(here.store, shard, *bad)
    here.store.shards.move(shard, ShardState.COLLECTED, collected_at=here.at)
    with Collector() as collector, here.exporting(collector.url):
        wait_until(lambda: bool(collector.points) and settled(here))
    assert len(collector.named("chat")) == MOST_ROWS
    assert [one.seconds for one in collector.named("chat")[:2]] == [0.03, 0.03]
    assert max(len(one.resource_spans[0].scope_spans[0].spans) for one in traces(collector)) == MOST_SPANS
    duration = collector.points["gen_ai.client.operation.duration", "", "http_500"]
    assert (duration.count, duration.explicit_bounds[2], duration.bucket_counts[2]) == (many, 0.04, many)


def traces(collector: Collector) -> list[Any]:
    return [message for path, message in collector.messages if path == "/v1/traces"]


def test_settings_that_cannot_be_used_are_told_once_and_stop_nothing(here: TestHome) -> None:
    here.night()
    with (
        Collector() as collector,
        here.exporting(collector.url, headers_env={"Authorization": "NOT_SET_HERE"}) as exporter,
    ):
        wait_until(lambda: bool(here.told))
        exporter.use(here.config(collector.url))
        wait_until(lambda: settled(here))
    assert len(here.told) == 1
    assert "NOT_SET_HERE is not set" in here.told[0]
    assert len(collector.spans) == 4
