"""Mistral's batch jobs, where they are otherwise than OpenAI's batches: lines, pages, words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends import Backend, BatchOrder, RemoteBatch
from orchestrator.backends.mistral import PACKAGE
from orchestrator.backends.mistral.settings import MistralBackend
from orchestrator.backends.package import BackendAccess
from orchestrator.core.errors import AccountError, BackendRefused, InputError
from tests.emulator.client import Emulator
from tests.emulator.clock import START

CHAT = "/v1/chat/completions"
MODEL = "mistral-small-latest"
KEY = "mistral-secret-0123456789"
SPACED = '{"custom_id" : "r1",  "method": "POST", "url": "%s", "body": {"model": "%s",  "messages": []}}'


@pytest.fixture
def backend(emulator: Emulator) -> Iterator[Backend]:
    emulator.reset(1)
    settings = MistralBackend(kind="mistral", base_url=emulator.url_of("mistral"), api_key_env="K")
    opened = PACKAGE.open(settings, BackendAccess("mistral", KEY))
    yield opened
    opened.close()


def written(folder: Path, *lines: str) -> Path:
    path = folder / "shard.input.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def plain(number: int) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"Say {number}: \u2028 é"}]}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": body}, ensure_ascii=False)


def sent(backend: Backend, path: Path, shard: str = "it-1.001", rows: int = 1) -> RemoteBatch:
    return backend.create(
        BatchOrder(shard, backend.upload(path, f"{shard}.jsonl"), CHAT, 86_400, rows, "home", MODEL)
    )


def test_lines_are_recognised_though_they_are_kept_in_another_form(backend: Backend, tmp_path: Path) -> None:
    lines = [plain(0), SPACED % (CHAT, MODEL)]
    batch = sent(backend, written(tmp_path, *lines), rows=2)
    ours = [backend.sent_line(f"{line}\n".encode()) for line in lines]
    assert backend.input_lines(batch) == {digest: [name] for name, digest in ours}
    assert backend.sent_line(plain(2).encode())[1] not in (backend.input_lines(batch) or ())
    assert backend.input_ids(batch) == {"r0", "r1"}
    assert [path.name for path in tmp_path.iterdir()] == ["shard.input.jsonl"]


def test_a_line_that_is_no_request_is_named_and_nothing_is_sent(backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a request") as caught:
        backend.upload(written(tmp_path, plain(0), '{"custom_id": "r1"}'), "it.jsonl")
    assert caught.value.line == 2
    assert list(backend.files()) == []


@pytest.mark.long
def test_every_page_of_jobs_and_of_input_files_is_read(backend: Backend, emulator: Emulator, tmp_path: Path) -> None:
    path = written(tmp_path, plain(0))
    ids = [sent(backend, path, f"it-1.{number:03d}").id for number in range(102)]
    emulator.clock.advance(3600.0)
    assert [batch.id for batch in backend.batches()] == ids[::-1]
    assert len({file.id for file in backend.files()}) == 102
    assert {file.name for file in backend.files()} == {f"it-1.{number:03d}.jsonl" for number in range(102)}
    tagged = backend.tagged(START)
    assert tagged is not None
    assert {batch.shard for batch in tagged} == {f"it-1.{number:03d}" for number in range(102)}


def test_refusals_are_told_in_mistrals_words_and_without_the_key(
    backend: Backend, emulator: Emulator, tmp_path: Path
) -> None:
    emulator.settings(models=[MODEL])
    path = written(tmp_path, plain(0))
    with pytest.raises(BackendRefused, match="Invalid model: nobody"):
        backend.create(BatchOrder("it-1.001", backend.upload(path, "it.jsonl"), CHAT, 86_400, 1, "home", "nobody"))
    with pytest.raises(BackendRefused, match="not found"):
        backend.create(BatchOrder("it-1.001", "00000000-0000", CHAT, 86_400, 1, "home", MODEL))
    emulator.settings(accounts={"another": "org"})
    with pytest.raises(AccountError) as caught:
        list(backend.batches())
    assert KEY not in str(caught.value)
    assert [(check.name, check.ok) for check in backend.check([MODEL])] == [("batches", False)]


def test_one_row_is_asked_at_the_synchronous_endpoint(backend: Backend, emulator: Emulator) -> None:
    answer = backend.ask(CHAT, plain(0).encode())
    assert answer.status == 200
    assert backend.lists_model(MODEL)
    emulator.script({"do": "status", "status": 400, "message": "no", "match": {"verb": "chat"}})
    refused = backend.ask(CHAT, plain(0).encode())
    assert (refused.status, refused.error and refused.error.message) == (400, "no")


def test_rows_that_a_timeout_left_are_in_no_file(backend: Backend, emulator: Emulator, tmp_path: Path) -> None:
    emulator.script({"do": "expires", "share": 0.5})
    batch = sent(backend, written(tmp_path, *map(plain, range(4))), rows=4)
    emulator.clock.advance(2 * 86_400.0)
    ended = backend.retrieve(batch.id)
    assert ended is not None
    assert (ended.status, ended.completed, ended.error_file_id) == ("expired", 2, None)
    assert ended.over_at is not None
