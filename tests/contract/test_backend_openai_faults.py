"""The client before a provider that misbehaves: what is paid once, what comes late, what breaks off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.backends import BatchOrder, Intent
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.openai.profiles import PROFILES
from orchestrator.backends.openai_http import HttpAPI
from orchestrator.core.errors import BackendError, Uncertain
from tests.emulator.client import Emulator
from tests.support.batchapi import CHAT, jsonl, row
from tests.support.plain_http import with_bearer

SHARD = "letters-1.001"
DAY = 86_400


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as found:
        yield found


@pytest.fixture
def emulator(provider: Emulator) -> Emulator:
    provider.reset()
    return provider


@pytest.fixture
def backend(emulator: Emulator) -> Iterator[ApiBatches]:
    client = with_bearer(emulator.url_openai, "sk-it", timeout=2.0)
    found = ApiBatches("it", HttpAPI(client, "sk-it"), PROFILES["openai"])
    yield found
    found.close()


@pytest.fixture
def order(backend: ApiBatches, tmp_path: Path) -> BatchOrder:
    path = tmp_path / "input.jsonl"
    path.write_bytes(jsonl([row("a"), row("b")]))
    return BatchOrder(SHARD, backend.upload(path, f"{SHARD}.jsonl"), CHAT, DAY, 2)


def intent(emulator: Emulator) -> Intent:
    return Intent(SHARD, 2, emulator.clock.now(), Path("input.jsonl"), lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut_after", "hang_after", "status"])
def test_a_batch_that_was_made_without_an_answer_is_found_and_made_once(
    emulator: Emulator, backend: ApiBatches, order: BatchOrder, fault: str
) -> None:
    since = intent(emulator)
    emulator.script({"do": fault, "match": {"verb": "create"}})
    with pytest.raises(Uncertain):
        backend.create(order)
    assert sum(emulator.calls("create").values()) == 1
    seen = backend.find(since)
    assert (seen.batch is not None) is (fault != "status"), "a 500 was not carried out here, which nobody could know"
    assert len(emulator.state()["batches"]) == (fault != "status")


def test_a_create_that_was_cut_off_before_it_was_carried_out_is_uncertain_too(
    emulator: Emulator, backend: ApiBatches, order: BatchOrder
) -> None:
    emulator.script({"do": "cut_before", "match": {"verb": "create"}})
    with pytest.raises(Uncertain):
        backend.create(order)
    assert backend.find(intent(emulator)).batch is None


def test_an_orphan_that_shows_late_is_found_within_the_time_that_is_waited(
    emulator: Emulator, backend: ApiBatches, order: BatchOrder
) -> None:
    since = intent(emulator)
    emulator.script({"do": "cut_after", "match": {"verb": "create"}}, {"do": "hidden", "seconds": 300.0})
    with pytest.raises(Uncertain):
        backend.create(order)
    assert backend.find(since).batch is None
    emulator.clock.advance(301)
    assert backend.appear_seconds > 301
    seen = backend.find(since)
    assert seen.batch is not None
    assert seen.batch.shard == SHARD


def test_trap_1_37_completed_is_seen_before_the_id_of_the_output(
    emulator: Emulator, backend: ApiBatches, order: BatchOrder
) -> None:
    emulator.script({"do": "late_output_id", "seconds": 600.0}, {"do": "turnaround", "seconds": 60.0})
    batch = backend.create(order)
    emulator.clock.advance(300)
    early = backend.retrieve(batch.id)
    assert early is not None
    assert (early.status, early.completed, early.output_file_id) == ("completed", 2, None)
    emulator.clock.advance(900)
    later = backend.retrieve(batch.id)
    assert later is not None
    assert later.output_file_id is not None


def test_a_batch_that_vanishes_is_not_known(emulator: Emulator, backend: ApiBatches, order: BatchOrder) -> None:
    emulator.script({"do": "vanishes", "seconds": 100.0})
    batch = backend.create(order)
    emulator.clock.advance(200)
    assert backend.retrieve(batch.id) is None


def test_trap_a6_the_limit_of_enqueued_tokens_ends_a_batch_while_it_is_validated(
    emulator: Emulator, backend: ApiBatches, order: BatchOrder
) -> None:
    emulator.script({"do": "token_limit_exceeded", "limit": 900_000})
    batch = backend.create(order)
    emulator.clock.advance(3600)
    found = backend.retrieve(batch.id)
    assert found is not None
    assert (found.status, found.rows, found.completed) == ("failed", None, 0)
    [problem] = found.problems
    assert (problem.code, problem.line) == ("token_limit_exceeded", None)
    assert "Limit: 900,000 enqueued tokens" in problem.message


@pytest.mark.parametrize("fault", ["cut_body", "status"])
def test_a_download_that_breaks_off_is_whole_the_next_time(
    emulator: Emulator, backend: ApiBatches, order: BatchOrder, tmp_path: Path, fault: str
) -> None:
    batch = backend.create(order)
    emulator.clock.advance(timedelta(hours=23).total_seconds())
    ended = backend.retrieve(batch.id)
    assert ended is not None
    file_id = ended.output_file_id
    assert file_id is not None
    emulator.script({"do": fault, "match": {"verb": "content"}})
    path = tmp_path / "output.jsonl"
    if fault == "status":
        with pytest.raises(BackendError):
            backend.download(file_id, path, tmp_path / "input.jsonl")
        assert not path.exists()
    else:
        assert backend.download(file_id, path, tmp_path / "input.jsonl").cut is not None
    assert backend.download(file_id, path, tmp_path / "input.jsonl").cut is None
    assert {json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()} == {"a", "b"}
