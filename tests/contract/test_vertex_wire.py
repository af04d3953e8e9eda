"""Vertex AI's wire: credentials as google-auth finds them, tokens that end, and the files of a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.backends import Backend, BatchOrder
from orchestrator.backends.package import BackendAccess
from orchestrator.backends.vertex import PACKAGE
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import AccountError, NotSent
from tests.emulator.client import Emulator
from tests.emulator.google_wire import project_of
from tests.support.google import key_file, vertex_settings

EMAIL = "night@project.iam.gserviceaccount.com"
HALF_A_DAY = 12 * 3600.0
MODEL = "gemini-3.8-flash"


@pytest.fixture(autouse=True)
def no_other_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def opened(emulator: Emulator, **more: object) -> Backend:
    return PACKAGE.open(vertex_settings(emulator.url_of("vertex"), EMAIL, **more), BackendAccess("it", ""))


def source_in(folder: Path, rows: int = 2) -> Path:
    path = folder / "wire.001.input.jsonl"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    path.write_text("".join(json.dumps({"custom_id": f"r{n}", "body": body}) + "\n" for n in range(rows)), "utf-8")
    return path


def order_of(backend: Backend, folder: Path) -> BatchOrder:
    key = backend.upload(source_in(folder), "wire.001.jsonl")
    return BatchOrder("wire.001", key, "/v1/chat/completions", 86_400, 2, "home-1", MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["setting", "variable"])
def test_the_key_of_a_service_account_runs_a_job(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    path = key_file(tmp_path, EMAIL, emulator.url_of("vertex"))
    if by == "variable":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    backend = opened(emulator, **({"key_file": str(path)} if by == "setting" else {}))
    assert backend.account() == f"google:{project_of(EMAIL)}/us-central1"
    order = order_of(backend, tmp_path)
    assert backend.upload(source_in(tmp_path), "wire.001.jsonl") == order.input_file_id, "the same file again"
    batch = backend.create(order)
    emulator.clock.advance(HALF_A_DAY)
    ended = backend.retrieve(batch.id)
    assert ended is not None
    assert (ended.status, ended.shard, ended.home) == (BatchStatus.COMPLETED, "wire.001", "home-1")
    assert ended.output_file_id is not None
    assert backend.download(ended.output_file_id, tmp_path / "results", source_in(tmp_path)).cut is None
    lines = [json.loads(line) for line in (tmp_path / "results").read_bytes().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == ["r0", "r1"]
    for file_id in (order.input_file_id, ended.output_file_id):
        backend.forget_file(file_id)
        backend.forget_file(file_id)
    assert [*backend.files()] == []
    backend.close()


def test_a_token_is_asked_for_once_and_again_after_it_was_refused(emulator: Emulator, tmp_path: Path) -> None:
    backend = opened(emulator, key_file=str(key_file(tmp_path, EMAIL, emulator.url_of("vertex"))))
    before = emulator.calls("token").get(200, 0)
    for _ in range(3):
        list(backend.batches())
    assert emulator.calls("token")[200] == before + 1
    emulator.script({"do": "status", "status": 401, "match": {"verb": "list"}})
    with pytest.raises(AccountError, match="invalid authentication credentials"):
        list(backend.batches())
    list(backend.batches())
    assert emulator.calls("token")[200] == before + 2
    backend.close()


def test_credentials_that_are_refused_hold_the_account(emulator: Emulator, tmp_path: Path) -> None:
    path = key_file(tmp_path, "nobody@project.iam.gserviceaccount.com", emulator.url_of("vertex"))
    backend = opened(emulator, key_file=str(path))
    with pytest.raises(AccountError, match=r"Google's credentials cannot be used: .*account not found"):
        backend.upload(source_in(tmp_path), "wire.001.jsonl")
    key_file(tmp_path, EMAIL, emulator.url_of("vertex"))
    assert backend.upload(source_in(tmp_path), "wire.001.jsonl").endswith("/wire.001.jsonl")
    backend.close()


@pytest.mark.parametrize("content", [None, "{", '{"type": "service_account"}'])
def test_credentials_that_are_not_there_or_no_credentials_say_so(
    emulator: Emulator, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content, "utf-8")
    backend = opened(emulator, key_file=str(path))
    with pytest.raises(AccountError, match="Google's credentials cannot be used"):
        list(backend.batches())
    backend.close()


def test_without_any_credentials_a_backend_says_so(emulator: Emulator) -> None:
    backend = opened(emulator)
    with pytest.raises(AccountError, match="credentials were not found"):
        list(backend.batches())
    backend.close()


def test_a_token_that_cannot_be_had_for_now_leaves_a_create_unsent(emulator: Emulator, tmp_path: Path) -> None:
    sender = opened(emulator, key_file=str(key_file(tmp_path, EMAIL, emulator.url_of("vertex"))))
    order = order_of(sender, tmp_path)
    sender.close()
    path = key_file(tmp_path, EMAIL, "http://127.0.0.1:9")
    backend = opened(emulator, key_file=str(path))
    with pytest.raises(NotSent, match="no access token"):
        backend.create(order)
    backend.close()


def test_a_bucket_that_is_not_there_is_a_matter_of_settings(emulator: Emulator, tmp_path: Path) -> None:
    path = str(key_file(tmp_path, EMAIL, emulator.url_of("vertex")))
    backend = opened(emulator, key_file=path, bucket="no-such-bucket")
    with pytest.raises(AccountError, match="bucket does not exist"):
        backend.upload(source_in(tmp_path), "wire.001.jsonl")
    checks = {one.name: one.ok for one in backend.check([])}
    assert (checks["batches"], checks["bucket"]) == (True, False)
    backend.close()
