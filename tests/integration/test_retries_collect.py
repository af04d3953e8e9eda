"""Bad answers that go back to their model, at a collect that is cut off and done again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.core.errors import JobFilesError
from orchestrator.core.model import CancelCode, Span
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.collect import settling
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import RungStanding, Step
from orchestrator.store import Store
from tests.support.handles import handle
from tests.support.stored import NOW, job, ranges, row, shard

ROWS = 4
PER_ROW = Decimal("0.001")
UP = RungStanding(step=Step("m@2", ("big",), None))
ANSWERS = {
    "good": ("{}", "stop"),
    "schema_mismatch": ("[]", "stop"),
    "truncated": ('{"a', "length"),
    "content_filter": ('{"a', "content_filter"),
}


class Desk:
    """A job of four rows with their lines, whose batches are collected by hand."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.store, self.home = store, Home(folder)
        self.job = job()
        store.jobs.add(self.job, {})
        path, rows = self.home.requests(self.job.id), []
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            for seq in range(ROWS):
                body = {"model": "m", "messages": [{"role": "user", "content": f"Q{seq}"}]}
                line = json.dumps({"custom_id": f"r{seq}", "method": "POST", "url": "/v1", "body": body}).encode()
                rows.append(row(seq, span=Span(file.tell(), len(line))))
                file.write(line + b"\n")
        store.rows.add(self.job.id, rows, {}, NOW)

    def sent(self, number: int = 1) -> Shard:
        """The batch of all rows that wait, over."""
        [found] = ranges(self.store, self.job)
        new = shard(self.job, number, rows=found.rows, model=found.model)
        self.store.shards.add(new, found)
        for state in (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED):
            self.store.shards.move(self.store.shards.get(new.id), state)
        return replace(self.store.shards.get(new.id), provider_status="completed")

    def collect(self, of: Shard, kinds: dict[int, str], *, retries: int = 1, standing: RungStanding = UP) -> str:
        lines = []
        for seq, kind in kinds.items():
            text, finish = ANSWERS[kind]
            body = {"choices": [{"message": {"content": text}, "finish_reason": finish}], "model": "tiny"}
            lines.append(json.dumps({"custom_id": f"r{seq}", "response": {"status_code": 200, "body": body}}))
        path = self.home.results(of.id, "output")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
        ended = settling.EndedShard(
            self.store.jobs.get(self.job.id), of, handle(cost=PER_ROW), "m", {"t": OutputCheck({"type": "object"})},
            (), True, NOW, standing, {"t": retries},
        )  # fmt: skip
        return str(settling.collect(self.store, self.home, ended))

    def waiting(self) -> dict[int, tuple[str, list[str]]]:
        """Of each row that waits its model, and the messages it would send."""
        of = self.sent(number=9)
        content = self.home.requests(self.job.id).read_bytes()
        found = {}
        for one in self.store.rows.of_shard(of.id):
            line = json.loads(content[one.span.offset : one.span.offset + one.span.length])
            assert line["custom_id"] == one.custom_id
            found[one.seq] = of.model, [message["content"] for message in line["body"]["messages"]]
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
        yield Desk(tmp_path, store)


def test_first_the_same_model_then_the_next_one_as_the_first_was_asked(desk: Desk) -> None:
    first = desk.sent()
    kinds = {0: "good", 1: "good", 2: "schema_mismatch", 3: "truncated"}
    assert desk.collect(first, kinds) == "2 succeeded, 2 are re-asked: 1 schema_mismatch, 1 truncated"
    second = desk.sent(2)
    lengths = [one.span.length for one in desk.store.rows.of_shard(second.id)]
    assert min(lengths) > first.bytes / ROWS
    assert desk.collect(second, {2: "schema_mismatch", 3: "truncated"}) == (
        "2 continue with big: 1 schema_mismatch, 1 truncated"
    )
    assert desk.waiting() == {2: ("m@2", ["Q2"]), 3: ("m@2", ["Q3"])}
    assert desk.store.ledger.spent(desk.job.id) == 6 * PER_ROW


def test_the_second_showing_is_of_the_second_answer_alone(desk: Desk) -> None:
    desk.collect(desk.sent(), {0: "good", 1: "good", 2: "good", 3: "schema_mismatch"}, retries=2)
    desk.collect(desk.sent(2), {3: "truncated"}, retries=2)
    [(_, [question, answer, fault])] = desk.waiting().values()
    assert (question, answer) == ("Q3", '{"a')
    assert "cut off" in fault


def test_what_was_withheld_goes_on_at_once(desk: Desk) -> None:
    said = desk.collect(desk.sent(), dict.fromkeys(range(ROWS), "content_filter"))
    assert said == "4 continue with big: 4 content_filter"


def test_a_job_that_is_cancelled_asks_no_further(desk: Desk) -> None:
    of = desk.sent()
    desk.store.jobs.request_cancel(desk.job.id, CancelCode.USER, "by the user", NOW)
    assert desk.collect(of, dict.fromkeys(range(ROWS), "truncated")) == "4 failed"


def test_lines_that_are_gone_are_an_error_that_says_so(desk: Desk) -> None:
    of = desk.sent()
    desk.home.requests(desk.job.id).unlink()
    with pytest.raises(JobFilesError, match=r"cannot use .*requests\.jsonl"):
        desk.collect(of, {0: "truncated"})
    assert not desk.store.rows.has_waiting(desk.job.id)


@pytest.mark.long
@settings(deadline=None, max_examples=8)
@given(kinds=st.lists(st.sampled_from([*ANSWERS]), min_size=ROWS, max_size=ROWS), torn=st.binary(max_size=20))
def test_doing_it_again_after_a_kill_loses_nothing_and_books_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], torn: bytes
) -> None:
    folder = tmp_path_factory.mktemp("again")
    with Store.open(f"sqlite:///{folder / 'orch.db'}") as store:
        desk = Desk(folder, store)
        told, of = dict(enumerate(kinds)), desk.sent()
        # What a kill amid the writing of new lines leaves: rows name none of it.
        with desk.home.requests(desk.job.id).open("ab") as file:
            file.write(torn)
        desk.collect(of, told)
        once = list(store.rows.finished(desk.job.id)), store.ledger.totals("job")
        desk.collect(of, told)
        assert (list(store.rows.finished(desk.job.id)), store.ledger.totals("job")) == once
        assert store.ledger.spent(desk.job.id) == ROWS * PER_ROW
        waits = {one.seq: one.length for one in store.rows.waiting(desk.job.id)}
        assert set(waits) == {seq for seq, kind in told.items() if kind != "good"}
