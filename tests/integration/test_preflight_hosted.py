"""One row is asked before a batch of requests that its model has never answered: what it costs, and what it saves."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.batches import ApiBatches
from orchestrator.cli.console_jobs import job_detail
from orchestrator.core.clock import now
from orchestrator.core.model import Job
from orchestrator.reports import status
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.hosted_crashes import Killed
from tests.support.hostedjob import DAY, HOUR, MODEL, Desk, cost_of, desk_of, plain, row, script

MANY = 21
"""The fewest rows that one is asked first for."""
WARM = {"temperature": 0.5}
SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


@pytest.fixture(params=["openai", "claude"])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def asked(desk: Desk) -> dict[int, int]:
    """How often the synchronous endpoint was called, by status; 0: without an answer."""
    return desk.provider.calls("chat")


def paid(desk: Desk) -> Decimal:
    """The provider's bill: a synchronous row costs twice as much as one of a batch."""
    of_batches, at_once = list[Any](), list[Any]()
    for line in desk.provider.bill()["lines"]:
        (of_batches if line["tier"] == "batch" else at_once).append(line)
    return cost_of({"lines": of_batches}) + 2 * cost_of({"lines": at_once})


def uncertain(desk: Desk, job: Job) -> Decimal:
    return sum((total.uncertain for total in desk.store.ledger.totals("job", job_id=job.id)), Decimal(0))


def all_succeeded(desk: Desk, job: Job, count: int = MANY) -> None:
    """Every row has an answer, and nobody paid for one twice."""
    assert Counter(desk.ends(job).values()) == {"succeeded": count}
    assert set(desk.provider.bill(rows=True)["asked"].values()) == {1}


def job_file(desk: Desk, count: int, tasks: list[dict[str, Any]], **spec: Any) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:03}.txt").write_text("word " * (10 + number), encoding="utf-8")
    path = desk.folder / "job.yaml"
    usual = {"prompt": "What of it?", "model": "m", "max_tokens": 60}
    filled = [{name: value for name, value in {**usual, **task}.items() if value is not None} for task in tasks]
    # JSON is YAML.
    given = {"name": "night", "documents": "documents", "tasks": filled, "models": {"m": MODEL}, **spec}
    path.write_text(json.dumps(given), encoding="utf-8")
    return path


# --- the row that is answered


@pytest.mark.thinned(2)
def test_the_smallest_row_is_asked_first_and_the_answer_is_its_own(desk: Desk, name: str) -> None:
    desk.backend(name, preflight=True)
    job = desk.submit([row(f"r{number}" + "x" * (number != 7)) for number in range(MANY)])
    desk.settle(job)
    first, batch = desk.detail(job)["shards"]
    assert (first["rows"], first["state"], batch["rows"], batch["state"]) == (1, "collected", MANY - 1, "submitted")
    assert first["preflight"] == "max_tokens messages model"
    assert batch["preflight"] is None
    assert asked(desk) == {200: 1}
    desk.finish(job)
    all_succeeded(desk, job)
    assert desk.cost(job) == paid(desk) > 0
    assert uncertain(desk, job) == 0
    assert desk.rows(job)["r7"]["provenance"]["batch_id"] is None
    assert "is answered" in desk.events(job, "preflight")[0]


def test_the_answer_of_the_row_that_is_asked_first_makes_no_rate(desk: Desk) -> None:
    desk.backend(preflight=True)
    job = desk.submit(plain(MANY))
    desk.settle(job)

    def told() -> tuple[status.JobDetail, str]:
        found = status.detail(desk.store, desk.store.jobs.get(job.id), now(), lambda shard: Decimal(0))
        return found, "\n".join("".join(part.text for part in line) for line in job_detail(found, 80))

    found, shown = told()
    assert (found.line.done, found.done_in_batches, found.line.eta_seconds) == (1, 0, None)
    assert "no rate yet" in shown
    desk.finish(job)
    found, _ = told()
    assert (found.line.done, found.done_in_batches) == (MANY, MANY - 1)


def test_a_batch_waits_for_the_row_that_is_asked_first(desk: Desk) -> None:
    desk.backend(preflight=True)
    job = desk.submit(plain(MANY))
    desk.step(job)
    desk.step(job)
    first, batch = desk.detail(job)["shards"]
    assert (first["state"], batch["state"]) == ("ended", "pending")
    assert batch["held"] == f"waits for {first['shard']}, a row that is asked first"
    assert desk.batches() == []
    desk.step(job)
    assert desk.detail(job)["shards"][1]["state"] == "submitted"


@pytest.mark.parametrize("count", [1, MANY - 1])
def test_few_rows_are_their_own_preflight(desk: Desk, count: int) -> None:
    desk.backend(preflight=True)
    job = desk.run(plain(count))
    assert asked(desk) == {}
    assert len(desk.detail(job)["shards"]) == 1


@pytest.mark.long
@pytest.mark.thinned(2)
def test_what_was_answered_once_is_not_asked_first_again(desk: Desk, name: str) -> None:
    desk.backend(name, preflight=True)
    desk.run(plain(3))
    assert asked(desk) == {}
    job = desk.run([row(f"s{number}") for number in range(MANY)])
    assert asked(desk) == {}
    assert len(desk.batches()) == 2
    desk.start_anew()
    desk.run([row(f"t{number}") for number in range(MANY)])
    assert asked(desk) == {}
    all_succeeded(desk, job, MANY)


@pytest.mark.long
def test_other_fields_another_model_and_another_kind_of_schema_are_asked_first(desk: Desk) -> None:
    desk.backend(preflight=True)
    desk.run(plain(MANY))
    assert asked(desk) == {200: 1}
    desk.run([row(f"a{number}", seed=1) for number in range(MANY)])
    assert asked(desk) == {200: 2}
    kind = {"type": "json_object"}
    desk.run([row(f"json-{number}", response_format=kind) for number in range(MANY)])
    assert asked(desk) == {200: 3}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    desk.run([row(f"c{number}", response_format=schema) for number in range(MANY)])
    assert asked(desk) == {200: 4}
    desk.run([row(f"d{number}", response_format=schema, seed=2) for number in range(MANY)])
    assert asked(desk) == {200: 5}


@pytest.mark.long
def test_each_set_of_fields_of_a_job_is_asked_first(desk: Desk) -> None:
    desk.backend(preflight=True)
    tasks = [{"id": "a"}, {"id": "b", "schema": SCHEMA}, {"id": "c", "temperature": 0.5}, {"id": "d"}]
    job = desk.run(job_file(desk, 10, tasks))
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [1, 1, 1, 37]
    assert asked(desk) == {200: 3}
    first = [found for found in desk.store.rows.finished(job.id) if found.batch_id is None]
    assert {found.document for found in first} == {"documents/000.txt"}
    assert desk.cost(job) == paid(desk)


MODELS = {"m": MODEL, "e": "text-embedding-3-small"}
AT_OTHER_ENDPOINTS: dict[str, tuple[dict[str, Any], str]] = {
    "responses": ({"endpoint": "responses"}, "/v1/responses"),
    "embeddings": (
        {"kind": "embedding", "prompt": None, "max_tokens": None, "model": "e"},
        "/v1/embeddings",
    ),
}


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("task", "endpoint"), AT_OTHER_ENDPOINTS.values(), ids=AT_OTHER_ENDPOINTS.keys())
def test_a_row_is_asked_first_at_its_own_endpoint(desk: Desk, task: dict[str, Any], endpoint: str) -> None:
    desk.backend(preflight=True)
    job = desk.run(job_file(desk, MANY, [{"id": "a", **task}], models=MODELS))
    first, batch = desk.detail(job)["shards"]
    assert (first["rows"], batch["rows"]) == (1, MANY - 1)
    assert {shard.endpoint for shard in desk.store.shards.of_job(job.id)} == {endpoint}
    assert asked(desk) == {200: 1}
    all_succeeded(desk, job)
    # What an embedding costs stands in another list; a synchronous row costs what two of a batch do.
    assert desk.cost(job) > 0 == uncertain(desk, job)
    assert endpoint != "/v1/responses" or desk.cost(job) == paid(desk)
    refused = desk.submit(job_file(desk, MANY, [{"id": "b", **task, "extra": {"no_such_field": 1}}], models=MODELS))
    desk.settle(refused)
    assert Counter(desk.ends(refused).values()) == {"pending": MANY}
    assert asked(desk) == {200: 1, 400: 1}, "one row was refused, and no batch was paid for"


def test_each_set_of_fields_of_a_batch_file_is_asked_first(desk: Desk) -> None:
    desk.backend(preflight=True)
    lines = [row(f"r{number}", **({"seed": number} if number % 3 == 0 else {})) for number in range(MANY)]
    job = desk.run(lines)
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [1, 1, MANY - 2]
    all_succeeded(desk, job)


@pytest.mark.long
def test_a_home_of_an_earlier_version_is_not_asked_again(desk: Desk) -> None:
    desk.backend(preflight=True)
    desk.run(job_file(desk, 30, [{"id": "a", "schema": SCHEMA}]))
    forget_proofs(desk)
    before = asked(desk)
    desk.run(job_file(desk, 60, [{"id": "a", "schema": SCHEMA}]))
    assert asked(desk) == before
    forget_proofs(desk)
    desk.run(job_file(desk, 60, [{"id": "b", "temperature": 0.1}]))
    assert asked(desk) == {200: before[200] + 1}


def forget_proofs(desk: Desk) -> None:
    """As a version that recorded none has left the home."""
    from sqlalchemy import delete

    from orchestrator.store.learned_tables import proven_requests

    with desk.store._database.write() as tx:
        tx.execute(delete(proven_requests))


# --- turned off, and not there


def test_orch_toml_turns_it_off(desk: Desk) -> None:
    desk.backend(preflight=False)
    desk.run(plain(MANY))
    assert asked(desk) == {}


def test_the_job_file_turns_it_off(desk: Desk) -> None:
    desk.backend(preflight=True)
    path = job_file(desk, MANY, [{"id": "a"}])
    path.write_text(path.read_text(encoding="utf-8").removesuffix("}") + ', "preflight": off}', encoding="utf-8")
    desk.run(path)
    assert asked(desk) == {}


def test_azure_is_never_asked(desk: Desk) -> None:
    desk.backend("azure", preflight=True)
    desk.run(plain(MANY))
    assert asked(desk) == {}


# --- the row that is refused

FIELD = "Unsupported parameter: 'temperature' is not supported with this model."
RENAMED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "refusal",
    [
        {"status": 400, "message": FIELD},
        {"status": 422, "message": "temperature: Extra inputs are not permitted"},
        {"status": 400, "message": "max_tokens: 50 is below the minimum of this model"},
    ],
)
def test_a_refused_field_holds_every_row_back(desk: Desk, name: str, refusal: dict[str, Any]) -> None:
    desk.backend(name, preflight=True)
    desk.provider.script({"do": "status", "match": {"verb": "chat"}, "times": None, **refusal})
    path = desk.written(jsonl(plain(MANY, **WARM)))
    job = desk.submit(path)
    desk.settle(job)
    for _ in range(3):
        desk.later(60, job)
    assert desk.batches() == []
    assert list(asked(desk).values()) == [1]
    assert not desk.is_over(job)
    assert refusal["message"] in desk.said[-1]
    assert any(refusal["message"] in held for held in desk.events(job, "held"))
    counts = desk.store.jobs.counts([job.id])[job.id]
    assert (counts.pending, counts.total) == (MANY, MANY)
    assert desk.cost(job) == 0

    desk.provider.clear()
    desk.start_anew()
    assert desk.submit(path).id == job.id
    desk.finish(job)
    assert [batch["rows"] for batch in desk.batches()] == [MANY - 1]
    all_succeeded(desk, job)
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == paid(desk)


def test_at_the_deadline_rows_that_are_held_back_fail_in_the_provider_s_words(desk: Desk) -> None:
    desk.backend(preflight=True)
    desk.provider.script({"do": "status", "match": {"verb": "chat"}, "times": None, "status": 400, "message": FIELD})
    desk.provider.script({"do": "status", "match": {"verb": "upload"}, "times": None, "status": 503})
    job = desk.submit(plain(MANY, **WARM), deadline="26h")
    desk.settle(job)
    desk.later(27 * HOUR, job)
    desk.finish(job)
    assert desk.batches() == []
    assert set(desk.ends(job).values()) == {"failed: invalid_value"}
    assert {found["error"]["message"] for found in desk.rows(job).values()} == {f"{FIELD} (400)"}


@pytest.mark.long
def test_only_the_tasks_with_the_refused_fields_are_held_back(desk: Desk) -> None:
    desk.backend(preflight=True)
    fault = {"do": "status", "match": {"verb": "chat", "nth": 2}, "times": 1, "status": 400, "message": FIELD}
    desk.provider.script(fault)
    tasks = [{"id": "a"}, {"id": "b"}, {"id": "c", "temperature": 0.5}, {"id": "d", "temperature": 0.7}]
    job = desk.submit(job_file(desk, 20, tasks))
    desk.settle(job)
    assert {hold.task for hold in desk.store.holds.of(job.id)} in ({"a", "b"}, {"c", "d"})
    sent = [shard for shard in desk.detail(job)["shards"] if shard["state"] == "submitted"]
    assert [shard["rows"] for shard in sent] == [39]


@pytest.mark.long
def test_what_is_mended_meanwhile_goes_out_by_itself(desk: Desk) -> None:
    desk.backend(preflight=True)
    desk.provider.script({"do": "status", "match": {"verb": "chat"}, "times": 1, "status": 400, "message": FIELD})
    job = desk.submit(plain(MANY, **WARM))
    desk.settle(job)
    assert desk.batches() == []
    desk.finish(job)
    all_succeeded(desk, job)


@pytest.mark.long
def test_a_refusal_that_teaches_another_spelling_is_asked_again_in_that(desk: Desk) -> None:
    desk.backend(preflight=True)
    desk.provider.script({"do": "status", "match": {"verb": "chat"}, "times": 1, "status": 400, "message": RENAMED})
    job = desk.run(job_file(desk, MANY, [{"id": "a"}]))
    assert asked(desk) == {200: 1, 400: 1}
    fields = [shard["preflight"] for shard in desk.detail(job)["shards"] if shard["preflight"]]
    assert fields == ["max_tokens messages model", "max_completion_tokens messages model"]
    all_succeeded(desk, job)
    assert desk.said == []
    assert desk.cost(job) == paid(desk)


@pytest.mark.long
def test_a_refused_row_goes_elsewhere_where_it_may(desk: Desk) -> None:
    desk.backends({"openai": {"preflight": True}, "claude": {"preflight": True}})
    fault = {"do": "status", "match": {"verb": "chat", "flavour": "openai"}, "times": None, "status": 400}
    desk.provider.script({**fault, "message": FIELD})
    job = desk.run(plain(MANY, **WARM))
    all_succeeded(desk, job)
    assert {batch["flavour"] for batch in desk.batches()} == {"anthropic"}


def test_a_model_that_is_not_in_the_list_holds_every_row_back(desk: Desk, name: str) -> None:
    desk.backend(name, preflight=True)
    desk.provider.settings(models=["another"])
    job = desk.submit(plain(MANY, **WARM))
    desk.settle(job)
    assert desk.batches() == []
    assert list(asked(desk)) == [404]
    assert f"{MODEL}" in desk.said[-1]
    assert desk.store.jobs.counts([job.id])[job.id].pending == MANY


# --- the row that says nothing


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "refusal",
    [
        {"status": 401},
        {"status": 403},
        {"status": 403, "message": FIELD},
        {"status": 404, "message": f"The model `{MODEL}` does not exist or you do not have access to it."},
        {"status": 404, "message": "Not found"},
        {"status": 400, "message": "This model's maximum context length is 12 tokens."},
        {"status": 429},
        {"status": 500, "message": FIELD},
        {"status": 503, "message": FIELD},
    ],
)
def test_what_is_not_about_the_requests_lets_the_batch_go(desk: Desk, name: str, refusal: dict[str, Any]) -> None:
    desk.backend(name, preflight=True)
    desk.provider.settings(models=[MODEL])
    desk.provider.script({"do": "status", "match": {"verb": "chat"}, "times": None, **refusal})
    job = desk.run(plain(MANY, **WARM))
    assert list(asked(desk).values()) == [1]
    assert [batch["rows"] for batch in desk.batches()] == [MANY]
    all_succeeded(desk, job)
    assert set(desk.attempts(job).values()) == {1}
    assert desk.cost(job) == paid(desk)
    assert uncertain(desk, job) == 0


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("fault", "billed"), [("reset_after", 1), ("cut_body", 1), ("reset_before", 0), ("json_null", 1)]
)
def test_an_answer_that_is_lost_is_uncertain_and_its_row_goes_on_in_the_batch(
    desk: Desk, name: str, fault: str, billed: int
) -> None:
    desk.backend(name, preflight=True)
    script(desk, fault, verb="chat")
    job = desk.run(plain(MANY, **WARM))
    assert [batch["rows"] for batch in desk.batches()] == [MANY]
    assert Counter(desk.ends(job).values()) == {"succeeded": MANY}
    assert uncertain(desk, job) > 0
    assert set(desk.attempts(job).values()) == {1}
    twice = [count for count in desk.provider.bill(rows=True)["asked"].values() if count > 1]
    assert twice == [2] * billed
    assert desk.cost(job) >= paid(desk)


def test_an_answer_that_fails_its_check_is_an_answer(desk: Desk) -> None:
    desk.backend(preflight=True)
    fault = {"do": "rows", "match": {"verb": "chat"}, "times": 1, "row": "length", "share": 1.0}
    desk.provider.script(fault)
    job = desk.run(job_file(desk, MANY, [{"id": "a", "schema": SCHEMA}]))
    assert Counter(desk.ends(job).values()) == {"succeeded": MANY - 1, "failed: truncated": 1}
    assert desk.cost(job) == paid(desk)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("odd", ["finish_abort", "choice_error", "worker_in_detail"])
def test_a_200_that_is_no_answer_is_booked_and_lets_the_batch_go(desk: Desk, odd: str) -> None:
    desk.backend(preflight=True)
    desk.provider.script({"do": "rows", "match": {"verb": "chat"}, "times": 1, "row": odd, "share": 1.0})
    job = desk.run(plain(MANY, **WARM))
    assert list(asked(desk).values()) == [1]
    assert Counter(desk.ends(job).values()) == {"succeeded": MANY}
    if odd != "worker_in_detail":
        assert desk.cost(job) >= paid(desk), "what the answer cost is booked"


def test_a_200_that_refuses_a_field_holds_every_row_back(desk: Desk) -> None:
    desk.backend(preflight=True)
    desk.provider.script({"do": "rows", "match": {"verb": "chat"}, "row": "stop_in_detail", "share": 1.0})
    job = desk.submit(plain(MANY, stop=["."]))
    for _ in range(6):
        desk.later(60, job)
    assert desk.batches() == []
    assert [hold.message for hold in desk.store.holds.of(job.id)] == ["stop: field not allowed (400)"]
    assert desk.store.jobs.counts([job.id])[job.id].pending == MANY


# --- kills


class Points:
    """The points that a job passes, at one of which it is killed: transactions, and the call that asks a row."""

    def __init__(self, desk: Desk, nth: int | None = None) -> None:
        self._desk = desk
        self._nth = nth
        self.names: list[str] = []

    def pass_by(self, point: str) -> None:
        self.names.append(point)
        if len(self.names) == self._nth:
            raise Killed

    @contextmanager
    def open(self) -> Iterator[None]:
        """While this is open, the store and the call to the provider pass the points."""
        database, ask = self._desk.store._database, ApiBatches.ask
        plain_write = database.write

        @contextmanager
        def write() -> Iterator[Any]:
            self.pass_by("before a transaction")
            with plain_write() as tx:
                yield tx
                self.pass_by("before a commit")
            self.pass_by("after a commit")

        def asks(api: ApiBatches, endpoint: str, line: bytes) -> Any:
            self.pass_by("before ask")
            found = ask(api, endpoint, line)
            self.pass_by("after ask")
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "write", write)
            patch.setattr(ApiBatches, "ask", asks)
            yield


def run_with_a_kill(desk: Desk, nth: int | None) -> tuple[Job, Points]:
    """A job that is killed at a point, and goes on in another process."""
    desk.backend(preflight=True)
    job, points = desk.submit(plain(MANY, **WARM)), Points(desk, nth)
    with points.open(), suppress(Killed):
        desk.settle(job)
    desk.start_anew()
    desk.finish(job)
    return job, points


def is_right(desk: Desk, job: Job) -> int:
    """Whatever happened, rows and money are right; how often a row was paid twice."""
    assert Counter(desk.ends(job).values()) == {"succeeded": MANY}
    twice = [count for count in desk.provider.bill(rows=True)["asked"].values() if count > 1]
    assert twice in ([], [2])
    doubt = uncertain(desk, job)
    assert doubt > 0 if twice else True
    assert paid(desk) <= desk.cost(job) <= paid(desk) + doubt
    assert desk.inputs(job) == []
    return len(twice)


@pytest.fixture(params=["sqlite", "postgres"])
def either(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], AbstractContextManager[Desk]]:
    """Makes homes on each database, one after the other."""

    @contextmanager
    def make(number: int) -> Iterator[Desk]:
        folder = tmp_path / str(number)
        folder.mkdir()
        if request.param == "sqlite":
            with desk_of(emulator, folder, monkeypatch) as desk:
                yield desk
            return
        database = request.getfixturevalue("migrated_databases").one()
        with database as url, desk_of(emulator, folder, monkeypatch, url) as desk:
            yield desk

    return make


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_kill_at_any_point_pays_no_row_twice_but_the_one_that_was_being_asked(
    either: Callable[[int], AbstractContextManager[Desk]],
) -> None:
    with either(0) as desk:
        job, whole = run_with_a_kill(desk, None)
        assert is_right(desk, job) == 0
        assert desk.cost(job) == paid(desk)
    asks = [whole.names.index(name) + 1 for name in ("before ask", "after ask")]
    others = random.Random(7).sample([nth for nth in range(1, asks[1] + 14) if nth not in asks], 4)
    twice = {}
    for nth in (*asks, *others):
        with either(nth) as desk:
            job, points = run_with_a_kill(desk, nth)
            assert len(points.names) == nth, "nothing was killed"
            twice[nth] = is_right(desk, job)
    assert twice[asks[1]] == 1, "the answer that was lost was paid"
    assert twice[asks[0]] == 0


# --- stops


def test_a_cancelled_job_asks_no_row_first(desk: Desk) -> None:
    desk.backend(preflight=True)
    job = desk.submit(plain(MANY, **WARM))
    desk.step(job)
    desk.cancel(job)
    desk.later(DAY, job)
    assert asked(desk) == {}
    assert set(desk.ends(job).values()) == {"cancelled: cancelled"}
