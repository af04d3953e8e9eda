"""`orch serve` as its users have it: a process, the official SDK, kills and stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.batchapi import create, ended, health, row, run_batch, sdk_at
from tests.support.cli import Orch, kill_group
from tests.support.limits import prefix
from tests.support.process import PATIENCE, Upstream, wait_until
from tests.support.serving import serve, url_of

# A script that knows nothing of orch: what it talks to is in its environment.
EXISTING_SCRIPT = """
import json, time
from openai import OpenAI
client = OpenAI()
body = {"model": "test-model", "messages": [{"role": "user", "content": "hello"}]}
rows = [{"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(20)]
file = client.files.create(file=("rows.jsonl", "\\n".join(map(json.dumps, rows)).encode()), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.05)
    batch = client.batches.retrieve(batch.id)
lines = client.files.content(batch.output_file_id).iter_lines()
print(batch.status, sorted(json.loads(line)["custom_id"] for line in lines))
"""


@pytest.fixture(autouse=True)
def no_settings(orch_home: Path) -> None:
    """`orch serve` needs no orch.toml; an empty one keeps a developer's own out of the tests."""
    (orch_home / "orch.toml").touch()


def script_env(url: str, key: str = "none-needed") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**kept, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}


def run_script(url: str, key: str = "none-needed") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", EXISTING_SCRIPT],
        env=script_env(url, key),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.long
def test_an_existing_script_needs_the_base_url_alone(run_orch: Orch, upstream: Upstream) -> None:
    process, url = serve(run_orch, "--upstream", upstream.base_url)
    done = run_script(url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"completed {sorted(f'r{n}' for n in range(20))}\n"
    said = run_orch.output(process)
    assert f"serving {run_orch.home / 'serve'} at {url}, without keys" in said
    wait_until(lambda: f"upstream {upstream.base_url}: ready (test-model)" in run_orch.output(process))


@pytest.mark.long
def test_sigterm_ends_it_well_and_the_next_start_goes_on(run_orch: Orch, upstream: Upstream) -> None:
    """Rows whose answers are on their way at SIGTERM are let end; others run at the next start. None runs twice."""
    process, url = serve(run_orch, "--upstream", upstream.base_url)
    rows = [row(f"r{n}", "[[fault:slow:700]]") for n in range(1000)]
    with sdk_at(url) as sdk:
        batch = create(sdk, rows)
        wait_until(lambda: len(upstream.requests()) >= 10)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert run_orch.output(process).endswith("orch: stopped; nothing is lost\n")
    assert len(upstream.requests()) < 1000
    _, url = serve(run_orch, "--upstream", upstream.base_url)
    with sdk_at(url) as sdk:
        ended(sdk, batch.id, 60).check([f"r{n}" for n in range(1000)])
    assert set(upstream.counts().values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_lets_rows_end_that_may_be_billed_however_long_they_take(
    number: int, run_orch: Orch, upstream: Upstream
) -> None:
    """Longer than rows of an upstream without a key are given."""
    arguments, env = ("--upstream", upstream.base_url, "--api-key-env", "SESAME"), {"SESAME": "open"}
    process, url = serve(run_orch, *arguments, env=env)
    with sdk_at(url) as sdk:
        batch = create(sdk, [row(f"r{n}", "[[fault:slow:12000]]") for n in range(3)])
        upstream.wait_for_requests(3)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    _, url = serve(run_orch, *arguments, env=env)
    with sdk_at(url) as sdk:
        ended(sdk, batch.id, 60).check([f"r{n}" for n in range(3)])
    assert set(upstream.counts().values()) == {1}


def test_kill_and_start_again(run_orch: Orch, upstream: Upstream) -> None:
    ids = [f"r{n}" for n in range(300)]
    process, url = serve(run_orch, "--upstream", upstream.base_url)
    with sdk_at(url) as sdk:
        batch = create(sdk, [row(custom_id, f"{custom_id} [[fault:slow:300]]") for custom_id in ids])
        wait_until(lambda: sdk(lambda api: api.batches.retrieve(batch.id)).request_counts.completed >= 20)
    kill_group(process)
    process.wait()
    _, url = serve(run_orch, "--upstream", upstream.base_url)
    with sdk_at(url) as sdk:
        ended(sdk, batch.id, 60).check(ids)
    # What was durable was not asked for again.
    assert sum(upstream.counts().values()) <= len(ids) * 2 - 20


def test_a_second_interrupt_does_not_wait(run_orch: Orch, upstream: Upstream) -> None:
    process, url = serve(run_orch, "--upstream", upstream.base_url)
    with sdk_at(url) as sdk:
        batch = create(sdk, [row("r0", "[[fault:hang:1]]")])
        upstream.wait_for_requests(1)
    process.send_signal(signal.SIGINT)
    host, _, port = url.removeprefix("http://").partition(":")

    def refused() -> bool:
        with socket.socket() as client:
            return client.connect_ex((host, int(port))) != 0

    wait_until(refused)  # the first one was heard
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    _, url = serve(run_orch, "--upstream", upstream.base_url)
    with sdk_at(url) as sdk:
        ended(sdk, batch.id).check(["r0"])


@pytest.mark.long
def test_hundreds_of_idle_strangers_shut_nobody_out_where_few_files_may_be_open(
    run_orch: Orch, upstream: Upstream
) -> None:
    secret = run_orch("keys", "add", "nightly").stdout.strip()
    options = ("--port", "0", "--upstream", upstream.base_url, "--require-keys")
    process = run_orch.start("serve", *options, prefix=prefix(files=256))
    url = url_of(run_orch, process)
    host, _, port = url.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        for number in range(700):
            half = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            half.sendall(b"GET /v1/models HTTP/1.1\r\nHost"[: number % 30])
        done = run_script(url, secret)
    assert done.returncode == 0, done.stderr
    assert process.poll() is None


@pytest.mark.parametrize("path", ["v1/embed", "/v1/embed/", "/v1/../embed", "/v1/embed?x", "/v1/files", "/health"])
def test_an_endpoint_that_cannot_be_allowed(run_orch: Orch, upstream: Upstream, path: str) -> None:
    done = run_orch("serve", "--port", "0", "--upstream", upstream.base_url, "--allow-endpoint", path)
    assert done.returncode == 2
    assert path in done.stderr
    assert "Traceback" not in done.stderr


def test_an_endpoint_that_is_allowed(run_orch: Orch, upstream: Upstream) -> None:
    _, url = serve(run_orch, "--upstream", upstream.base_url, "--allow-endpoint", "/v1/embed")
    with sdk_at(url) as sdk:
        assert "/v1/embed" in sdk.raw.get("/openapi.json").json()["paths"]
        assert sdk.raw.post("/v1/embed2", json={}).status_code == 404


def test_one_server_for_a_folder(run_orch: Orch, upstream: Upstream) -> None:
    process, _ = serve(run_orch, "--upstream", upstream.base_url)
    second = run_orch("serve", "--port", "0", "--upstream", upstream.base_url)
    assert second.returncode == 2
    assert f"is in use by another `orch serve` (process {process.pid})" in second.stderr


@pytest.mark.long
def test_an_address_as_other_commands_take_it(run_orch: Orch, upstream: Upstream) -> None:
    process = run_orch.start("serve", "127.0.0.1:0", "--upstream", upstream.base_url)
    assert run_script(url_of(run_orch, process)).stdout.startswith("completed")
    refused = run_orch("serve", "8090", "--upstream", upstream.base_url)
    assert (refused.returncode, "'8090' is not an address such as 127.0.0.1:8090" in refused.stderr) == (2, True)


def test_a_port_that_is_taken(run_orch: Orch, upstream: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run_orch("serve", "--port", str(port), "--upstream", upstream.base_url)
    assert done.returncode == 4
    assert f"127.0.0.1:{port} is in use by another program" in done.stderr


def test_a_unix_socket_for_this_user_alone(run_orch: Orch, upstream: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "orch.sock"
    for _ in range(2):  # the second time, the file of a killed server is in the way
        process = run_orch.start("serve", "--uds", str(path), "--upstream", upstream.base_url)
        wait_until(lambda process=process: "at the Unix socket" in run_orch.output(process))
        assert path.stat().st_mode & 0o777 == 0o600
        with sdk_at(path) as sdk:
            run_batch(sdk, [row("r0")]).check(["r0"])
        busy = run_orch("serve", "--uds", str(path), "--dir", str(tmp_path / "b"), "--upstream", upstream.base_url)
        assert busy.returncode == 4
        assert f"{path} is in use by another program" in busy.stderr
        kill_group(process)
        process.wait()
    assert path.exists()


def test_both_addresses_at_once(run_orch: Orch, upstream: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "orch.sock"
    process, url = serve(run_orch, "--uds", str(path), "--upstream", upstream.base_url)
    for address in (path, url):
        with sdk_at(address) as sdk:
            assert health(sdk)["status"] == "ok"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not path.exists()


@pytest.mark.long
def test_beyond_loopback_it_asks_for_keys(run_orch: Orch, upstream: Upstream) -> None:
    arguments = ("--host", "0.0.0.0", "--upstream", upstream.base_url)
    refused = run_orch("serve", "--port", "0", *arguments)
    assert refused.returncode == 2
    assert "orch keys add NAME" in refused.stderr
    key = run_orch("keys", "add", "nightly").stdout.strip()
    _, url = serve(run_orch, *arguments)
    without = run_script(url)
    assert "401" in without.stderr
    done = run_script(url, key)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed")


def test_beyond_loopback_without_keys_where_that_is_said(run_orch: Orch, upstream: Upstream) -> None:
    _, url = serve(run_orch, "--host", "0.0.0.0", "--no-require-keys", "--upstream", upstream.base_url)
    with sdk_at(url) as sdk:
        run_batch(sdk, [row("r0")]).check(["r0"])


def test_the_upstreams_key_comes_from_the_environment(run_orch: Orch, make_upstream: type[Upstream]) -> None:
    upstream = make_upstream(api_key="open sesame")
    arguments = ("--upstream", upstream.base_url, "--api-key-env", "SESAME")
    unset = run_orch("serve", "--port", "0", *arguments)
    assert unset.returncode == 2
    assert "SESAME is not set" in unset.stderr
    process, url = serve(run_orch, *arguments, env={"SESAME": "open sesame"})
    with sdk_at(url) as sdk:
        run_batch(sdk, [row("r0")]).check(["r0"])
    assert "sesame" not in run_orch.output(process)


@pytest.mark.long
def test_an_upstream_that_is_away_is_said_and_comes_later(run_orch: Orch, upstream: Upstream) -> None:
    upstream.kill()
    process, url = serve(run_orch, "--upstream", upstream.base_url)
    wait_until(lambda: f"upstream {upstream.base_url}: unreachable" in run_orch.output(process))
    with sdk_at(url) as sdk:
        batch = create(sdk, [row("r0")])
        upstream.start()
        ended(sdk, batch.id).check(["r0"])


def test_limits_of_size_and_rows(run_orch: Orch, upstream: Upstream) -> None:
    _, url = serve(run_orch, "--upstream", upstream.base_url, "--max-file-size", "2kB", "--max-rows", "3")
    with sdk_at(url) as sdk:
        large = sdk.refused(lambda api: api.files.create(file=("in.jsonl", b"x" * 2001), purpose="batch"))
        assert large.status_code == 413
        assert run_batch(sdk, [row(f"r{n}") for n in range(4)]).batch.status == "failed"


def test_a_log_of_json(run_orch: Orch, upstream: Upstream) -> None:
    process = run_orch.start("serve", "--port", "0", "--log-format", "json", "--upstream", upstream.base_url)
    wait_until(lambda: "ready (test-model)" in run_orch.output(process))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    lines = [json.loads(line) for line in run_orch.output(process).splitlines()]
    assert any("OPENAI_BASE_URL" in line["message"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--upstream URL"),
        (("--upstream", "localhost:8000"), "not an http(s) URL"),
        (
            ("--upstream", "http://my host/v1"),
            "not an http(s) URL such as http://127.0.0.1:8000/v1; remove the whitespace",
        ),
        (("--upstream", "http://me:pw@host/v1"), "--api-key-env"),
        (("--upstream", "http://127.0.0.1:1/v1", "--api-key-env", "sk-a secret"), "not the name of an environment"),
        (("--upstream", "http://127.0.0.1:1/v1", "--gpus", "0"), "--vllm MODEL"),
        (("--upstream", "http://127.0.0.1:1/v1", "--", "--enforce-eager"), "--vllm MODEL"),
        (("--upstream", "http://127.0.0.1:1/v1", "--webhook", "http://127.0.0.1:1/"), "ORCH_WEBHOOK_SECRET"),
        (("--upstream", "http://127.0.0.1:1/v1", "--max-file-size", "much"), "--max-file-size"),
        (("--upstream", "http://127.0.0.1:1/v1", "--host", "no such host"), "--host"),
        (("127.0.0.1:8090", "--upstream", "http://127.0.0.1:1/v1"), "the port is given twice"),
        (("--vllm", "/no/such/model"), "there is no model /no/such/model"),
        (("--vllm", "org/model", "--", "--port", "8000"), "--port cannot be given to vLLM"),
    ],
)
def test_what_cannot_be_meant(run_orch: Orch, arguments: tuple[str, ...], said: str) -> None:
    done = run_orch("serve", "--port", "0", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "sk-a secret" not in done.stderr


def test_a_folder_that_cannot_be_written(run_orch: Orch, upstream: Upstream, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run_orch("serve", "--port", "0", "--dir", str(blocked / "x"), "--upstream", upstream.base_url)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
