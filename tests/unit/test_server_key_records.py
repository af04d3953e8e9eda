"""What the server's database keeps of keys and tenants, and what it refuses to keep."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from orchestrator.core.batch_api import File, Upload, UploadPart, UploadStatus
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.server.api.access import Access
from orchestrator.server.database import FILE_NAME, SCHEMA, ServerDatabase
from orchestrator.server.keys import KeyLimits, Keys
from orchestrator.server.records import Records
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings
from orchestrator.server.uploads import UploadRecord, Uploads


@pytest.fixture
def database(tmp_path: Path) -> ServerDatabase:
    return ServerDatabase(tmp_path / FILE_NAME)


def file_of(number: int, size: int) -> File:
    return File(f"file-{number}", size, 1, "a.jsonl", "batch", None)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_nobody_else_reads_the_database(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        Keys(ServerDatabase(tmp_path / FILE_NAME)).add("nightly")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes) >= {FILE_NAME, f"{FILE_NAME}-wal"}
    assert set(modes.values()) == {0o600}


def test_a_database_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        ServerDatabase(tmp_path / "nowhere" / FILE_NAME)


def test_a_key_is_found_by_its_secret_until_it_is_revoked(database: ServerDatabase) -> None:
    keys = Keys(database)
    limits = KeyLimits(max_rows=5, max_bytes=2**40)
    key, secret = keys.add("nightly", limits)
    other, _ = keys.add("nightly")
    assert keys.find(secret.encode()) == key
    assert (key.tenant, key.limits, key.hint, key.revoked_at) == ("nightly", limits, secret[-4:], None)
    assert keys.find(secret[:-1].encode()) is None
    revoked = keys.revoke(key.id)
    assert revoked.revoked_at is not None
    assert keys.find(secret.encode()) is None
    assert keys.revoke(key.id) == revoked
    assert keys.all() == [revoked, other]


def test_secrets_are_long_and_never_the_same(database: ServerDatabase) -> None:
    secrets = {Keys(database).add("nightly")[1] for _ in range(50)}
    assert len(secrets) == 50
    assert all(secret.startswith("orch-") and len(secret) == 48 for secret in secrets)


@given(st.binary(max_size=100))
def test_no_guess_opens_anything(tmp_path: Path, guess: bytes) -> None:
    database = ServerDatabase(tmp_path / FILE_NAME)
    keys = Keys(database)
    keys.add("nightly")
    assert keys.find(guess) is None
    database.close()


def test_another_process_sees_keys_at_once(database: ServerDatabase) -> None:
    serving, telling = Keys(database), Keys(ServerDatabase(database.path))
    key, secret = telling.add("nightly")
    assert serving.find(secret.encode()) == key
    telling.revoke(key.id)
    assert serving.find(secret.encode()) is None


@pytest.mark.parametrize("name", ["", "a b", "../x", ".x", "a\n", "a/b", "é", "n" * 65])
def test_a_tenant_has_a_plain_name(database: ServerDatabase, name: str) -> None:
    with pytest.raises(UsageError):
        Keys(database).add(name)
    assert Keys(database).all() == []


def test_stored_bytes_are_those_of_the_tenants_files_and_upload_parts(
    database: ServerDatabase, tmp_path: Path
) -> None:
    records = Records(database)
    for number, (tenant, size) in enumerate([("a", 10), ("a", 300), ("b", 7)]):
        records.add_file(file_of(number, size), f"files/{number}", tenant)
    uploads = Uploads(database, records, tmp_path)
    for tenant, size in (("a", 4000), ("b", 50_000)):
        pending = Upload(
            id=f"upload_{tenant}", bytes=90_000, created_at=1, filename="a", purpose="batch", expires_at=9,
            status=UploadStatus.PENDING,
        )  # fmt: skip
        uploads.add(UploadRecord(pending, tenant, None))
        assert uploads.add_part(UploadPart(f"part_{tenant}", 1, pending.id), size, tmp_path / "part")
    assert [records.stored_bytes(tenant) for tenant in ("a", "b", "c")] == [4310, 50_007, 0]
    records.delete_file("file-1")
    assert records.stored_bytes("a") == 4010


def test_files_of_an_older_database_have_their_bytes(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as old:
        old.executescript(f"{SCHEMA[0]} PRAGMA user_version=1;")
        for number in (1, 2):
            stored = msgspec.json.encode(file_of(number, 100 * number))
            old.execute("INSERT INTO files VALUES (?, ?, 'batch', '', ?)", (f"file-{number}", number, stored))
    old.close()
    assert Records(ServerDatabase(tmp_path / FILE_NAME)).stored_bytes("") == 300


def test_a_database_that_does_not_answer_lets_nobody_in(database: ServerDatabase, tmp_path: Path) -> None:
    service = Service(tmp_path, Settings(upstreams=(), require_keys=True))
    service.keys = Keys(database)
    _, secret = service.keys.add("nightly")
    database.close()
    app = Access(Response("inside"), service)

    async def ask() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://orch") as http:
            return await http.get("/v1/files", headers={"authorization": f"Bearer {secret}"})

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage")
    assert str(tmp_path) not in answer.text
