"""`orch up --webhooks` as its users have it, before an emulated provider whose batches are looked at once an hour."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.emulator.client import Emulator
from tests.support.batchapi import jsonl, row
from tests.support.cli import CONFIG, Orch
from tests.support.process import PATIENCE, wait_until
from tests.support.signing import SECRET, deliver, event, signed, tell

KEY = "sk-webhooks-0123456789"
ENV = {"CLOUD_API_KEY": KEY, "CLOUD_WEBHOOK_SECRET": SECRET}
BEFORE_THE_NEXT_LOOK = 2400.0
"""Seconds: a batch of the emulator is over by then, and the next look by the clock comes after 2,880 at the least."""


def write(orch: Orch, base_url: str = "http://127.0.0.1:9/v1", more: str = "", kind: str = "openai") -> None:
    profile = 'profile = "openai"\n' if kind == "openai" else ""
    (orch.home / CONFIG).write_text(
        f'[backends.cloud]\nkind = "{kind}"\nbase_url = "{base_url}"\n{profile}'
        f'api_key_env = "CLOUD_API_KEY"\npoll_seconds = 3600\n{more}'
        "[prices.test-model]\ninput = 1\noutput = 2\nbatch = {input = 0.5, output = 1}\n",
        encoding="utf-8",
    )


@dataclass
class Night:
    """A daemon that takes webhooks, before a provider whose clock only the test moves."""

    orch: Orch
    emulator: Emulator
    folder: Path
    env: dict[str, str]
    daemon: subprocess.Popen[bytes]
    url: str
    batches: list[str] = field(default_factory=list)

    def submit(self) -> str:
        """A job whose batch has been made and looked at once; its id."""
        path = self.folder / f"rows-{len(self.batches)}.jsonl"
        path.write_bytes(jsonl([row(f"a{len(self.batches)}")]))
        polls = self.polls()
        ran = self.orch("submit", str(path), "--backend", "cloud", "--json", env=self.env)
        job = str(json.loads(ran.stdout)["job"])
        wait_until(lambda: self.polls() == polls + 1)
        self.batches.append(self.emulator.state()["batches"][-1]["id"])
        return job

    def polls(self) -> int:
        """How often the daemon has looked at a batch."""
        return self.emulator.calls("retrieve").get(200, 0)

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.orch("status", job, "--json", env=self.env).stdout)
        return found

    def stop(self) -> str:
        """What the daemon has said, once it has ended well."""
        self.daemon.send_signal(signal.SIGTERM)
        assert self.daemon.wait(PATIENCE) == 0
        return self.orch.output(self.daemon)


@pytest.fixture
def night(request: pytest.FixtureRequest, run_orch: Orch, tmp_path: Path) -> Iterator[Night]:
    kind = getattr(request, "param", "openai")
    with Emulator(tmp_path / "provider") as emulator:
        write(
            run_orch,
            emulator.url_openai if kind == "openai" else emulator.url_of(kind),
            'webhook_secret_env = "CLOUD_WEBHOOK_SECRET"\n',
            kind,
        )
        env = ENV | emulator.environment
        daemon = run_orch.start("up", "--webhooks", "127.0.0.1:0", env=env)

        def announced() -> str | None:
            said = run_orch.output(daemon)
            assert daemon.poll() is None, said
            found = re.search(
                r"^orch: accepting webhooks of cloud at (http://127\.0\.0\.1:\d+/webhooks/cloud)$", said, re.M
            )
            return found and found[1]

        yield Night(run_orch, emulator, tmp_path, env, daemon, wait_until(announced))


@pytest.mark.long
@pytest.mark.parametrize(
    ("night", "event_type"), [("openai", "batch.completed"), ("gemini", "batch.succeeded")], indirect=["night"]
)
def test_a_signed_event_ends_a_job_that_the_clock_would_not(night: Night, event_type: str) -> None:
    first = night.submit()
    night.emulator.clock.advance(BEFORE_THE_NEXT_LOOK)
    night.submit()
    # The daemon has been through its jobs, this one first: its batch is over, and nobody has looked.
    assert night.polls() == 2
    assert night.status(first)["state"] == "running"
    # The examples of Gemini's events have ids without `batches/`.
    assert tell(night.url, event_type, night.batches[0].rpartition("/")[2]) == 200
    wait_until(lambda: night.status(first)["state"] == "completed")
    assert night.polls() == 3, "one look, and none at the other batch"
    said = night.stop()
    assert re.search(rf"^orch: {first}: completed, 1/1 row", said, re.M)


@pytest.mark.soak  # `make test` has it in unit/test_provider_webhooks
def test_what_is_forged_old_unknown_or_untrue_ends_nothing(night: Night) -> None:
    job = night.submit()
    [batch] = night.batches
    body = event("batch.completed", batch)
    assert deliver(night.url, body, signed(body, "whsec_AAAA")) == (400, b"")
    assert deliver(night.url, body, signed(body, age=301)) == (400, b"")
    assert deliver(night.url, body, {}) == (400, b"")
    assert deliver(night.url.replace("cloud", "other"), body, signed(body)) == (404, b"")
    assert tell(night.url, "batch.completed", "batch_of_somebody_else") == 200
    night.submit()
    assert night.polls() == 2, "each batch once, when it was made"
    # A signed event whose word is not true, as a replay of an earlier one's would be: one look, whatever it says.
    headers = signed(body)
    assert deliver(night.url, body, headers) == (200, b"")
    wait_until(lambda: night.polls() == 3)
    assert deliver(night.url, body, headers) == (200, b"")
    night.submit()
    assert night.polls() == 4, "the replay has brought none"
    assert night.status(job)["state"] == "running"
    said = night.stop()
    log = (night.orch.home / "engine.log").read_text()
    assert "a webhook for cloud was rejected: Webhook timestamp is too old" in log
    assert f"cloud reports batch.completed of batch {batch}" in log
    assert "Traceback" not in log
    for secret in (KEY, SECRET, SECRET.removeprefix("whsec_"), headers["webhook-signature"]):
        assert secret not in said + log


@pytest.mark.long
def test_the_daemon_ends_though_a_client_does_not(night: Night) -> None:
    parts = urlsplit(night.url)
    address = (parts.hostname or "", parts.port or 0)
    with socket.create_connection(address) as client:
        client.sendall(b"POST /webhooks/cloud HTTP/1.1\r\nhost: orch\r\ncontent-length: 9\r\n\r\n{")
        assert tell(night.url, "batch.completed", "batch_of_somebody_else") == 200
        said = night.stop()
    assert said.endswith("orch: stopped; nothing is lost\n")
    with socket.socket() as client:
        assert client.connect_ex(address) != 0


NAMED = 'webhook_secret_env = "CLOUD_WEBHOOK_SECRET"\n'
USAGE = {
    "no backend has a secret": ("", ENV, "127.0.0.1:0", "no backend has a webhook secret"),
    "its variable is not set": (NAMED, {}, "127.0.0.1:0", "the environment variable CLOUD_WEBHOOK_SECRET is not set"),
    "no address": (NAMED, ENV, "8090", "'8090' is not an address such as 127.0.0.1:8090"),
    "a host that leads nowhere": (NAMED, ENV, "no such host:8090", "no such host is not an address to listen on"),
}


@pytest.mark.parametrize(("named", "env", "address", "message"), USAGE.values(), ids=USAGE)
def test_what_cannot_be_meant_is_said(
    run_orch: Orch, named: str, env: dict[str, str], address: str, message: str
) -> None:
    write(run_orch, more=named)
    ran = run_orch("up", "--webhooks", address, env=env)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert SECRET not in ran.stderr
    assert "is up" not in ran.stderr


def test_a_port_that_is_taken(run_orch: Orch) -> None:
    write(run_orch, more=NAMED)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = run_orch("up", "--webhooks", f"127.0.0.1:{port}", env=ENV)
    assert (ran.returncode, ran.stdout) == (4, "")
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in ran.stderr
    assert "is up" not in ran.stderr


def test_the_help_says_what_it_is(run_orch: Orch) -> None:
    ran = run_orch("up", "--help")
    assert ran.returncode == 0
    assert "--webhooks HOST:PORT Accept providers' webhooks here, at /webhooks/BACKEND." in " ".join(
        ran.stdout.split()
    )
