"""API keys and tenants, asked by the official SDK: who gets in, what each sees, and how much each may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from orchestrator.server.app import build
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.in_process import ServerThread
from orchestrator.server.keys import KeyLimits, KeyRight, Keys
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings
from tests.support.batchapi import CHAT, Sdk, create, ended, jsonl, retrieve, row, run_batch, sdk_at, upload
from tests.support.plain_http import NO_TLS
from tests.support.process import Upstream, upstreams, wait_until

QUEUE = 40
ROUTES = [
    (method, route.path)
    for route in build(Service(Path("unused"), Settings(upstreams=()))).routes
    for method in sorted(getattr(route, "methods", None) or ())
    if method != "HEAD"
]
WITH_IDS = [(method, path) for method, path in ROUTES if re.search(r"\{\w+_id\b", path)]


@dataclass(frozen=True)
class Guarded:
    """A server that asks for keys, and its keys as another process reaches them."""

    socket: Path
    folder: Path
    keys: Keys
    kind: str

    @contextmanager
    def client(self, name: str, limits: KeyLimits | None = None) -> Iterator[Sdk]:
        """A client with a new key of this tenant, which does not try again by itself."""
        _, secret = self.keys.add(name, limits or KeyLimits())
        with self.with_key(secret) as sdk:
            yield sdk

    @contextmanager
    def with_key(self, secret: str) -> Iterator[Sdk]:
        with sdk_at(self.socket, self.kind, secret) as sdk:
            sdk.client.max_retries = 0
            sdk.raw.headers["authorization"] = f"Bearer {secret}"
            yield sdk


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with upstreams(tmp_path_factory.mktemp("upstream")) as make:
        yield make(model=["test-model"], max_model_len=2000)


@pytest.fixture(scope="module", params=["sync", "async"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    settings = Settings(
        upstreams=(upstream.base_url,), require_keys=True, max_queued_rows=QUEUE, max_file_bytes=100_000
    )
    with ServerThread(folder, settings) as server:
        database = ServerDatabase(folder / FILE_NAME)
        yield Guarded(server.socket, folder, Keys(database), request.param)
        database.close()


@pytest.fixture
def anna(guarded: Guarded) -> Iterator[Sdk]:
    with guarded.client("anna") as sdk:
        yield sdk


@pytest.fixture
def bert(guarded: Guarded) -> Iterator[Sdk]:
    with guarded.client("bert") as sdk:
        yield sdk


@contextmanager
def hanging(sdk: Sdk, rows: int = 1) -> Iterator[Any]:
    """A batch that is in progress, and cancelled behind the block."""
    batch = create(sdk, [row(f"hangs-{number}", "[[fault:hang]]") for number in range(rows)])
    wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
    try:
        yield batch
    finally:
        sdk(lambda api: api.batches.cancel(batch.id))
        ended(sdk, batch.id)


def test_a_key_opens_the_whole_way(anna: Sdk) -> None:
    run_batch(anna, [row("a"), row("b")]).check(["a", "b"])


@pytest.mark.parametrize("size", [100, 20_000_000], ids=["small", "large"])
def test_a_wrong_key_is_an_authentication_error(guarded: Guarded, size: int) -> None:
    secret = "sk-proj-a-key-for-another-place-3f9Q"
    with guarded.with_key(secret) as sdk:
        error = sdk.refused(lambda api: api.files.create(file=("in.jsonl", b"x" * size), purpose="batch"))
    assert isinstance(error, openai.AuthenticationError)
    assert (error.code, error.type, error.param) == ("invalid_api_key", "invalid_request_error", None)
    assert error.request_id
    assert re.search(r"\*{4,}3f9Q\b", error.message)
    assert secret[:-4] not in error.message
    assert secret[-5:] not in error.message


@pytest.mark.parametrize("right", [KeyRight.VIEW, KeyRight.OPERATE])
def test_a_key_for_the_pages_does_not_open_the_server(guarded: Guarded, right: KeyRight) -> None:
    _, secret = guarded.keys.add("anna", right=right)
    with guarded.with_key(secret) as sdk:
        assert isinstance(sdk.refused(lambda api: api.files.list()), openai.AuthenticationError)


def test_nothing_of_a_short_key_is_shown(guarded: Guarded) -> None:
    with guarded.with_key("Passw0rd") as sdk:
        error = sdk.refused(lambda api: api.models.list())
    assert isinstance(error, openai.AuthenticationError)
    assert "Passw0rd"[-2:] not in error.message


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_key_only_the_state_of_the_server_is_told(anna: Sdk, method: str, path: str) -> None:
    answer = anna.raw.request(method, path, headers={"authorization": ""})
    if path.startswith("/v1/"):
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["x-request-id"]
        assert answer.headers["www-authenticate"] == "Bearer"
    else:
        assert (answer.status_code != 401) == (path in ("/health", "/ready", "/metrics"))


@pytest.mark.parametrize("path", ["/health/", "/health/../v1/models", "//v1/models", "/V1/models", "/v1", "/nowhere"])
def test_what_only_looks_like_an_open_path_is_none(guarded: Guarded, path: str) -> None:
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(guarded.socket), verify=NO_TLS)) as http:
        assert http.get(f"http://orch{path}").status_code == 401


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer {}"),
        ("authorization", "bearer  {}"),
        ("api-key", "{}"),
        ("Authorization", "Basic {}"),
        ("Authorization", "{}"),
        ("Authorization", "Bearer {}x"),
        ("x-key", "{}"),
    ],
)
def test_where_the_key_stands(guarded: Guarded, name: str, value: str) -> None:
    _, secret = guarded.keys.add("anna")
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(guarded.socket), verify=NO_TLS)) as http:
        answer = http.get("http://orch/v1/models", headers={name: value.format(secret)})
    right = name == "api-key" or value.lower().split() == ["bearer", "{}"]
    assert answer.status_code == (200 if right else 401)


def test_where_no_keys_are_asked_for_any_key_is_the_same(tmp_path: Path) -> None:
    with ServerThread(tmp_path, Settings(upstreams=())) as server, ExitStack() as stack:
        one, other = (stack.enter_context(sdk_at(server.socket, api_key=key)) for key in ("orch-1", "orch-2"))
        file_id = upload(one, [row("a")])
        assert [file.id for file in other.every(lambda api: api.files.list())] == [file_id]


def test_a_revoked_key_is_refused_with_the_next_request(guarded: Guarded, anna: Sdk) -> None:
    key, secret = guarded.keys.add("anna")
    with guarded.with_key(secret) as sdk:
        file_id = upload(sdk, [row("a")])
        guarded.keys.revoke(key.id)
        error = sdk.refused(lambda api: api.files.retrieve(file_id))
    assert isinstance(error, openai.AuthenticationError)
    assert anna(lambda api: api.files.retrieve(file_id)).id == file_id


def test_no_secret_is_on_the_disk(guarded: Guarded) -> None:
    _, secret = guarded.keys.add("anna")
    with guarded.with_key(secret) as sdk:
        run_batch(sdk, [row("a")])
    written = b"".join(path.read_bytes() for path in guarded.folder.rglob("*") if path.is_file())
    assert b'"custom_id": "a"' in written
    assert secret.encode() not in written


def test_two_keys_of_a_tenant_open_the_same_files(guarded: Guarded, anna: Sdk) -> None:
    file_id = upload(anna, [row("a")])
    with guarded.client("anna") as again:
        assert again(lambda api: api.files.retrieve(file_id)).id == file_id


def test_lists_show_only_what_is_ones_own(anna: Sdk, bert: Sdk) -> None:
    of_anna = run_batch(anna, [row("a")]).batch
    of_bert = run_batch(bert, [row("b")]).batch
    for sdk, own, other in ((anna, of_anna, of_bert), (bert, of_bert, of_anna)):
        batches = {batch.id for batch in sdk.every(lambda api: api.batches.list(limit=1))}
        files = {file.id for file in sdk.every(lambda api: api.files.list(limit=1))}
        assert own.id in batches
        assert {own.input_file_id, own.output_file_id} <= files
        assert other.id not in batches
        assert not {other.input_file_id, other.output_file_id} & files


def test_anothers_id_is_no_place_in_a_list(anna: Sdk, bert: Sdk) -> None:
    batch = run_batch(bert, [row("b")]).batch
    ghost = "file-000000000000000000000000"
    for path, foreign in (("/v1/files", batch.input_file_id), ("/v1/batches", batch.id)):
        answers = [
            anna.raw.get(path, params={"after": after}).text.replace(after, "ID") for after in (foreign, ghost)
        ]
        assert answers[0] == answers[1]
        assert "file" in anna.raw.get(path).text


@pytest.fixture
def owned(guarded: Guarded) -> Iterator[dict[str, str]]:
    """One of everything that has an id, of a third tenant; the batch is in progress."""
    with guarded.client("owner") as sdk, hanging(sdk) as batch:
        ids = {"file_id": batch.input_file_id, "batch_id": batch.id}
        if ("POST", "/v1/uploads") in ROUTES:
            wanted = {"bytes": 1, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}
            ids["upload_id"] = sdk.raw.post("/v1/uploads", json=wanted).json()["id"]
        yield ids
        assert sdk(lambda api: api.files.retrieve(batch.input_file_id)).id == batch.input_file_id
        assert retrieve(sdk, batch.id).status == "in_progress"
        if "upload_id" in ids:
            assert sdk.raw.post(f"/v1/uploads/{ids['upload_id']}/cancel").json()["status"] == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), WITH_IDS)
def test_anothers_id_answers_as_one_that_never_was(anna: Sdk, owned: dict[str, str], method: str, path: str) -> None:
    found = re.search(r"\{(\w+_id)\b", path)
    assert found is not None
    real = owned[found[1]]
    prefix, separator, rest = real.partition("_" if "_" in real else "-")
    ghost = prefix + separator + "0" * len(rest)
    body: dict[str, Any] = {}
    if method == "POST":
        body = {"files": {"data": b"x"}} if path.endswith("/parts") else {"json": {"part_ids": ["part_1"]}}
    answers = []
    for number in (real, ghost):
        url = re.sub(r"\{\w+(:\w+)?\}", "output", path.replace(found[0], "{").replace("{}", number))
        answer = anna.raw.request(method, url, **body)
        assert answer.status_code == 404
        headers = {name: text for name, text in answer.headers.items() if name not in ("x-request-id", "date")}
        answers.append((answer.content.replace(number.encode(), b"ID"), headers))
    assert answers[0] == answers[1]


def test_anothers_input_file_is_no_file(anna: Sdk, bert: Sdk) -> None:
    foreign, ghost = upload(bert, [row("b")]), "file-000000000000000000000000"
    failed = []
    for file_id in (foreign, ghost):
        batch = anna(
            lambda api, file_id=file_id: api.batches.create(
                input_file_id=file_id, endpoint=CHAT, completion_window="24h"
            )
        )
        batch = ended(anna, batch.id).batch
        assert batch.status == "failed"
        failed.append(batch.errors.to_json().replace(file_id, "ID"))
    assert failed[0] == failed[1]


def test_files_beyond_the_keys_bytes_are_refused_until_some_are_deleted(guarded: Guarded) -> None:
    with guarded.client("bytes", KeyLimits(max_bytes=1000)) as sdk:
        first = sdk(lambda api: api.files.create(file=("a.jsonl", b"x" * 600), purpose="batch"))
        on_disk = set((guarded.folder / "files").iterdir())
        for size in (401, 50_000):
            error = sdk.refused(lambda api, size=size: api.files.create(file=("a", b"x" * size), purpose="user_data"))
            assert (error.status_code, error.code) == (413, "storage_limit_exceeded")
            assert "1,000 bytes in all" in error.message
            assert "400 of them are free" in error.message
        assert set((guarded.folder / "files").iterdir()) == on_disk
        sdk(lambda api: api.files.create(file=("b.jsonl", b"x" * 400), purpose="batch"))
        sdk(lambda api: api.files.delete(first.id))
        sdk(lambda api: api.files.create(file=("c.jsonl", b"x" * 600), purpose="batch"))


def test_uploads_at_the_same_time_have_no_more_room_than_one(guarded: Guarded) -> None:
    with guarded.client("both", KeyLimits(max_bytes=1000)) as sdk:

        def body() -> Iterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + b"x" * 300
            sdk(lambda api: api.files.create(file=("b.jsonl", b"x" * 600), purpose="batch"))
            yield b"x" * 300 + b"\r\n--b--\r\n"

        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = sdk.raw.post("/v1/files", content=body(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "storage_limit_exceeded")
        assert [file.bytes for file in sdk.every(lambda api: api.files.list())] == [600]


def test_results_count_as_stored(guarded: Guarded) -> None:
    line = row("a")
    size = len(jsonl([line]))
    with guarded.client("results", KeyLimits(max_bytes=2 * size)) as sdk:
        run_batch(sdk, [line])
        assert sdk.refused(lambda api: upload(sdk, [line])).status_code == 413


def test_a_file_above_the_servers_limit_is_told_that(guarded: Guarded) -> None:
    with guarded.client("large", KeyLimits(max_bytes=10**9)) as sdk:
        error = sdk.refused(lambda api: api.files.create(file=("a.jsonl", b"x" * 100_001), purpose="batch"))
    assert (error.status_code, error.code) == (413, None)
    assert "100000" in error.message.replace(",", "")


def refused_for_now(call: Callable[[], Any]) -> str:
    """The message of a 429 that says when to come again."""
    with pytest.raises(openai.RateLimitError) as caught:
        call()
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 120
    return caught.value.message


def test_too_many_unfinished_batches_wait_for_one_to_end(guarded: Guarded) -> None:
    limits = KeyLimits(max_batches=2)
    with guarded.client("batches", limits) as sdk, guarded.client("other", limits) as other, hanging(sdk):
        with hanging(sdk):
            assert "2 unfinished batches" in refused_for_now(lambda: create(sdk, [row("a")]))
            run_batch(other, [row("a")]).check(["a"])
        run_batch(sdk, [row("a")]).check(["a"])


def test_too_many_waiting_rows_of_a_key(guarded: Guarded) -> None:
    limits = KeyLimits(max_queued_rows=3)
    with guarded.client("rows", limits) as sdk, guarded.client("other", limits) as other, hanging(sdk, 2):
        with hanging(sdk, 2):
            assert "4 rows of your batches wait" in refused_for_now(lambda: create(sdk, [row("a")]))
            run_batch(other, [row("a")]).check(["a"])
        run_batch(sdk, [row("a")]).check(["a"])


def test_a_full_queue_refuses_everybody(guarded: Guarded, anna: Sdk, bert: Sdk) -> None:
    with hanging(anna, QUEUE - 1):
        run_batch(bert, [row("a")]).check(["a"])
        with hanging(bert):
            for sdk in (anna, bert):
                message = refused_for_now(lambda sdk=sdk: create(sdk, [row("a")]))
                assert f" {QUEUE} rows wait at this server" in message
        run_batch(bert, [row("b")]).check(["b"])
    run_batch(bert, [row("a")]).check(["a"])


def test_more_rows_than_the_key_allows_fail_the_batch(guarded: Guarded, anna: Sdk) -> None:
    lines = [row(f"r{number}") for number in range(3)]
    with guarded.client("short", KeyLimits(max_rows=2)) as sdk:
        batch = run_batch(sdk, lines).batch
        assert batch.status == "failed"
        assert [(error.code, error.line) for error in batch.errors.data] == [("too_many_tasks", None)]
        assert "3 rows; at most 2" in batch.errors.data[0].message
        run_batch(sdk, lines[:2]).check(["r0", "r1"])
    run_batch(anna, lines).check(["r0", "r1", "r2"])
