"""The same client by the same tests: before our own server over HTTP, and before the emulated providers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import BatchOrder, Intent, RemoteBatch
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.openai.profiles import PROFILES
from orchestrator.backends.openai_http import HttpAPI, over_unix_socket
from orchestrator.core.clock import now
from orchestrator.core.errors import BackendRefused
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.contract.conftest import over_tcp
from tests.emulator.client import Emulator
from tests.support.batchapi import CHAT, jsonl, row
from tests.support.plain_http import with_bearer
from tests.support.process import upstreams, wait_until

MODEL = "test-model"
HOUR_A_SECOND = 3600.0
_numbers = count(1)


@dataclass(frozen=True)
class Provider:
    """A Batch API, the client of it, and its time where that is not ours."""

    backend: ApiBatches
    emulator: Emulator | None = None

    def now(self) -> datetime:
        return now() if self.emulator is None else self.emulator.clock.now()

    def ended(self, batch: RemoteBatch) -> RemoteBatch:
        """The batch at its end, with its files."""

        def look() -> RemoteBatch | None:
            found = self.backend.retrieve(batch.id)
            return found if found is not None and found.status.is_final else None

        return wait_until(look)


@pytest.fixture(scope="module", params=["orch", "own", "openai", "azure"])
def provider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    folder = tmp_path_factory.mktemp("provider")
    profile = PROFILES["orch" if request.param == "own" else request.param]

    def client(url: str) -> ApiBatches:
        return ApiBatches("it", HttpAPI(with_bearer(url, "sk-it"), "sk-it"), profile)

    if profile.is_orch:
        with upstreams(folder) as make:
            settings = Settings(upstreams=(make(model=[MODEL]).base_url,), retry_delay=0.02)
            if request.param == "own":
                with ServerThread(folder, settings) as server:
                    backend = ApiBatches("it", over_unix_socket(server.socket), profile)
                    yield Provider(backend)
                    backend.close()
            else:
                with over_tcp(folder, settings) as url:
                    backend = client(f"{url}/v1")
                    yield Provider(backend)
                    backend.close()
        return
    with Emulator(folder, speed=HOUR_A_SECOND) as emulator:
        emulator.settings(models=[MODEL])
        backend = client(emulator.url_azure if request.param == "azure" else emulator.url_openai)
        yield Provider(backend, emulator)
        backend.close()


@pytest.fixture
def shard() -> str:
    return f"letters-1.{next(_numbers):03d}"


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "input.jsonl"
    path.write_bytes(jsonl(lines))
    return path


def made(provider: Provider, folder: Path, shard: str, lines: list[dict[str, Any]]) -> RemoteBatch:
    """A batch of these lines."""
    file_id = provider.backend.upload(write(folder, lines), f"{shard}.jsonl")
    return provider.backend.create(BatchOrder(shard, file_id, CHAT, 86_400, len(lines)))


def read(provider: Provider, file_id: str | None, folder: Path) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    path = folder / f"{file_id}.jsonl"
    provider.backend.download(file_id, path, folder / "input.jsonl")
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def intent(provider: Provider, shard: str, rows: int = 1) -> Intent:
    since = provider.now() - timedelta(minutes=5)
    return Intent(shard, rows, since, Path("input.jsonl"), lambda _: None)


@pytest.mark.slow
def test_a_batch_from_upload_to_the_last_file(provider: Provider, tmp_path: Path, shard: str) -> None:
    lines = [row(f"r{number}") for number in range(8)]
    lines[3] = row("r3", "[[fault:status:400]]")
    batch = made(provider, tmp_path, shard, lines)
    assert (batch.shard, batch.status.is_final) == (shard, False)
    assert batch.created_at is not None
    assert abs(batch.created_at - provider.now()) < timedelta(hours=3)
    end = provider.ended(batch)
    assert (end.status, end.shard, end.problems) == ("completed", shard, ())
    output, errors = (read(provider, file_id, tmp_path) for file_id in (end.output_file_id, end.error_file_id))
    assert sorted(line["custom_id"] for line in output) == ["r0", "r1", "r2", "r4", "r5", "r6", "r7"]
    assert [(line["custom_id"], line["response"]["status_code"]) for line in errors] == [("r3", 400)]
    assert (end.rows, end.completed, end.failed) in [(8, 7, 1), (None, 0, 0)]  # Azure may leave its counts out
    assert end.output_tokens >= 0


def test_find_tells_a_batch_by_our_own_id(provider: Provider, tmp_path: Path, shard: str) -> None:
    assert provider.backend.find(intent(provider, shard)).batch is None
    batch = made(provider, tmp_path, shard, [row("a")])
    seen = provider.backend.find(intent(provider, shard))
    assert seen.batch is not None
    assert (seen.batch.id, seen.undecided) == (batch.id, None)
    assert provider.backend.find(intent(provider, shard + "9")).batch is None
    assert batch.id in [found.id for found in provider.backend.batches()]


@pytest.mark.long
def test_find_reads_as_many_pages_as_it_takes(provider: Provider, tmp_path: Path, shard: str) -> None:
    first = made(provider, tmp_path, shard, [row("a")])
    file_id = provider.backend.upload(tmp_path / "input.jsonl", "other.jsonl")
    others = [provider.backend.create(BatchOrder(f"{shard}.{n}", file_id, CHAT, 86_400, 1)).id for n in range(102)]
    seen = provider.backend.find(intent(provider, shard))
    assert seen.batch is not None
    assert seen.batch.id == first.id
    listed = [found.id for found in provider.backend.batches()]
    assert len(listed) == len(set(listed))
    assert {first.id, *others} <= set(listed)


def test_a_batch_is_cancelled_and_what_it_has_is_there(provider: Provider, tmp_path: Path, shard: str) -> None:
    lines = [row("slow", "[[fault:hang]]" if provider.emulator is None else None), row("b")]
    batch = made(provider, tmp_path, shard, lines)
    provider.backend.cancel(batch.id)
    end = provider.ended(batch)
    assert end.status == "cancelled"
    told = [line for file in (end.output_file_id, end.error_file_id) for line in read(provider, file, tmp_path)]
    assert {line["custom_id"] for line in told} <= {"slow", "b"}


def test_a_file_that_cannot_be_a_batch_is_told_line_by_line(provider: Provider, tmp_path: Path, shard: str) -> None:
    end = provider.ended(made(provider, tmp_path, shard, [row("a"), row("a"), row("b", stream=True)]))
    assert end.status == "failed"
    assert {problem.line for problem in end.problems} == {2, 3}
    assert "duplicate_custom_id" in {problem.code for problem in end.problems}


def test_files_are_listed_and_forgotten(provider: Provider, tmp_path: Path, shard: str) -> None:
    path = write(tmp_path, [row("a")])
    file_id = provider.backend.upload(path, f"{shard}.jsonl")
    again = provider.backend.upload(path, f"{shard}.jsonl")
    # Our own server's list is cheap: what is there is taken. Elsewhere a kill may leave a second copy.
    assert (again == file_id) is (provider.emulator is None)
    [found] = [file for file in provider.backend.files() if file.id == file_id]
    assert (found.name, found.size) == (f"{shard}.jsonl", path.stat().st_size)
    for _ in range(2):
        provider.backend.forget_file(file_id)
    assert file_id not in [file.id for file in provider.backend.files()]
    with pytest.raises(BackendRefused) as refused:
        provider.backend.download(file_id, tmp_path / "gone", path)
    assert refused.value.status == 404
    assert not (tmp_path / "gone").exists()


def test_the_size_of_a_file_is_told(provider: Provider, tmp_path: Path, shard: str) -> None:
    path = write(tmp_path, [row("a")])
    assert provider.backend.size_of(provider.backend.upload(path, f"{shard}.jsonl")) == path.stat().st_size


def test_a_create_that_is_refused_says_why(provider: Provider, tmp_path: Path, shard: str) -> None:
    file_id = provider.backend.upload(write(tmp_path, [row("a")]), f"{shard}.jsonl")
    with pytest.raises(BackendRefused, match="Invalid value: '/v1/wishes'") as refused:
        provider.backend.create(BatchOrder(shard, file_id, "/v1/wishes", 86_400, 1))
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")
    assert provider.backend.find(intent(provider, shard)).batch is None


def test_results_so_far_are_given_by_our_own_server_alone(provider: Provider, tmp_path: Path, shard: str) -> None:
    batch = made(provider, tmp_path, shard, [row("a")])
    provider.ended(batch)
    path = tmp_path / "partial.jsonl"
    assert provider.backend.partial(batch.id, "output", path) is (provider.emulator is None)
    assert path.exists() is (provider.emulator is None)


def test_looking_costs_nothing_and_knows_models(provider: Provider) -> None:
    before = len(list(provider.backend.batches()))
    found = {check.name: check.ok for check in provider.backend.check([MODEL])}
    assert found["batches"]
    assert found[f"model {MODEL}"]
    assert len(list(provider.backend.batches())) == before


def test_an_account_is_told_without_its_key(provider: Provider) -> None:
    account = provider.backend.account()
    assert account.startswith("org:" if provider.emulator else "key:")
    assert "sk-it" not in account
    assert provider.backend.account() == account
