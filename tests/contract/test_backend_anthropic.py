"""Anthropic's Message Batches through the verbs of a Batch API, against a provider that misbehaves."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.backends import (
    BATCH_GONE,
    BatchOrder,
    DoctorCheck,
    Intent,
    RemoteBatch,
    Sighting,
    inline_rows,
    line_digest,
    sent_line,
)
from orchestrator.backends.anthropic import PROFILE
from orchestrator.backends.anthropic.batches import AnthropicBatches
from orchestrator.backends.inline_batches import UNDECIDED
from orchestrator.backends.received_files import split_lines
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import BackendRefused, InputError, JobFilesError, Uncertain
from tests.emulator.client import Emulator
from tests.support.claudedesk import CHAT, DAY, MODEL, SHARD, Desk, Json
from tests.support.plain_http import for_anthropic

TAG = inline_rows.shard_tag(SHARD)
HOUR = 3600.0


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Its clock stands still; each test has an account of its own there."""
    with Emulator(tmp_path_factory.mktemp("provider")) as running:
        yield running


@pytest.fixture
def desk(provider: Emulator, tmp_path: Path) -> Iterator[Desk]:
    provider.clear()
    found = Desk(provider.url_anthropic, tmp_path)
    yield found
    found.backend.close()


def wanted(provider: Emulator, rows: int, **more: Any) -> Intent:
    """An intent of now; `since` is an hour ago at most, as the pipeline commits it before the call."""
    return Intent(**{
        "shard": SHARD, "rows": rows, "since": provider.clock.now(), "input_path": Path("none"),
        "known": lambda batch_id: None, **more,
    })  # fmt: skip


def at_work(**call: str) -> Json:
    """Which calls a fault is for."""
    return {"match": {"flavour": "anthropic", **call}}


# The way of a batch


def test_a_batch_from_its_rows_to_its_answers(desk: Desk, provider: Emulator) -> None:
    made = desk.send(["one", "two", "three"])
    assert (made.status, made.rows, made.completed) == (BatchStatus.IN_PROGRESS, 3, 0)
    assert (made.output_file_id, made.error_file_id) == (None, None)
    assert made.created_at == provider.clock.now()

    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    assert (ended.status, ended.rows, ended.completed, ended.failed) == (BatchStatus.COMPLETED, 3, 3, 0)
    rows = desk.read(ended.output_file_id)
    assert sorted(row["custom_id"] for row in rows) == ["r0", "r1", "r2"]
    for row in rows:
        body = row["response"]["body"]
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
        assert body["choices"][0]["message"]["content"].startswith("answer ")
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["model"] == MODEL
        # A batch's answers say the tier here, where OpenAI's say "default".
        assert body["service_tier"] == "batch"
        assert body["usage"]["prompt_tokens"] in (1, 2)
    assert ended.error_file_id is None


def test_the_bill_is_what_the_answers_say(desk: Desk, provider: Emulator) -> None:
    made = desk.send(
        ["a" * 400 + "[[fault:cached]][[fault:cache_write]]", "b[[fault:reasoning]]", "c[[fault:status:400]]"]
    )
    provider.clock.advance(HOUR)
    answers = [row["response"]["body"] for row in desk.read(desk.backend.retrieve(made.id).output_file_id)]
    usages = [answer["usage"] for answer in answers if "usage" in answer]
    billed = provider.bill()["batches"][made.id]
    assert [billed[name] for name in ("input", "cached", "cache_write", "output", "reasoning")] == [
        sum(usage["prompt_tokens"] for usage in usages),
        sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
        sum(usage["prompt_tokens_details"]["cache_write_tokens"] for usage in usages),
        sum(usage["completion_tokens"] for usage in usages),
        sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages),
    ]
    assert billed["cached"] > 0
    assert billed["reasoning"] > 0


def test_each_row_goes_out_once_under_an_id_that_anthropic_takes(desk: Desk, provider: Emulator) -> None:
    """Its rule is stricter than OpenAI's: 64 characters of [a-zA-Z0-9_-]."""
    rows = ["x", "y"]
    path = desk.input(rows)
    odd = ["ein Dokument/№ 1 " + "x" * 100, "r-1"]
    given_lines = path.read_text(encoding="utf-8").splitlines()
    lines = [json.loads(line) | {"custom_id": name} for line, name in zip(given_lines, odd, strict=True)]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    order = BatchOrder(SHARD, desk.backend.upload(path, f"{SHARD}.jsonl"), CHAT, DAY, 2)
    made = desk.backend.create(order)
    provider.clock.advance(HOUR)
    assert desk.ids(desk.backend.retrieve(made.id).output_file_id) == sorted(odd)
    sent = json.loads(b"[%b]" % inline_rows.rows_path(path).read_bytes())
    assert [request["custom_id"][:-16] for request in sent] == [f"{TAG}-1-", f"{TAG}-2-"]


def test_rows_that_failed_are_errors_with_the_status_of_their_type(desk: Desk, provider: Emulator) -> None:
    made = desk.send(["good", "[[fault:status:400]]", "[[fault:status:529]]", "[[fault:status:429]]"])
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    assert (ended.status, ended.completed, ended.failed) == (BatchStatus.COMPLETED, 1, 3)
    found = {row["custom_id"]: row for row in desk.read(ended.output_file_id)}
    statuses = {name: row["response"]["status_code"] for name, row in found.items()}
    assert statuses == {"r0": 200, "r1": 400, "r2": 529, "r3": 429}
    assert found["r2"]["response"]["body"]["error"]["type"] == "overloaded_error"
    assert all(row["error"] is None for row in found.values())


def test_all_rows_failed_is_completed(desk: Desk, provider: Emulator) -> None:
    made = desk.send(["[[fault:status:500]]"] * 2)
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    assert (ended.status, ended.completed, ended.failed) == (BatchStatus.COMPLETED, 0, 2)
    assert desk.ids(ended.output_file_id) == ["r0", "r1"]


def test_an_expired_batch_keeps_what_it_finished(desk: Desk, provider: Emulator) -> None:
    """There is no status for it: the batch has ended, and some of its rows have expired."""
    provider.script({"do": "expires", "share": 0.5, **at_work()})
    made = desk.send(["row"] * 10)
    provider.clock.advance(25 * HOUR)
    ended = desk.backend.retrieve(made.id)
    assert ended.status is BatchStatus.EXPIRED
    rows = desk.read(ended.output_file_id)
    assert sorted(row["custom_id"] for row in rows) == [f"r{number}" for number in range(10)]
    late = [row for row in rows if row["error"] is not None]
    assert 10 - len(late) == ended.completed == 5
    assert {row["error"]["code"] for row in late} == {"batch_expired"}
    assert {row["response"] for row in late} == {None}


def test_a_cancelled_batch(desk: Desk, provider: Emulator) -> None:
    provider.script({"do": "turnaround", "seconds": 10 * HOUR, **at_work()})
    made = desk.send(["row"] * 4)
    desk.backend.cancel(made.id)
    assert desk.backend.retrieve(made.id).status is BatchStatus.CANCELLING
    desk.backend.cancel(made.id)
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    assert ended.status is BatchStatus.CANCELLED
    assert {row["error"]["code"] for row in desk.read(ended.output_file_id)} == {"batch_cancelled"}
    assert desk.ids(ended.output_file_id) == ["r0", "r1", "r2", "r3"]


def test_a_batch_that_was_cancelled_halfway_keeps_what_it_finished(desk: Desk, provider: Emulator) -> None:
    provider.script({"do": "stuck_in_progress", "share": 0.5, **at_work()})
    made = desk.send(["row"] * 4)
    provider.clock.advance(HOUR)
    desk.backend.cancel(made.id)
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    assert (ended.status, ended.completed) == (BatchStatus.COMPLETED, 2)
    rows = desk.read(ended.output_file_id)
    assert sorted(row["custom_id"] for row in rows) == ["r0", "r1", "r2", "r3"]
    assert sum(row["error"] is None for row in rows) == 2


def test_a_batch_that_was_cancelled_late_is_completed(desk: Desk, provider: Emulator) -> None:
    made = desk.send(["row"])
    provider.clock.advance(HOUR)
    desk.backend.cancel(made.id)
    assert desk.backend.retrieve(made.id).status is BatchStatus.COMPLETED


def test_a_batch_that_cannot_be_cancelled_and_goes_on_is_told(desk: Desk, provider: Emulator) -> None:
    provider.script({"do": "status", "status": 400, **at_work(verb="cancel")})
    made = desk.send(["row"])
    with pytest.raises(BackendRefused, match=f"cannot cancel {made.id}"):
        desk.backend.cancel(made.id)


def test_counters_may_stay_at_zero_until_the_end(desk: Desk, provider: Emulator) -> None:
    provider.script({"do": "stuck_in_progress", "share": 0.5, **at_work()})
    made = desk.send(["row"] * 4)
    provider.clock.advance(HOUR)
    running = desk.backend.retrieve(made.id)
    assert (running.status, running.completed, running.rows) == (BatchStatus.IN_PROGRESS, 0, 4)
    assert not desk.backend.partial(made.id, "output", desk.folder / "partial.jsonl")


def test_a_batch_that_vanished_is_gone(desk: Desk, provider: Emulator) -> None:
    provider.script({"do": "vanishes", **at_work()})
    made = desk.send(["row"])
    assert desk.backend.retrieve(made.id) is None
    assert desk.backend.listed(made.id, provider.clock.now()) == Sighting()
    with pytest.raises(BackendRefused):
        desk.backend.cancel(made.id)


def test_results_that_are_not_kept_any_longer_are_gone(desk: Desk, provider: Emulator) -> None:
    made = desk.send(["row"])
    provider.clock.advance(30 * DAY)
    gone = desk.backend.retrieve(made.id)
    assert (gone.status, gone.problems[0].code) == (BatchStatus.FAILED, BATCH_GONE)


def test_rows_of_no_order_of_another_batch_twice_or_broken(desk: Desk, provider: Emulator) -> None:
    texts = ["[[fault:unknown_id]]", "[[fault:duplicate]]", "[[fault:broken_line]]", "[[fault:missing]]", "x"]
    made = desk.send(texts)
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    path = desk.folder / "out.jsonl"
    assert ended.output_file_id is not None
    desk.backend.download(ended.output_file_id, path, desk.folder / f"{SHARD}.input.jsonl")
    found, broken = [], 0
    for line in path.read_bytes().splitlines():
        try:
            found.append(json.loads(line)["custom_id"])
        except ValueError:
            broken += 1
    assert sorted(found) == ["nobody-asked-for-this", "r0", "r1", "r1", "r4"]
    assert broken == 1


# What is not sent


def test_a_row_that_cannot_be_translated_is_not_sent_and_named(desk: Desk, provider: Emulator) -> None:
    hello = [{"role": "user", "content": "hello"}]
    made = desk.send(["one", {"messages": hello, "logit_bias": {"5": 1}}, "three"])
    assert made.rows == 2
    provider.clock.advance(HOUR)
    before = provider.calls("results").get(200, 0)
    ended = desk.backend.retrieve(made.id)
    # Ids count lines of the input, whatever was left out of the batch.
    found = {row["custom_id"]: row["response"] for row in desk.read(ended.output_file_id)}
    assert {name: answer["status_code"] for name, answer in found.items()} == {"r0": 200, "r1": 400, "r2": 200}
    assert found["r1"]["body"]["error"]["param"] == "logit_bias"
    assert provider.calls("results")[200] == before + 1


def test_refused_rows_stand_beside_those_that_failed_there(desk: Desk, provider: Emulator) -> None:
    made = desk.send([{"messages": [], "n": 2}, "[[fault:status:500]]", "good"])
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    statuses = {row["custom_id"]: row["response"]["status_code"] for row in desk.read(ended.output_file_id)}
    assert statuses == {"r0": 400, "r1": 500, "r2": 200}


def test_a_line_for_another_endpoint_is_not_sent(desk: Desk) -> None:
    path = desk.input(["x"])
    path.write_text(path.read_text(encoding="utf-8").replace(CHAT, "/v1/embeddings"), encoding="utf-8")
    desk.backend.upload(path, f"{SHARD}.jsonl")
    (line,) = [json.loads(line) for line in inline_rows.unsent_lines(path)]
    assert line["response"]["body"]["error"]["param"] == "url"


def test_a_batch_of_refused_rows_alone_is_none_and_costs_nothing(desk: Desk, provider: Emulator) -> None:
    order = desk.order([{"n": 2}, {"seed": 1}])
    before = provider.calls("create")
    made = desk.backend.create(order)
    assert provider.calls("create") == before
    assert (made.id, made.status, made.failed) == (f"refused:{SHARD}", BatchStatus.COMPLETED, 2)
    assert desk.backend.retrieve(made.id).status is BatchStatus.COMPLETED
    desk.backend.cancel(made.id)
    assert desk.backend.retrieve(made.id).output_file_id == made.output_file_id
    assert desk.ids(made.output_file_id) == ["r0", "r1"]
    intent = wanted(provider, 2, input_path=desk.folder / f"{SHARD}.input.jsonl")
    found = desk.backend.find(intent).batch
    assert found is not None
    assert found.id == made.id


def test_what_is_left_out_is_told_by_name(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    hello = [{"role": "user", "content": "hello", "name": "kim"}]
    with caplog.at_level(logging.WARNING):
        desk.order([{"messages": hello, "store": True}, {"messages": hello}, "plain"])
    assert caplog.messages == [
        f"claude: {SHARD}.jsonl: left out, as Anthropic has no counterpart: messages[].name (2 rows), store (1 row)"
    ]


def test_an_upload_may_be_done_again_and_is_forgotten_whole(desk: Desk) -> None:
    path = desk.input(["x", {"n": 2}])
    file_id = desk.backend.upload(path, f"{SHARD}.jsonl")
    before = {file.name: file.read_bytes() for file in desk.folder.iterdir()}
    assert desk.backend.upload(path, f"{SHARD}.jsonl") == file_id
    assert {file.name: file.read_bytes() for file in desk.folder.iterdir()} == before
    assert len(before) == 3
    for _ in range(2):
        desk.backend.forget_file(file_id)
        desk.backend.forget_file("results:msgbatch_1:output")
    assert list(desk.folder.iterdir()) == [path]


def test_a_line_that_is_no_request_is_an_error_with_its_place(desk: Desk) -> None:
    path = desk.input(["x"])
    with path.open("a", encoding="utf-8") as file:
        file.write("{\n")
    with pytest.raises(InputError) as found:
        desk.backend.upload(path, f"{SHARD}.jsonl")
    assert (found.value.file, found.value.line) == (path, 2)
    assert list(desk.folder.iterdir()) == [path], "half a translation must not be sent"


def test_files_that_are_not_there_are_the_jobs_own_trouble(desk: Desk, provider: Emulator) -> None:
    with pytest.raises(JobFilesError):
        desk.backend.upload(desk.folder / "none.jsonl", "none.jsonl")
    path = desk.input(["x"])
    order = BatchOrder(SHARD, desk.backend.upload(path, f"{SHARD}.jsonl"), CHAT, DAY, 1)
    made = desk.backend.create(order)
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    desk.backend.forget_file(order.input_file_id)
    path.unlink()
    with pytest.raises(JobFilesError):
        desk.backend.create(order)
    with pytest.raises(JobFilesError):
        desk.read(ended.output_file_id)


def test_an_input_that_an_earlier_version_translated_is_sent(desk: Desk, provider: Emulator) -> None:
    order = desk.order(["x", {"n": 2}])
    inline_rows.rows_path(desk.folder / f"{SHARD}.input.jsonl").unlink()
    made = desk.backend.create(order)
    provider.clock.advance(HOUR)
    assert desk.backend.retrieve(made.id).output_file_id == f"results:{made.id}"
    # It named two kinds of results.
    assert desk.ids(f"results:{made.id}:output") == desk.ids(f"results:{made.id}:error") == ["r0", "r1"]


# Paid once


@pytest.mark.parametrize("fault", ["cut_after", "hang_after"])
def test_an_answer_that_never_came_is_uncertain_and_its_batch_is_found(
    provider: Emulator, tmp_path: Path, fault: str
) -> None:
    provider.clear()
    desk = Desk(provider.url_anthropic, tmp_path, timeout=httpx2.Timeout(30.0, read=0.3))
    intent = wanted(provider, 3, input_path=tmp_path / f"{SHARD}.input.jsonl")
    provider.script({"do": fault, **at_work(verb="create")})
    with pytest.raises(Uncertain):
        desk.send(["a", "b", "c"])
    (made,) = desk.backend.batches()

    seen = desk.backend.find(intent)
    assert seen == Sighting(undecided=f"batch {made.id} {UNDECIDED}")
    provider.clock.advance(HOUR)
    found = desk.backend.find(intent).batch
    assert found is not None
    assert (found.id, found.status) == (made.id, BatchStatus.COMPLETED)
    assert desk.backend.find(replace(intent, shard="contracts-1.002")) == Sighting(), "another shard's ids"
    desk.backend.close()


def test_a_call_that_was_not_carried_out_leaves_nothing_to_be_found(provider: Emulator, desk: Desk) -> None:
    provider.script({"do": "cut_before", **at_work(verb="create")})
    with pytest.raises(Uncertain):
        desk.send(["a"])
    assert desk.backend.find(wanted(provider, 1)) == Sighting()


def test_a_batch_that_appears_late_is_found_then(provider: Emulator, desk: Desk) -> None:
    intent = wanted(provider, 1)
    provider.script({"do": "hidden", "seconds": 300, **at_work()})
    desk.send(["a"])
    assert desk.backend.find(intent) == Sighting()
    provider.clock.advance(desk.backend.appear_seconds)
    assert desk.backend.find(intent) != Sighting()


NOT_OURS: dict[str, Callable[[Intent, RemoteBatch], Intent]] = {
    "another number of rows": lambda intent, made: replace(intent, rows=3),
    "one that is known": lambda intent, made: replace(
        intent, known=lambda batch_id: intent.since if batch_id == made.id else None
    ),
    "made days before": lambda intent, made: replace(intent, since=intent.since + timedelta(hours=27)),
}


@pytest.mark.parametrize("change", NOT_OURS.values(), ids=NOT_OURS)
def test_a_running_batch_that_does_not_fit_is_not_ours(
    provider: Emulator, desk: Desk, change: Callable[[Intent, RemoteBatch], Intent]
) -> None:
    intent = wanted(provider, 2)
    made = desk.send(["a", "b"])
    assert desk.backend.find(intent).undecided is not None
    assert desk.backend.find(change(intent, made)) == Sighting()


@pytest.mark.parametrize("ahead", [-HOUR, HOUR, -11 * HOUR, 14 * HOUR, 0.0])
def test_trap_c_a_provider_whose_clock_is_wrong_hides_no_orphan(provider: Emulator, desk: Desk, ahead: float) -> None:
    provider.settings(clock_offset_s=ahead)
    try:
        intent = wanted(provider, 1)
        made = desk.send(["a"])
        assert desk.backend.find(intent).undecided == f"batch {made.id} {UNDECIDED}"
        provider.clock.advance(HOUR)
        found = desk.backend.find(intent).batch
        assert found is not None
        assert found.id == made.id
    finally:
        provider.settings(clock_offset_s=0.0)


def test_batches_of_ours_tell_by_how_much_its_clock_is_off(provider: Emulator, desk: Desk) -> None:
    """So that another program's batch of an hour before is not waited for."""
    provider.settings(clock_offset_s=-HOUR)
    try:
        provider.script({"do": "turnaround", "seconds": 9 * HOUR, **at_work()})
        desk.send(["theirs"], "other-1.001")
        provider.clock.advance(HOUR / 2)
        asked = provider.clock.now()
        ours = desk.send(["a", "b"])
        intent = wanted(provider, 1, since=asked + timedelta(minutes=1))
        assert desk.backend.find(intent).undecided is not None
        told = replace(intent, known=lambda batch_id: asked if batch_id == ours.id else None)
        assert desk.backend.find(told) == Sighting()
    finally:
        provider.settings(clock_offset_s=0.0)


def test_ours_is_found_among_others_over_pages(
    provider: Emulator, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.backends.batches.PAGE", 2)
    intent = wanted(provider, 1)
    made = {shard: desk.send(["a"], shard) for shard in [f"contracts-1.00{number}" for number in range(1, 6)]}
    provider.clock.advance(HOUR)
    late = desk.send(["b"], "contracts-2.001")
    assert [batch.id for batch in desk.backend.batches()] == [
        late.id,
        *[batch.id for batch in reversed(made.values())],
    ]
    for shard, batch in made.items():
        found = desk.backend.find(replace(intent, shard=shard)).batch
        assert found is not None
        assert found.id == batch.id
    # What still runs may be ours until it has ended, and what has ended and is not ours says nothing.
    assert desk.backend.find(replace(intent, shard="other")).undecided == f"batch {late.id} {UNDECIDED}"
    # Older ones are not even asked for.
    calls = provider.calls("list")[200]
    later = provider.clock.now() + timedelta(hours=26)
    assert desk.backend.find(replace(intent, since=later, rows=9)) == Sighting()
    assert provider.calls("list")[200] - calls == 2


def test_results_that_are_gone_say_nothing(provider: Emulator, desk: Desk) -> None:
    intent = wanted(provider, 1)
    desk.send(["a"])
    provider.clock.advance(30 * DAY)
    assert desk.backend.find(intent) == Sighting()


def test_a_first_row_that_is_broken_is_passed_over(provider: Emulator, desk: Desk) -> None:
    intent = wanted(provider, 4)
    made = desk.send(["[[fault:broken_line]]"] * 3 + ["x"])
    provider.clock.advance(HOUR)
    found = desk.backend.find(intent).batch
    assert found is not None
    assert found.id == made.id
    desk.send(["[[fault:broken_line]]"], "contracts-1.009")
    provider.clock.advance(HOUR)
    # Without a line that can be read nobody can tell whose it is.
    untold = desk.backend.find(replace(intent, rows=1, shard="contracts-1.009"))
    assert untold.batch is None
    assert untold.undecided is not None
    assert untold.undecided.endswith("its results cannot be read yet: they will show if it is ours")


# What doctor and reconcile ask


def test_the_account_is_told_by_the_keys_fingerprint(desk: Desk) -> None:
    assert desk.backend.account() == f"key:{sha256(desk.key.encode()).hexdigest()[:12]}"
    assert list(desk.backend.files()) == []


def test_a_check_spends_nothing(provider: Emulator, desk: Desk) -> None:
    provider.settings(models=[MODEL])
    try:
        checks = list(desk.backend.check([MODEL, "claude-none"]))
    finally:
        provider.settings(models=None)
    assert checks[0] == DoctorCheck("batches", True, f"can be listed, as {desk.backend.account()}")
    assert DoctorCheck(f"model {MODEL}", True, f"is there: {MODEL}") in checks
    # The emulator's clock is not that of this machine.
    assert [(check.name, check.ok) for check in checks[1::2]] == [("clock", False), ("model claude-none", False)]
    assert list(desk.backend.batches()) == []


# Files


@pytest.mark.long
def test_memory_does_not_grow_with_the_batch(desk: Desk, provider: Emulator) -> None:
    rows = ["word " * 4000] * 600
    path = desk.input(rows)
    tracemalloc.start()
    try:
        desk.backend.upload(path, f"{SHARD}.jsonl")
        made = desk.backend.create(BatchOrder(SHARD, inline_rows.file_id(path), CHAT, DAY, len(rows)))
        provider.clock.advance(HOUR)
        output = desk.backend.retrieve(made.id).output_file_id
        assert output is not None
        desk.backend.download(output, desk.folder / "out.jsonl", path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (desk.folder / "out.jsonl").read_bytes().count(b"\n") == len(rows)
    assert path.stat().st_size > 12_000_000
    assert peak < 3_000_000


def test_a_download_that_breaks_off_says_so_and_keeps_what_came(desk: Desk, provider: Emulator) -> None:
    made = desk.send(["row"] * 50)
    provider.clock.advance(HOUR)
    ended = desk.backend.retrieve(made.id)
    provider.script({"do": "cut_body", "share": 0.5, **at_work(verb="results")})
    assert ended.output_file_id is not None
    path = desk.folder / "result.jsonl"
    came = desk.backend.download(ended.output_file_id, path, desk.folder / f"{SHARD}.input.jsonl")
    assert came.cut is not None
    assert 0 < len(path.read_bytes().splitlines()) < 50
    assert len(desk.ids(ended.output_file_id)) == 50


@given(st.lists(st.text(st.sampled_from("ab\n\r\u2028\x85é"), max_size=6)), st.integers(1, 5))
def test_lines_are_split_at_newlines_alone_wherever_chunks_end(lines: list[str], size: int) -> None:
    content = "\n".join(lines).encode()
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    expected = content.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert list(split_lines(chunks)) == expected


@pytest.mark.parametrize(
    "theirs", [f"{TAG}-0", f"{TAG}-3", f"{TAG}-01", f"{TAG}-٢", f"{TAG}", "1", f"{'0' * 16}-1", f"{TAG}-1-1", ""]
)
def test_an_id_that_is_none_of_ours_stays_as_it_is(theirs: str, desk: Desk) -> None:
    with desk.input(["a", "b"]).open("rb") as source:
        ids = inline_rows.Ids(source, TAG)
        assert ids.ours(theirs) == theirs
        assert [ids.ours(f"{TAG}-{number}") for number in (2, 1)] == ["r1", "r0"]


@pytest.mark.parametrize(
    "digest", [line_digest, lambda line: sent_line(line)[1]], ids=["of the line, as it was once", "of the request"]
)
def test_an_id_of_another_shard_is_known_by_its_digest(desk: Desk, digest: Callable[[bytes], bytes]) -> None:
    path = desk.input(["a", "b"])
    first, second = map(digest, path.read_bytes().splitlines())
    with path.open("rb") as source:
        ids = inline_rows.Ids(source, TAG)
        assert ids.ours(f"{'0' * 16}-7-{second.hex()}") == "r1"
        assert ids.ours(f"{TAG}-2-{first.hex()}") == "r0", "the line counts, not its number"
        assert ids.ours(unknown := f"{TAG}-1-{'0' * 16}") == unknown


def test_ids_of_another_shard_with_one_request_are_of_different_rows(desk: Desk) -> None:
    path = desk.input(["a", "a"])
    digest = sent_line(path.read_bytes().splitlines()[0])[1].hex()
    with path.open("rb") as source:
        ids = inline_rows.Ids(source, TAG)
        theirs = [f"{'0' * 16}-{number}-{digest}" for number in (7, 8)]
        assert {ids.ours(one) for one in theirs} == {"r0", "r1"}
        assert [ids.ours(one) for one in theirs] == [ids.ours(one) for one in theirs]
        assert ids.ours(third := f"{'0' * 16}-9-{digest}") == third


def test_another_process_goes_on_where_one_was_killed(desk: Desk, provider: Emulator) -> None:
    """All that it needs is on the disk, by the names that the database keeps."""
    order = desk.order(["a", {"n": 2}])
    other = AnthropicBatches("claude", for_anthropic(provider.url_anthropic, desk.key), PROFILE, 1)
    made = other.create(order)
    provider.clock.advance(HOUR)
    assert desk.ids(other.retrieve(made.id).output_file_id) == ["r0", "r1"]
    other.close()
