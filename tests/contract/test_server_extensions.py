"""What the server gives beyond OpenAI's Batch API: retry, merged results, partial results, events of progress."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Batch

from orchestrator.server.in_process import ServerThread
from orchestrator.server.ordered_results import INDEX_NAME
from orchestrator.server.settings import Settings
from tests.contract.conftest import Served
from tests.support.batchapi import CHAT, OPEN, Ended, Sdk, create, ended, jsonl, retrieve, row, run_batch, sdk_at
from tests.support.clock import HeldClock
from tests.support.process import Upstream, wait_until

BAD = "[[fault:status:400]]"
HANGS = "[[fault:hang]]"


def retry(sdk: Sdk, batch_id: str, **body: Any) -> Any:
    return sdk(lambda api: api.post(f"/batches/{batch_id}/retry", cast_to=Batch, body=body or None))


def refused_retry(sdk: Sdk, batch_id: str, body: Any = None) -> openai.APIStatusError:
    return sdk.refused(lambda api: api.post(f"/batches/{batch_id}/retry", cast_to=Batch, body=body))


def results(sdk: Sdk, batch_id: str, **query: Any) -> dict[str, Any]:
    answer = sdk.raw.get(f"/v1/batches/{batch_id}/results", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
    ids = [line["custom_id"] for line in page["data"]]
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    return page


def all_results(sdk: Sdk, batch_id: str) -> list[dict[str, Any]]:
    answer = sdk.raw.get(f"/v1/batches/{batch_id}/results.jsonl")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.content.splitlines()]


def ids_of(rows: list[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in rows]


def events(lines: Iterator[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, name and data of each event of a stream."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


@pytest.fixture
def once() -> str:
    """A text that no other test sends: the upstream counts the tries of a body."""
    return uuid.uuid4().hex


class TestRetry:
    @pytest.mark.slow
    def test_rows_that_failed_are_a_batch_of_their_own(self, sdk: Sdk, once: str) -> None:
        lines = [
            row("a"),
            row("ü no", f"{once}[[fault:status:400:1]]"),
            row("b"),
            row("cut", f"{once}[[fault:cut:4]]"),
            row("still bad", BAD, temperature=0.25),
        ]
        old = run_batch(sdk, lines, window="7d", metadata={"name": "night"}, extra_body={"include_provenance": True})
        old.check([line["custom_id"] for line in lines])
        assert set(ids_of(old.errors)) == {"ü no", "cut", "still bad"}
        new = retry(sdk, old.batch.id)
        assert new.status == "validating"
        assert (new.endpoint, new.completion_window, new.metadata) == (CHAT, "7d", {"name": "night"})
        assert new.id != old.batch.id
        end = ended(sdk, new.id)
        end.check(["ü no", "cut", "still bad"])
        assert set(ids_of(end.output)) == {"ü no", "cut"}
        assert all("orch" in line for line in end.output)
        # The rows are the input's own, byte for byte and in its order.
        content = sdk(lambda api: api.files.content(new.input_file_id)).content
        assert content == jsonl([lines[1], lines[3], lines[4]])
        file = sdk(lambda api: api.files.retrieve(new.input_file_id))
        assert (file.purpose, file.bytes) == ("batch", len(content))
        assert file.filename == f"{old.batch.id}_retry.jsonl"
        assert file.expires_at == file.created_at + 30 * 86_400
        # The old batch is as it was.
        assert retrieve(sdk, old.batch.id) == old.batch
        # What still fails can be tried again and again.
        third = ended(sdk, retry(sdk, new.id).id)
        third.check(["still bad"])

    def test_only_rows_of_one_cause(self, sdk: Sdk, once: str) -> None:
        lines = [row("a"), row("bad", f"{once}[[fault:status:400:1]]"), row("late", once + HANGS)]
        batch = create(sdk, lines)
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.failed == 1)
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
        sdk(lambda api: api.batches.cancel(batch.id))
        assert ended(sdk, batch.id).batch.status == "cancelled"
        assert refused_retry(sdk, batch.id, {"only": ["expired"]}).status_code == 400
        end = ended(sdk, retry(sdk, batch.id, only=["failed", "expired"]).id)
        end.check(["bad"])
        assert end.batch.status == "completed"
        new = retry(sdk, batch.id, only=["cancelled"])
        assert ids_of_input(sdk, new) == ["late"]
        sdk(lambda api: api.batches.cancel(new.id))
        ended(sdk, new.id)

    def test_what_cannot_be_retried(self, sdk: Sdk) -> None:
        good = run_batch(sdk, [row("a")]).batch
        error = refused_retry(sdk, good.id)
        assert (error.status_code, error.code) == (400, None)
        assert "nothing to retry" in error.message
        running = create(sdk, [row("a", HANGS)])
        error = refused_retry(sdk, running.id)
        assert error.status_code == 409
        # The SDK tries a 409 again, unless it is told that this helps nobody.
        assert error.response.headers["x-should-retry"] == "false"
        sdk(lambda api: api.batches.cancel(running.id))
        invalid = run_batch(sdk, [row("a"), row("a")]).batch
        error = refused_retry(sdk, invalid.id)
        assert error.status_code == 409
        assert "input is not valid" in error.message
        assert refused_retry(sdk, "batch_no").status_code == 404

    @pytest.mark.parametrize("which", ["input_file_id", "error_file_id"])
    def test_files_that_are_gone(self, sdk: Sdk, which: str) -> None:
        old = run_batch(sdk, [row("bad", BAD)]).batch
        sdk(lambda api: api.files.delete(getattr(old, which)))
        error = refused_retry(sdk, old.id)
        assert error.status_code == 409
        assert getattr(old, which) in error.message
        assert error.response.headers["x-should-retry"] == "false"

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"only": []}, "only"),
            ({"only": "failed"}, "only"),
            ({"only": ["succeeded"]}, "only"),
            ({"only": [["failed"]]}, "only"),
            ({"completion_window": "soon"}, "completion_window"),
            ({"completion_window": 24}, "completion_window"),
            ({"completion_window": None}, "completion_window"),
            (["failed"], None),
        ],
    )
    def test_bodies_that_cannot_be_meant(self, sdk: Sdk, served: Served, body: Any, param: str | None) -> None:
        old = run_batch(sdk, [row("bad", BAD)]).batch
        before = sorted((served.folder / "files").iterdir())
        error = refused_retry(sdk, old.id, body)
        assert (error.status_code, error.param) == (400, param)
        assert sorted((served.folder / "files").iterdir()) == before, "a refused retry left a file"


def test_expired_rows_get_another_window(tmp_path: Path, upstream: Upstream, held_clock: HeldClock) -> None:
    # A server that sends no row lets every batch expire.
    for dispatch in (False, True):
        settings = Settings(upstreams=(upstream.base_url,), dispatch=dispatch)
        with ServerThread(tmp_path / "s", settings) as server, sdk_at(server.socket) as sdk:
            if not dispatch:
                begun = create(sdk, [row("a"), row("b")], "1s")
                held_clock.move(seconds=2)
                old = ended(sdk, begun.id)
                assert old.batch.status == "expired"
                continue
            new = retry(sdk, old.batch.id, completion_window="2h", only=["expired"])
            assert new.completion_window == "2h"
            assert new.expires_at == new.created_at + 7200
            end = ended(sdk, new.id)
            end.check(["a", "b"])
            assert len(end.output) == 2


def ids_of_input(sdk: Sdk, batch: Any) -> list[str]:
    content = sdk(lambda api: api.files.content(batch.input_file_id)).content
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


@pytest.fixture(scope="module")
def mixed(sdk: Sdk) -> tuple[Ended, list[str]]:
    """A finished batch whose rows ended in another order than they stand in, in both files."""
    lines = [row("slow", f"[[fault:slow:300]]{uuid.uuid4()}")]
    lines += [row(f"r {n}", BAD if n % 4 == 0 else None) for n in range(40)]
    end = run_batch(sdk, lines)
    ids = [line["custom_id"] for line in lines]
    end.check(ids)
    assert ids_of(end.output)[0] != "slow", "the files are in the order of the input already"
    return end, ids


class TestMergedResults:
    @pytest.mark.parametrize("limit", [1, 7, 41, 1000])
    def test_pages_in_the_order_of_the_input(self, sdk: Sdk, mixed: tuple[Ended, list[str]], limit: int) -> None:
        end, ids = mixed
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": limit}
        while True:
            page = results(sdk, end.batch.id, **query)
            assert len(page["data"]) == min(limit, 41 - len(found))
            found += page["data"]
            query["after"] = page["last_id"]
            if not page["has_more"]:
                break
        assert ids_of(found) == ids
        assert found == [end.by_id[custom_id] for custom_id in ids]
        assert results(sdk, end.batch.id, after=ids[-1])["data"] == []

    def test_all_of_it_as_lines(self, sdk: Sdk, mixed: tuple[Ended, list[str]]) -> None:
        end, ids = mixed
        assert all_results(sdk, end.batch.id) == [end.by_id[custom_id] for custom_id in ids]

    def test_a_hundred_rows_are_a_page(self, sdk: Sdk) -> None:
        ids = [f"r{number}" for number in range(120)]
        end = run_batch(sdk, [row(custom_id) for custom_id in ids])
        page = results(sdk, end.batch.id)
        assert ids_of(page["data"]) == ids[:100]
        assert page["has_more"] is True

    def test_a_running_batch_gives_what_is_done(self, sdk: Sdk, served: Served, once: str) -> None:
        lines = [row("z", once + HANGS), row("b"), row("late", f"{once}[[fault:slow:500]]"), row("bad", BAD)]
        batch = create(sdk, lines)
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed >= 1)
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.failed == 1)
        seen = results(sdk, batch.id, limit=1)
        assert (ids_of(seen["data"]), seen["has_more"]) == (["b"], True)
        assert {"b", "bad"} <= set(ids_of(all_results(sdk, batch.id))) <= {"b", "late", "bad"}
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 2)
        assert ids_of(all_results(sdk, batch.id)) == ["b", "late", "bad"]
        # A row without a result is a place to go on from all the same.
        assert ids_of(results(sdk, batch.id, after="z", limit=2)["data"]) == ["b", "late"]
        sdk(lambda api: api.batches.cancel(batch.id))
        end = ended(sdk, batch.id)
        assert all_results(sdk, batch.id) == [end.by_id[custom_id] for custom_id in ("z", "b", "late", "bad")]

    def test_the_index_may_be_lost(self, sdk: Sdk, served: Served, mixed: tuple[Ended, list[str]]) -> None:
        end, ids = mixed
        path = served.folder / "batches" / end.batch.id / INDEX_NAME
        for harm in (lambda: path.unlink(), lambda: path.write_bytes(b"garbage" * 10_000)):
            assert ids_of(all_results(sdk, end.batch.id)) == ids
            harm()
            assert ids_of(all_results(sdk, end.batch.id)) == ids

    def test_a_batch_without_results(self, sdk: Sdk) -> None:
        batch = run_batch(sdk, [row("a"), row("a")]).batch
        assert batch.status == "failed"
        assert results(sdk, batch.id)["data"] == []
        assert all_results(sdk, batch.id) == []

    @pytest.mark.parametrize(
        ("query", "param"), [("after=nobody", "after"), ("limit=0", "limit"), ("limit=1001", "limit")]
    )
    def test_queries_that_cannot_be_meant(self, sdk: Sdk, query: str, param: str) -> None:
        batch = run_batch(sdk, [row("a")]).batch
        answer = sdk.raw.get(f"/v1/batches/{batch.id}/results?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    def test_files_that_are_gone(self, sdk: Sdk) -> None:
        known, unknown = (run_batch(sdk, [row("b"), row("a", BAD)]).batch for _ in range(2))
        assert ids_of(results(sdk, known.id)["data"]) == ["b", "a"]
        for batch in (known, unknown):
            sdk(lambda api, batch=batch: api.files.delete(batch.input_file_id))
        # Who asked before the input went has its order; otherwise nobody knows it any more.
        assert ids_of(results(sdk, known.id)["data"]) == ["b", "a"]
        for path in ("results", "results.jsonl"):
            answer = sdk.raw.get(f"/v1/batches/{unknown.id}/{path}")
            assert answer.status_code == 409
            assert unknown.input_file_id in answer.json()["error"]["message"]
        sdk(lambda api: api.files.delete(known.error_file_id))
        assert sdk.raw.get(f"/v1/batches/{known.id}/results").status_code == 404
        assert sdk.raw.get(f"/v1/batches/{known.id}/error").status_code == 404
        assert sdk.raw.get(f"/v1/batches/{known.id}/output").status_code == 200

    def test_unknown_batches(self, sdk: Sdk) -> None:
        for path in ("results", "results.jsonl", "events", "output"):
            answer = sdk.raw.get(f"/v1/batches/batch_no/{path}")
            assert answer.status_code == 404
            assert answer.json()["error"]["type"] == "invalid_request_error"


class TestPartialResults:
    def part(self, sdk: Sdk, batch_id: str, wanted: str) -> httpx2.Response:
        return sdk.raw.get(f"/v1/batches/{batch_id}/output", headers={"range": wanted})

    @pytest.mark.slow
    def test_ranges_while_a_batch_runs_and_afterwards(self, sdk: Sdk, once: str) -> None:
        batch = create(sdk, [row("a"), row("b"), row("late", f"{once}[[fault:slow:600]]"), row("z", once + HANGS)])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed >= 2)
        first = sdk.raw.get(f"/v1/batches/{batch.id}/output")
        assert first.status_code == 200
        assert int(first.headers["content-length"]) == len(first.content)
        assert first.content.endswith(b"\n")
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 3)
        # What is new since then, and only that.
        whole = sdk.raw.get(f"/v1/batches/{batch.id}/output").content
        size = len(whole)
        assert whole.startswith(first.content)
        for wanted, start, end in (
            (f"bytes={len(first.content)}-", len(first.content), size),
            ("bytes=10-19", 10, 20),
            ("bytes=5-99999999", 5, size),
            ("bytes=-7", size - 7, size),
            ("bytes=-99999999", 0, size),
        ):
            if start < end:
                answer = self.part(sdk, batch.id, wanted)
                assert (answer.status_code, answer.content) == (206, whole[start:end])
                assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        for wanted in (f"bytes={size}-", "bytes=-0"):
            answer = self.part(sdk, batch.id, wanted)
            assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}")
        for wanted in ("bytes=-", "bytes=9-3", "rows=1-2", "bytes=0-1,4-5", "bytes=x-"):
            assert self.part(sdk, batch.id, wanted).content == whole
        sdk(lambda api: api.batches.cancel(batch.id))
        end = ended(sdk, batch.id).batch
        assert sdk(lambda api: api.files.content(end.output_file_id)).content == whole
        assert self.part(sdk, batch.id, "bytes=3-8").content == whole[3:9]

    def test_what_is_not_durable_is_not_shown(self, sdk: Sdk, served: Served) -> None:
        batch = create(sdk, [row("a"), row("z", HANGS)])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed == 1)
        whole = sdk.raw.get(f"/v1/batches/{batch.id}/output").content
        with (served.folder / "batches" / batch.id / "output.jsonl").open("ab") as file:
            file.write(b'{"id":"batch_req_1","custom_id":"z","response":null,"error":null}\n')
        assert sdk.raw.get(f"/v1/batches/{batch.id}/output").content == whole
        assert self.part(sdk, batch.id, "bytes=-4").content == whole[-4:]
        assert all_results(sdk, batch.id) == [json.loads(whole)]
        sdk(lambda api: api.batches.cancel(batch.id))


class TestEvents:
    def test_progress_until_the_end(self, sdk: Sdk) -> None:
        batch = create(sdk, [row("a"), row("bad", BAD), row("z", HANGS)])
        states = []
        with sdk.raw.stream("GET", f"/v1/batches/{batch.id}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for number, name, data in events(stream.iter_lines()):
                states.append((data["status"], tuple(data["request_counts"].values())))
                assert (number, name) == (len(states), f"batch.{data['status']}")
                if states[-1] == ("in_progress", (3, 1, 1)):
                    sdk(lambda api: api.batches.cancel(batch.id))
                last = data
        assert len(set(states)) == len(states), "an event without a change"
        assert ("in_progress", (3, 1, 1)) in states
        assert states[-1] == ("cancelled", (3, 1, 2))
        # The data is the batch, whole.
        assert last == sdk.raw.get(f"/v1/batches/{batch.id}").json()

    def test_a_batch_at_its_end_is_one_event(self, sdk: Sdk) -> None:
        batch = run_batch(sdk, [row("a")]).batch
        answer = sdk.raw.get(f"/v1/batches/{batch.id}/events", headers={"last-event-id": "17"})
        ((number, name, data),) = events(iter([*answer.text.splitlines(), ""]))
        assert (number, name, data["id"]) == (18, "batch.completed", batch.id)
        for odd in ("x", "-1", "9" * 30):
            answer = sdk.raw.get(f"/v1/batches/{batch.id}/events", headers={"last-event-id": odd})
            assert answer.text.startswith("id: 1\n")

    def test_the_head_of_a_stream_has_an_end(self, sdk: Sdk) -> None:
        batch = create(sdk, [row("z", HANGS)])
        answer = sdk.raw.head(f"/v1/batches/{batch.id}/events")
        assert (answer.status_code, answer.content) == (200, b"")
        sdk(lambda api: api.batches.cancel(batch.id))

    def test_a_listener_who_leaves_is_not_waited_for(self, sdk: Sdk) -> None:
        batch = create(sdk, [row("z", HANGS)])
        with sdk.raw.stream("GET", f"/v1/batches/{batch.id}/events") as stream:
            assert next(events(stream.iter_lines()))[2]["id"] == batch.id
        assert retrieve(sdk, batch.id).status in OPEN
        sdk(lambda api: api.batches.cancel(batch.id))
        assert ended(sdk, batch.id).batch.status == "cancelled"


@pytest.mark.long
def test_a_server_that_ends_lets_its_listeners_go(tmp_path: Path, upstream: Upstream) -> None:
    """A stream that the server's end cuts off instead is an error at its reader: half an answer."""
    settings = Settings(upstreams=(upstream.base_url,))
    with ServerThread(tmp_path / "s", settings) as server, sdk_at(server.socket) as sdk:
        batch = create(sdk, [row("z", HANGS)])
        with sdk.raw.stream("GET", f"/v1/batches/{batch.id}/events") as stream:
            found = events(stream.iter_lines())
            assert next(found)[2]["id"] == batch.id
            server.__exit__(None, None, None)
            assert all(data["status"] in OPEN for _, _, data in found)
