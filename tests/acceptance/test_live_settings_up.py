"""`orch up` under an orch.toml that is edited, broken and mended while rows run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.process import wait_until

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, max_tokens: 50, prompt: "Who wrote this?"}
models: {small: some-model}
"""
LETTERS, WAIT = 12, 60.0


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "documents").mkdir()
    for number in range(LETTERS):
        (tmp_path / "documents" / f"{number:02}.txt").write_text(f"Dear {number:02},")
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def asked(entries: list[dict[str, Any]]) -> set[str]:
    return {json.loads(entry["body"])["messages"][0]["content"].split("Dear ")[1][:2] for entry in entries}


def status(orch: Orch) -> Any:
    [found] = json.loads(orch("status", "--json").stdout)
    return found


@pytest.mark.long
def test_rows_move_from_a_server_that_is_taken_out_to_one_that_is_put_in(
    run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, job: Path
) -> None:
    """What is done stays, what is in flight comes back; and with a broken file all goes on as before."""
    old, new = make_upstream(slots=1, latency_ms=2000, log_bodies=True), make_upstream(log_bodies=True)
    write_config(orch_home, [old.base_url], max_concurrency=1, retry_delay=0.01)
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon), WAIT)
    assert run_orch("submit", str(job)).returncode == 0
    wait_until(lambda: len(old.requests()) >= 2, WAIT)

    toml = orch_home / "orch.toml"
    toml.write_text("[backends.local\n")
    wait_until(lambda: "is not valid TOML" in run_orch.output(daemon), WAIT)
    told = run_orch("status", env={"ORCH_HOME": str(orch_home)})
    assert told.returncode == 0, told.stderr
    assert f"settings: {toml}:1: is not valid TOML" in told.stdout
    assert "the daemon keeps the settings that it read at" in told.stdout
    refused = run_orch("submit", str(job), "--new")
    assert (refused.returncode, f"{toml}:1" in refused.stderr) == (2, True)

    toml.write_text(f'[backends.other]\nupstreams = ["{new.base_url}"]\nlocation = "local"\nidle = true\n')
    wait_until(lambda: status(run_orch)["state"] == "completed", WAIT)
    assert f"orch: {toml} was edited: the new settings are in force" in run_orch.output(daemon)
    assert status(run_orch)["requests"]["succeeded"] == LETTERS
    there, here = asked(old.requests()), asked(new.requests())
    assert there | here == {f"{number:02}" for number in range(LETTERS)}
    assert len(there & here) <= 1, "no more than the row in flight is asked again"
    assert here, "and the rest goes on there"


@pytest.mark.long
def test_upstreams_that_move_are_followed_and_queued_jobs_run(
    run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, job: Path
) -> None:
    upstream = make_upstream(log_bodies=True)
    write_config(orch_home, ["http://127.0.0.1:9/v1"], retry_delay=0.01)
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon), WAIT)
    queued = run_orch("submit", str(job), "--json")
    assert json.loads(queued.stdout)["settings"] == []
    wait_until(lambda: "waiting for http://127.0.0.1:9/v1" in run_orch.output(daemon), WAIT)
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    wait_until(lambda: status(run_orch)["state"] == "completed", WAIT)
    assert len(upstream.requests()) == LETTERS


def test_what_needs_a_restart_is_told_by_status_submit_doctor_and_the_log(
    run_orch: Orch, orch_home: Path, upstream: Any, job: Path
) -> None:
    toml = write_config(orch_home, [upstream.base_url])
    env = {"ORCH_CONFIG": str(toml), "ORCH_HOME": str(orch_home)}
    daemon = run_orch.start("up", env=env)
    wait_until(lambda: "is up" in run_orch.output(daemon), WAIT)
    other = orch_home.parent / "elsewhere.db"
    toml.write_text(f'database_url = "sqlite:///{other}"\n{toml.read_text()}')
    told = "database_url: takes effect when the daemon restarts"
    wait_until(lambda: told in run_orch.output(daemon), WAIT)
    assert f"settings: {told}" in run_orch("status", env=env).stdout
    assert f"orch: {told}" in run_orch("submit", str(job), env=env).stderr
    assert json.loads(run_orch("submit", str(job), "--json", env=env).stdout)["settings"] == [told]
    assert f"BAD  settings of the daemon: {told}" in run_orch("doctor", env=env).stdout
    assert told in (orch_home / "engine.log").read_text()


@pytest.mark.long
def test_a_run_that_follows_a_daemon_says_what_the_daemon_lacks(
    run_orch: Orch, orch_home: Path, upstream: Any, job: Path
) -> None:
    toml = write_config(orch_home, [upstream.base_url])
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon), WAIT)
    toml.write_text(f'{toml.read_text()}[backends.openai]\nkind = "openai"\napi_key_env = "LATE_KEY"\n')
    told = "backends.openai.api_key_env: the daemon was started without LATE_KEY; set it, then start the daemon again"
    wait_until(lambda: told in run_orch.output(daemon), WAIT)
    followed = run_orch("run", str(job), "--backend", "local", env={"LATE_KEY": "sk-test"})
    assert followed.returncode == 0, followed.stderr
    assert f"orch: {told}" in followed.stderr


def test_a_job_can_be_cancelled_while_the_file_is_broken(run_orch: Orch, orch_home: Path, job: Path) -> None:
    toml = write_config(orch_home, ["http://127.0.0.1:9/v1"], retry_delay=0.01)
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon), WAIT)
    name = run_orch("submit", str(job)).stdout.strip()
    toml.write_text("[[[")
    cancelled = run_orch("cancel", name)
    assert cancelled.returncode == 0, cancelled.stderr
    assert cancelled.stdout == f"{name}: cancelled; 0 of {LETTERS} rows done\n"


@pytest.mark.long
def test_run_takes_up_an_edit_too(run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, job: Path) -> None:
    upstream = make_upstream()
    write_config(orch_home, ["http://127.0.0.1:9/v1"], retry_delay=0.01)
    running = run_orch.start("run", str(job))
    wait_until(lambda: "12 requests of 12 documents" in run_orch.output(running), WAIT)
    wait_until(lambda: (orch_home / "settings.json").exists(), WAIT)
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    assert running.wait(WAIT) == 0, run_orch.output(running)
    assert "was edited: the new settings are in force" in run_orch.output(running)


@pytest.mark.long
def test_status_and_submit_say_that_a_key_is_not_set(
    run_orch: Orch, orch_home: Path, job: Path, upstream: Any
) -> None:
    write_config(orch_home, [upstream.base_url])
    toml = orch_home / "orch.toml"
    cloud = '[backends.cloud]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "LATE_KEY"\n'
    toml.write_text(
        f"{toml.read_text()}{cloud}[prices.some-model]\ninput = 1\noutput = 1\nbatch = {{input = 1, output = 1}}\n"
    )
    told = "LATE_KEY, the key of backend cloud, is not set here: export LATE_KEY=…"
    elsewhere = run_orch("submit", str(job), "--backend", "local")
    assert told not in elsewhere.stderr, "the job does not use it"
    queued = run_orch("submit", str(job), "--backend", "cloud", "--new", "--json")
    assert (queued.returncode, queued.stderr.count(told)) == (0, 1)
    name = json.loads(queued.stdout)["job"]
    key = {"LATE_KEY": "sk-test-0123456789abcdef"}
    assert json.loads(run_orch("status", name, "--json").stdout)["problem"].startswith(told)
    assert json.loads(run_orch("status", name, "--json", env=key).stdout)["problem"].startswith(
        "no daemon is running"
    )
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon), WAIT)
    told = "the environment variable LATE_KEY is not set; it must hold the key of backend cloud"
    wait_until(
        lambda: told in (json.loads(run_orch("status", name, "--json", env=key).stdout)["problem"] or ""), WAIT
    )
    again = run_orch("submit", str(job), "--backend", "cloud")
    assert "is not set here" not in again.stderr, "the daemon may have it"
