"""Contract tests for packages that provide hosted backends. See decision 21.

Subclass a contract and define a `desk` fixture; pytest collects the subclass as a test class:

    class TestMine(BackendContract, PaidOnceContract):
        @pytest.fixture
        def desk(self, tmp_path): ...
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from orchestrator.backends import NO_CANCEL, Backend, BatchOrder, Intent, RemoteBatch, Sighting
from orchestrator.core.batch_api import CHAT, BatchStatus
from orchestrator.core.errors import BackendRefused, Uncertain

DAY = 86_400


class Desk(Protocol):
    """A backend with an emulated provider whose clock the test moves."""

    @property
    def backend(self) -> Backend:
        """The backend under test. Its account has no batches yet."""

    @property
    def key(self) -> str:
        """The account's API key."""

    @property
    def model(self) -> str:
        """Name of a model that the provider offers."""

    @property
    def folder(self) -> Path:
        """An empty folder for input files and results."""

    def now(self) -> datetime:
        """Return the provider's time."""

    def finish(self, batch_id: str) -> None:
        """Finish a batch, by moving the provider's clock or by waiting."""


class LossyDesk(Desk, Protocol):
    """A desk whose provider can drop its response to a call."""

    def lose_next_create(self) -> None:
        """Make the provider carry out the next create call without sending a response."""


def write_input(desk: Desk, shard: str, rows: int) -> Path:
    """Write a shard's input file with rows `r0`, `r1`, ..., and return its path."""
    path = desk.folder / f"{shard}.input.jsonl"
    lines = (
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": desk.model, "messages": [{"role": "user", "content": f"Say {number}."}]},
        }
        for number in range(rows)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def order_of(desk: Desk, shard: str, rows: int) -> BatchOrder:
    """Write and upload a shard's input file, and return the order for its batch."""
    file_id = desk.backend.upload(write_input(desk, shard, rows), f"{shard}.jsonl")
    return BatchOrder(shard, file_id, CHAT, DAY, rows, "home-1", desk.model)


def intent_of(desk: Desk, order: BatchOrder, since: datetime) -> Intent:
    """Return the intent that the pipeline would record before it sends an order."""
    path = desk.folder / f"{order.shard}.input.jsonl"
    return Intent(order.shard, order.rows, since, path, lambda _: None, order.input_file_id)


def ended(desk: Desk, batch: RemoteBatch) -> RemoteBatch:
    """Finish a batch, and return it as the backend then reports it."""
    desk.finish(batch.id)
    found = desk.backend.retrieve(batch.id)
    assert found is not None
    assert found.status.is_final
    return found


def results(desk: Desk, batch: RemoteBatch, shard: str) -> list[dict[str, Any]]:
    """Download a batch's result files, and return their parsed lines."""
    lines: list[dict[str, Any]] = []
    for number, file_id in enumerate((batch.output_file_id, batch.error_file_id)):
        if file_id is None:
            continue
        path = desk.folder / f"{shard}.result-{number}.jsonl"
        download = desk.backend.download(file_id, path, desk.folder / f"{shard}.input.jsonl")
        assert download.cut is None
        lines += [json.loads(line) for line in path.read_bytes().splitlines()]
    return lines


def cancel(desk: Desk, batch: RemoteBatch) -> None:
    """Cancel a batch. Does nothing if the provider cannot cancel batches."""
    try:
        desk.backend.cancel(batch.id)
    except BackendRefused as refusal:
        if refusal.code != NO_CANCEL:
            raise


class BackendContract:
    """Tests that every backend must pass."""

    def test_every_row_of_a_batch_has_one_result_in_openais_shape(self, desk: Desk) -> None:
        batch = desk.backend.create(order_of(desk, "contract-1.001", 5))
        assert not batch.status.is_final
        end = ended(desk, batch)
        assert end.status is BatchStatus.COMPLETED
        lines = results(desk, end, "contract-1.001")
        assert sorted(line["custom_id"] for line in lines) == ["r0", "r1", "r2", "r3", "r4"]
        for line in lines:
            assert line["error"] is None
            assert line["response"]["status_code"] == 200
            body = line["response"]["body"]
            assert isinstance(body["choices"][0]["message"]["content"], str)
            assert body["usage"]["prompt_tokens"] > 0
            assert body["usage"]["completion_tokens"] > 0

    def test_a_batch_is_listed_and_known_by_its_id(self, desk: Desk) -> None:
        before = desk.now()
        batch = desk.backend.create(order_of(desk, "contract-2.001", 1))
        listed = desk.backend.listed(batch.id, before).batch
        assert listed is not None
        assert listed.id == batch.id
        assert [one.id for one in desk.backend.batches()].count(batch.id) == 1
        known = desk.backend.retrieve(batch.id)
        assert known is not None
        assert known.created_at is not None
        assert abs(known.created_at - desk.now()) < timedelta(hours=26)

    def test_a_batch_of_another_shard_is_not_found(self, desk: Desk) -> None:
        before = desk.now()
        order = order_of(desk, "contract-3.001", 2)
        other = order_of(desk, "contract-3.002", 3)
        ended(desk, desk.backend.create(order))
        assert desk.backend.find(intent_of(desk, other, before)).batch is None

    def test_a_batch_that_was_never_made_is_unknown(self, desk: Desk) -> None:
        batch = desk.backend.create(order_of(desk, "contract-4.001", 1))
        unknown = batch.id[:-4] + ("0000" if not batch.id.endswith("0000") else "1111")
        assert desk.backend.retrieve(unknown) is None
        assert desk.backend.listed(unknown, desk.now()) == Sighting()

    def test_a_cancelled_batch_ends(self, desk: Desk) -> None:
        batch = desk.backend.create(order_of(desk, "contract-5.001", 2))
        cancel(desk, batch)
        end = ended(desk, batch)
        assert end.status in (BatchStatus.CANCELLED, BatchStatus.COMPLETED)
        assert {line["custom_id"] for line in results(desk, end, "contract-5.001")} <= {"r0", "r1"}

    def test_an_ended_batch_may_be_cancelled_and_stays_as_it_is(self, desk: Desk) -> None:
        batch = desk.backend.create(order_of(desk, "contract-6.001", 1))
        ended(desk, batch)
        desk.backend.cancel(batch.id)
        known = desk.backend.retrieve(batch.id)
        assert known is not None
        assert known.status is BatchStatus.COMPLETED

    def test_a_file_may_be_forgotten_twice(self, desk: Desk) -> None:
        order = order_of(desk, "contract-7.001", 1)
        for _ in range(2):
            desk.backend.forget_file(order.input_file_id)
        assert order.input_file_id not in {file.id for file in desk.backend.files()}

    def test_a_check_makes_no_batch_and_knows_models(self, desk: Desk) -> None:
        before = {batch.id for batch in desk.backend.batches()}
        found = {check.name: check.ok for check in desk.backend.check([desk.model, "no-such-model"])}
        assert found["batches"]
        assert found[f"model {desk.model}"]
        assert not found["model no-such-model"]
        assert {batch.id for batch in desk.backend.batches()} == before

    def test_an_account_has_one_name_without_its_key(self, desk: Desk) -> None:
        account = desk.backend.account()
        assert desk.key not in account
        assert desk.backend.account() == account


class PaidOnceContract:
    """Tests for providers that may lose a response: the batch is found, and is not created twice."""

    def test_the_batch_of_a_lost_create_is_found(self, desk: LossyDesk) -> None:
        before = desk.now()
        order = order_of(desk, "lost-1.001", 2)
        desk.lose_next_create()
        try:
            desk.backend.create(order)
        except Uncertain:
            pass
        else:
            raise AssertionError("create() must raise Uncertain if the provider's response is lost")
        [batch] = list(desk.backend.batches())
        sighting = desk.backend.find(intent_of(desk, order, before))
        assert sighting.batch is not None or sighting.undecided is not None
        ended(desk, batch)
        found = desk.backend.find(intent_of(desk, order, before))
        assert found.batch is not None
        assert (found.batch.id, found.undecided, found.doubles) == (batch.id, None, ())
