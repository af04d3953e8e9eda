"""What the client makes of answers in every odd spelling, and what it sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import BatchOrder, Intent, RemoteBatch, Sighting
from orchestrator.backends.batch_lists import FIND_PAGES
from orchestrator.backends.batches import ApiBatches
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import AccountError, BackendBusy, BackendError, OrchError
from tests.support.hosted import CHAT, NOW, ORDER, answering, batch, error, outcome
from tests.support.scripted import Answer, Asked


def retrieved(backend: ApiBatches) -> RemoteBatch:
    found = backend.retrieve("batch_1")
    assert found is not None
    return found


SPELLINGS = {
    "Validating": "validating", "InProgress": "in_progress", "Completed": "completed", "FAILED": "failed",
    "CANCELING": "cancelling", "CANCELLATION_REQUESTED": "cancelling", "canceled": "cancelled",
    "QUEUED": "validating", "pending": "validating", "RUNNING": "in_progress", "in progress": "in_progress",
    "SUCCESS": "completed", "succeeded": "completed", "TIMEOUT_EXCEEDED": "expired",
    "archived by wizards": "in_progress",
}  # fmt: skip


@pytest.mark.parametrize(("word", "status"), SPELLINGS.items())
def test_trap_d_status_words_of_other_spellings(word: str, status: str) -> None:
    with answering(Answer(batch(status=word))) as (backend, _):
        assert retrieved(backend).status == status


AZURE_COUNTS = {"total": None, "completed": None, "failed": None}
AZURE_TIME = "2026-11-21T20:00:00.123456+00:00"
AZURE = batch(status="Completed", created_at=AZURE_TIME, request_counts=AZURE_COUNTS, errors=None, metadata=None)


def test_trap_b_azure_has_null_counts_iso_times_and_an_error_file_without_errors(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/content"):
            return Answer(b"")
        return Answer({**AZURE, "output_file_id": "file-o", "error_file_id": "file-e"})

    with answering(answer, "azure") as (backend, _):
        found = retrieved(backend)
        backend.download("file-e", tmp_path / "error.jsonl", tmp_path / "input.jsonl")
    assert found == RemoteBatch(
        "batch_1",
        BatchStatus.COMPLETED,
        output_file_id="file-o",
        error_file_id="file-e",
        created_at=datetime(2026, 11, 21, 20, 0, 0, 123456, UTC),
    )
    assert (tmp_path / "error.jsonl").read_bytes() == b""


def test_trap_a4_a_batch_of_which_hardly_anything_is_told() -> None:
    with answering(Answer({"id": "batch_1", "errors": {"object": "list"}, "created_at": "soon"})) as (backend, _):
        assert retrieved(backend) == RemoteBatch("batch_1", BatchStatus.IN_PROGRESS)


def test_trap_a6_every_problem_of_a_file_is_told_by_its_line() -> None:
    data = [{"code": "invalid_json_line", "message": "no JSON", "line": 2}, {"message": None}]
    with answering(Answer(batch(status="failed", errors={"object": "list", "data": data}))) as (backend, _):
        problems = retrieved(backend).problems
    assert [(p.code, p.message, p.line) for p in problems] == [
        ("invalid_json_line", "no JSON", 2),
        ("error", "", None),
    ]


def test_trap_a5_completed_before_the_id_of_its_file_is_told_as_it_is() -> None:
    with answering(Answer(batch(status="completed", request_counts={"total": 2, "completed": 2, "failed": 0}))) as (
        backend,
        _,
    ):
        found = retrieved(backend)
    assert (found.status, found.rows, found.completed, found.output_file_id) == ("completed", 2, 2, None)


@pytest.mark.parametrize("message", ["No batch found with id 'batch_1'.", "gone"])
def test_a_batch_that_its_backend_does_not_know(message: str) -> None:
    for status in (404, 410):
        with answering(error(status, message=message)) as (backend, _):
            assert backend.retrieve("batch_1") is None


def sent_by(profile: str, window_seconds: int = 86_400) -> tuple[bytes, bytes]:
    """The body of the create, and that of the upload."""
    path = Path(__file__)
    with answering(lambda asked: Answer(batch() if "batches" in asked.path else {"id": "f"}), profile) as (
        backend,
        seen,
    ):
        assert backend.upload(path, "in.jsonl") == "f"
        backend.create(BatchOrder("s.001", "f", CHAT, window_seconds, 1))
        return seen.posts()[0].body, seen.posts("/v1/files")[0].body


def test_a_create_carries_our_own_id_and_the_window_as_its_provider_spells_it() -> None:
    create, upload = sent_by("openai")
    assert json.loads(create) == {
        "input_file_id": "f",
        "endpoint": CHAT,
        "completion_window": "24h",
        "metadata": {"orch_shard": "s.001"},
    }
    assert b'name="expires_after' not in upload.split(b'name="file"')[0]
    assert json.loads(sent_by("groq", 8 * 86_400)[0])["completion_window"] == "7d"


def test_trap_b_azure_keeps_10_000_files_only_if_each_says_when_it_goes() -> None:
    create, upload = sent_by("azure")
    assert json.loads(create)["output_expires_after"] == {"anchor": "created_at", "seconds": 1_209_600}
    assert b'name="expires_after[seconds]"\r\n\r\n1209600' in upload
    assert upload.index(b"expires_after") < upload.index(b'name="file"'), "some providers want it before the file"


def listing(pages: Sequence[Sequence[dict[str, Any]]], *, has_more: bool = True) -> Callable[[Asked], Answer]:
    """A list of batches in pages, by the cursor; `has_more=False` leaves that field out."""
    starts = {"": 0} | {page[-1]["id"]: number for number, page in enumerate(pages, 1)}
    by_id = {one["id"]: one for page in pages for one in page}

    def answer(asked: Asked) -> Answer:
        if (one := by_id.get(asked.path.rpartition("/")[2])) is not None:
            return Answer(one)
        number = starts[asked.query.get("after", "")]
        data = list(pages[number]) if number < len(pages) else []
        more = {"has_more": number + 1 < len(pages)} if has_more else {}
        return Answer({"object": "list", "data": data, **more})

    return answer


def at(hours: float, number: int, **facts: Any) -> dict[str, Any]:
    return batch(number, created_at=int((NOW + timedelta(hours=hours)).timestamp()), **facts)


OURS = {"metadata": {"orch_shard": ORDER.shard}}


def found_in(answer: Callable[[Asked], Answer]) -> tuple[Sighting, int]:
    """What looking for an intent of an hour ago gives, and how many pages it took."""
    intent = Intent(ORDER.shard, 3, NOW - timedelta(hours=1), Path("in.jsonl"), lambda _: None)
    with answering(answer) as (backend, provider):
        found = backend.find(intent)
        return found, sum(asked.path.endswith("/batches") for asked in provider.asked)


OTHER = {"metadata": {"orch_shard": "s.999"}}
UPLOAD, ANOTHER = {"input_file_id": "file-1"}, {"input_file_id": "file-2"}
LISTED: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "our id": (OURS, OURS, True),
    "our id with another file": (OURS | ANOTHER, OURS | ANOTHER, True),
    "our file without an id": (UPLOAD, UPLOAD, True),
    "our file with the id of another shard": (OTHER | UPLOAD, OTHER | UPLOAD, False),
    "no file, and the batch has our file": ({}, UPLOAD, True),
    "no file, and the batch has our id": ({}, OURS | ANOTHER, True),
    "no file, and the batch has our file with the id of another shard": ({}, OTHER | UPLOAD, False),
    "nothing of ours": ({}, ANOTHER, False),
}
"""What a list says of a batch, what the batch says itself, and whether it is ours. Equal files may have equal ids."""


@pytest.mark.parametrize(("listed", "itself", "is_ours"), LISTED.values(), ids=LISTED)
def test_whose_a_listed_batch_is(listed: dict[str, Any], itself: dict[str, Any], is_ours: bool) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/batches"):
            return Answer({"object": "list", "data": [at(0, 1, **listed)], "has_more": False})
        return Answer(at(0, 1, **itself))

    with answering(answer) as (backend, _):
        since = NOW - timedelta(hours=1)
        seen = backend.find(Intent(ORDER.shard, 3, since, Path("in.jsonl"), lambda _: None, "file-1"))
    assert (seen.batch is not None) == is_ours


OLD_PAGES = [[at(-24 * day, 10 * day), at(-24 * day - 0.5, 10 * day + 1)] for day in range(3, 9)]


def test_find_in_a_newest_first_list_ends_where_all_is_older_than_the_intent() -> None:
    pages = [[at(0, 1), at(-1, 2)], *OLD_PAGES]
    assert found_in(listing(pages)) == (Sighting(), 2)
    pages[0][1]["metadata"] = OURS["metadata"]
    seen, asked = found_in(listing(pages))
    assert (seen.batch and seen.batch.id, seen.batch and seen.batch.shard, asked) == ("batch_2", ORDER.shard, 1)


def test_find_reads_a_busy_newest_first_list_as_far_back_as_the_intent() -> None:
    pages = [[at(-number / 60, number)] for number in range(FIND_PAGES + 5)]
    # The clocks of the two sides may differ by up to an hour.
    late = [[at(-1.8, 900)], [at(-1.9, 901, **OURS)]]
    assert found_in(listing([*pages, *late]))[0].batch is not None


def test_find_reads_a_list_in_another_order_to_its_end() -> None:
    oldest_first = [list(reversed(page)) for page in reversed([[at(0, 1, **OURS), at(-1, 2)], *OLD_PAGES])]
    seen, asked = found_in(listing(oldest_first))
    assert (seen.batch and seen.batch.id, asked) == ("batch_1", len(oldest_first))
    neither = [[at(-80, 2), at(-90, 3), at(-70, 4)], [at(-75, 5)], [at(0, 1, **OURS)]]
    assert found_in(listing(neither))[0].batch is not None
    same_second = [[at(-9, number)] for number in range(5)]
    assert found_in(listing([*same_second, [at(0, 9, **OURS)]]))[0].batch is not None
    no_times = [[batch(number, created_at=None)] for number in range(5)]
    assert found_in(listing([*no_times, [at(0, 9, **OURS)]]))[0].batch is not None


def test_find_does_not_say_that_there_is_none_where_it_cannot_know() -> None:
    pages = [[at(number - 900, number)] for number in range(FIND_PAGES)]
    assert found_in(listing(pages)) == (Sighting(), FIND_PAGES)
    seen, asked = found_in(listing([*pages, [at(0, 999)], [at(0, 1000, **OURS)]]))
    assert (seen.batch, asked) == (None, FIND_PAGES + 1)
    assert seen.undecided is not None
    assert "not listed newest first" in seen.undecided


@pytest.mark.parametrize("spoiled", [{"id": None}, {"id": ""}, {"id": {"value": "batch_9"}}])
def test_a_batch_of_ours_that_the_list_shows_without_an_id_is_not_taken_for_absent(spoiled: dict[str, Any]) -> None:
    """To submit its rows again would pay them twice. Others' entries of any shape are left alone."""
    theirs = {**at(0, 8), **spoiled, "metadata": {"orch_shard": "another.001"}}

    def shown(*entries: Any) -> Sighting:
        return found_in(lambda _: Answer({"object": "list", "data": list(entries), "has_more": False}))[0]

    assert shown(at(0, 1), theirs, {**at(0, 7), **spoiled, "metadata": None}) == Sighting()
    seen = shown(at(0, 1), theirs, {**at(0, 9, **OURS), **spoiled})
    assert seen.batch is None
    assert seen.undecided is not None
    assert "cannot be read" in seen.undecided


def test_trap_a0_a_list_that_does_not_say_whether_there_is_more() -> None:
    with answering(listing([[at(0, 1)], [at(-1, 2)]], has_more=False)) as (backend, _):
        assert [found.id for found in backend.batches()] == ["batch_1", "batch_2"]


def test_a_list_that_begins_anew_for_ever_ends() -> None:
    with answering(Answer({"object": "list", "data": [at(0, 1), at(0, 2)], "has_more": True})) as (backend, _):
        assert [found.id for found in backend.batches()] == ["batch_1", "batch_2"]


@pytest.mark.parametrize("body", [[], {"object": "list", "data": [{}]}, {"data": [5]}, b"<html>"])
def test_trap_a0_a_list_of_another_shape_is_an_error_that_says_so(body: Any) -> None:
    with answering(Answer(body)) as (backend, _):
        said = outcome(lambda: list(backend.batches()))[1]
        assert outcome(lambda: list(backend.files()))[0] is BackendError
    assert "does not answer like a Batch API" in said.message
    assert said.hint == "check base_url"


ACME = Answer({"data": []}, headers={"openai-organization": "acme"})
ACCOUNTS: dict[str, tuple[Answer, dict[str, str], str, str]] = {
    "organisation": (ACME, {}, "openai", "org:acme"),
    "with a project": (ACME, {"project": "p"}, "openai", "org:acme/p"),
    "key only": (Answer({"data": []}), {}, "openai", "key:c871f067542d"),
    "a key that may not list models": (error(403, openai_organization="acme"), {}, "openai", "org:acme"),
    "no such verb": (Answer(b"", 405), {}, "groq", "key:c871f067542d"),
    "no list of models": (error(404), {}, "groq", "key:c871f067542d"),
}


@pytest.mark.parametrize(("answer", "options", "profile", "expected"), ACCOUNTS.values(), ids=ACCOUNTS)
def test_whose_batches_are_seen(answer: Answer, options: dict[str, str], profile: str, expected: str) -> None:
    with answering(answer, profile, **options) as (backend, provider):
        assert (backend.account(), backend.account()) == (expected, expected)
    assert [asked.path for asked in provider.asked] == ["/v1/models"]


@pytest.mark.parametrize(("status", "expected"), [(500, BackendError), (429, BackendBusy), (401, AccountError)])
def test_an_account_that_cannot_be_told_now_is_no_other_one(status: int, expected: type[OrchError]) -> None:
    with answering(error(status)) as (backend, _):
        assert outcome(backend.account)[0] is expected


def checks(
    profile: str = "openai", date: datetime | None = None, models: Answer | None = None
) -> dict[str, tuple[bool, str]]:
    headers = {} if date is None else {"Date": date.strftime("%a, %d %b %Y %H:%M:%S GMT")}
    names = models or Answer({"data": [{"id": "gpt-5-nano"}, {"id": "gpt-5-mini"}]})

    def answer(asked: Asked) -> Answer:
        return names if asked.path == "/v1/models" else Answer({"data": []}, headers=headers)

    with answering(answer, profile) as (backend, provider):
        found = {check.name: (check.ok, check.found) for check in backend.check(["gpt-5-nano", "gpt-5-nana"])}
    assert {asked.method for asked in provider.asked} == {"GET"}, "looking costs nothing"
    return found


def test_doctor_knows_models_of_a_backend() -> None:
    found = checks()
    assert found["batches"] == (True, "can be listed, as key:c871f067542d")
    assert found["model gpt-5-nano"] == (True, "is there")
    assert found["model gpt-5-nana"] == (False, "is not there; near to it: gpt-5-nano, gpt-5-mini")
    assert checks("azure")["model gpt-5-nana"] == (True, "is a deployment's name, which cannot be listed")
    assert checks(models=error(403))["models"][0] is False


def test_doctor_tells_a_clock_that_is_wrong() -> None:
    now = datetime.now(UTC)
    assert "clock" not in checks(date=now)
    assert checks(date=now - timedelta(minutes=5))["clock"][0] is False
    assert "ahead of" in checks(date=now - timedelta(minutes=5))["clock"][1]
    assert "behind" in checks(date=now + timedelta(minutes=5))["clock"][1]
