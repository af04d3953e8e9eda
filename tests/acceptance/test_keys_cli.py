"""`orch keys`: keys made, shown and revoked beside a server that runs."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import httpx2
import pytest

from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.support.cli import Orch, write_config


@pytest.fixture
def orch(run_orch: Orch) -> Orch:
    write_config(run_orch.home)
    return run_orch


def models(socket: Path, secret: str) -> int:
    """The status that a request with this key gets."""
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket))) as http:
        return http.get("http://orch/v1/models", headers={"authorization": f"Bearer {secret}"}).status_code


def listed(orch: Orch, *more: str) -> list[dict[str, object]]:
    shown = orch("keys", "list", "--json", *more)
    assert shown.returncode == 0
    found: list[dict[str, object]] = json.loads(shown.stdout)
    return found


def test_a_key_from_the_command_line_opens_a_running_server_until_it_is_revoked(orch: Orch) -> None:
    folder = orch.home / "serve"
    folder.mkdir()
    with ServerThread(folder, Settings(upstreams=(), require_keys=True)) as server:
        made = orch("keys", "add", "nightly", "--max-rows", "50000", "--max-bytes", "1.5GiB", "--max-calls", "9")
        assert made.returncode == 0
        assert re.fullmatch(r"orch-[A-Za-z0-9_-]{43}\n", made.stdout)
        secret = made.stdout.strip()
        assert secret not in made.stderr
        assert models(server.socket, secret) == 200
        (key,) = listed(orch)
        assert key["limits"] == {
            "max_rows": 50_000, "max_bytes": 1_610_612_736, "max_batches": None, "max_queued_rows": None,
            "max_calls": 9,
        }  # fmt: skip
        assert (key["tenant"], key["hint"], key["revoked_at"]) == ("nightly", secret[-4:], None)
        assert orch("keys", "revoke", str(key["id"])).returncode == 0
        assert models(server.socket, secret) == 401
    revoked_at = str(listed(orch)[0]["revoked_at"])
    assert datetime.fromisoformat(revoked_at) >= datetime.fromisoformat(str(key["created_at"]))


def test_the_list_shows_no_secret(orch: Orch) -> None:
    secrets = [orch("keys", "add", name, "--max-batches", "3").stdout.strip() for name in ("one", "two")]
    shown = orch("keys", "list")
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["id", "name", "key", "created", "state", "right", "limits"]
    for line, name, secret in zip(lines[1:], ("one", "two"), secrets, strict=True):
        assert re.match(rf"key_\w+  {name}   …{re.escape(secret[-4:])}  .*  valid  batch  max_batches 3$", line)
    assert not [secret for secret in secrets if secret in shown.stdout + shown.stderr]


def test_a_folder_of_its_own(orch: Orch, tmp_path: Path) -> None:
    folder = str(tmp_path / "not" / "yet")
    assert orch("keys", "add", "nightly", "--dir", folder).returncode == 0
    assert [key["tenant"] for key in listed(orch, "--dir", folder)] == ["nightly"]
    assert listed(orch) == []
    assert not (orch.home / "serve").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("revoke", "key_0000000000000000"),
        ("revoke",),
        ("add",),
        ("add", "two words"),
        ("add", "nightly", "--max-bytes", "1XB"),
        ("add", "nightly", "--max-bytes", "1.5"),
        ("add", "nightly", "--max-rows", "0"),
        ("add", "nightly", "--max-batches", "9" * 30),
        ("forget", "nightly"),
    ],
)
@pytest.mark.parametrize("begun", [False, True], ids=["no server yet", "keys there"])
def test_what_cannot_be_meant_is_a_usage_error(orch: Orch, begun: bool, arguments: tuple[str, ...]) -> None:
    if begun:
        orch("keys", "add", "nightly")
    before = listed(orch)
    refused = orch("keys", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Traceback" not in refused.stderr
    assert listed(orch) == before


def test_a_folder_that_cannot_be_made_is_a_storage_error(orch: Orch) -> None:
    (orch.home / "file").write_text("")
    refused = orch("keys", "add", "nightly", "--dir", str(orch.home / "file" / "in"))
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "cannot be created" in refused.stderr
