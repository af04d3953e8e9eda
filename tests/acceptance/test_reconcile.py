"""`orch reconcile` as its users have it: before our own server over HTTP, and before an emulated provider."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.emulator.client import Emulator
from tests.support.batchapi import CHAT, jsonl, row
from tests.support.cli import CONFIG, Orch
from tests.support.process import upstreams, wait_until
from tests.support.serving import serve

MODEL = "test-model"
HOUR_A_SECOND = 3600.0


@dataclass(frozen=True)
class Provider:
    """Where it is, what its client is told, and another program that uses the same account."""

    orch: Orch
    other: openai.OpenAI
    emulator: Emulator | None
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ran = self.orch(*arguments, env=self.env)
        assert "sk-reconcile" not in ran.stdout + ran.stderr
        return ran

    def reconcile(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """The exit code and what it says of the one backend that there is."""
        ran = self("reconcile", "--json", *arguments)
        assert ran.stdout, ran.stderr
        [found] = json.loads(ran.stdout)
        return ran.returncode, found

    def batch(self, **fields: Any) -> str:
        """A batch that another program makes."""
        file = self.other.files.create(file=("theirs.jsonl", jsonl([row("x")])), purpose="batch")
        made = self.other.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **fields)
        return made.id


@pytest.fixture(params=["serve", "emulator"])
def provider(request: pytest.FixtureRequest, tmp_path: Path, run_orch: Orch) -> Iterator[Provider]:
    profile = {"serve": "orch", "emulator": "openai"}[request.param]

    def provided(url: str, emulator: Emulator | None) -> Provider:
        (run_orch.home / CONFIG).write_text(
            f'[backends.cloud]\nkind = "openai"\nbase_url = "{url}"\nprofile = "{profile}"\n'
            f'api_key_env = "CLOUD_API_KEY"\npoll_seconds = 0.1\n'
            f"[prices.{MODEL}]\ninput = 1\noutput = 2\nbatch = {{input = 0.5, output = 1}}\n",
            encoding="utf-8",
        )
        other = openai.OpenAI(base_url=url, api_key="sk-reconcile", max_retries=0)
        env = {"CLOUD_API_KEY": "sk-reconcile", **(emulator.environment if emulator else {})}
        return Provider(run_orch, other, emulator, env)

    if request.param == "emulator":
        with Emulator(tmp_path / "provider", speed=HOUR_A_SECOND) as emulator:
            found = provided(emulator.url_openai, emulator)
            yield found
            found.other.close()
        return
    server = Orch(tmp_path / "server")
    server.home.mkdir()
    (server.home / CONFIG).touch()
    with upstreams(tmp_path) as make:
        _, url = serve(server, "--upstream", make(model=[MODEL]).base_url)
        found = provided(f"{url}/v1", None)
        yield found
        found.other.close()
        server.close()


@pytest.fixture
def job(provider: Provider, tmp_path: Path) -> str:
    """A job that ran to its end; its id."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl([row("a"), row("b")]))
    ran = provider("run", str(path), "--backend", "cloud", "--quiet", "--json")
    assert ran.returncode == 0, ran.stderr
    return str(json.loads(ran.stdout)["job"])


def kinds(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    return sorted(((finding["kind"], finding["shard"]) for finding in found["findings"]), key=str)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_after_a_job_both_sides_agree(provider: Provider, job: str) -> None:
    code, found = provider.reconcile()
    assert (code, found["findings"]) == (0, [])
    assert (found["backend"], found["batches"], found["known"]) == ("cloud", 1, 1)
    ran = provider("reconcile")
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"cloud ({found['account']}): 1 batch there, known here and the same")


@pytest.mark.long
@pytest.mark.thinned(2)
def test_what_is_there_and_not_known_here_is_named(provider: Provider, job: str) -> None:
    lost = provider.batch(metadata={"orch_shard": "lost-1.001"})
    provider.batch(metadata={"project": "theirs"})
    provider.batch()
    double = provider.batch(metadata={"orch_shard": f"{job}.001"})
    code, found = provider.reconcile("cloud")
    assert code == 1
    assert (found["batches"], found["known"]) == (5, 1)
    assert kinds(found) == [
        ("double", f"{job}.001"),
        ("foreign", None),
        ("foreign", None),
        ("unknown", "lost-1.001"),
    ]
    ran = provider("reconcile")
    assert ran.returncode == 1
    assert f"  unknown: {lost}: a batch" in ran.stdout
    assert f"  double: {double}: a batch" in ran.stdout
    assert "for shard lost-1.001, which is not in this database" in ran.stdout
    assert "  created by something else: 2 batches (--json lists them)" in ran.stdout


@pytest.mark.long
@pytest.mark.thinned(2)
def test_input_files_that_were_left_behind_go_when_they_are_told_to(provider: Provider, job: str) -> None:
    files = provider.other.files
    mine, theirs = f"{job}.001.jsonl", f"{job}.999.jsonl"
    for name in (mine, theirs):
        files.create(file=(name, jsonl([row("x")])), purpose="batch")
    code, found = provider.reconcile()
    assert (code, kinds(found)) == (0, [("file", f"{job}.001")])
    assert {file.filename for file in files.list()} >= {mine, theirs}, "looking deletes nothing"
    ran = provider("reconcile", "--delete-files")
    assert ran.returncode == 0
    assert "orch: cloud: 1 input files deleted" in ran.stderr
    left = {file.filename for file in files.list()}
    assert theirs in left
    assert mine not in left
    assert provider.reconcile()[1]["findings"] == []


@pytest.mark.long
@pytest.mark.parametrize("provider", ["emulator"], indirect=True)
def test_a_batch_that_its_backend_has_lost_is_told(provider: Provider, tmp_path: Path) -> None:
    assert provider.emulator is not None
    provider.emulator.clock.set(speed=0.0)
    provider.emulator.script({"do": "vanishes", "seconds": 60.0})
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl([row("a")]))
    job = json.loads(provider("submit", str(path), "--backend", "cloud", "--json").stdout)["job"]
    daemon = provider.orch.start("up", env=provider.env)

    def is_submitted() -> bool:
        shards = json.loads(provider("status", job, "--json").stdout)["shards"]
        return any(shard["batch_id"] for shard in shards)

    wait_until(is_submitted)
    daemon.kill()
    daemon.wait()
    provider.emulator.clock.advance(3600)
    code, found = provider.reconcile()
    assert (code, kinds(found)) == (1, [("gone", f"{job}.001")])


USAGE = {
    "unknown": (["cloud"], ["nobody"], "there is no backend 'nobody'"),
    "our own": (["cloud"], ["gpu"], "backend gpu is our own server"),
    "none": ([], [], "no hosted backend is configured"),
    "none, with a name": ([], ["gpu"], "no hosted backend is configured"),
}


@pytest.mark.parametrize(("hosted", "arguments", "message"), USAGE.values(), ids=USAGE)
def test_what_cannot_be_compared_is_said(
    run_orch: Orch, hosted: list[str], arguments: list[str], message: str
) -> None:
    lines = ['[backends.gpu]\nupstreams = ["http://127.0.0.1:9/v1"]\nidle = true\n']
    lines += [f'[backends.{name}]\nkind = "openai"\napi_key_env = "CLOUD_API_KEY"\n' for name in hosted]
    (run_orch.home / CONFIG).write_text("".join(lines))
    ran = run_orch("reconcile", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr


def test_a_backend_without_its_key_or_away_is_an_error_that_says_so(run_orch: Orch) -> None:
    (run_orch.home / CONFIG).write_text(
        '[backends.cloud]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "CLOUD_API_KEY"\n'
    )
    ran = run_orch("reconcile")
    assert (ran.returncode, "CLOUD_API_KEY is not set" in ran.stderr) == (2, True)
    ran = run_orch("reconcile", env={"CLOUD_API_KEY": "sk-1"})
    assert (ran.returncode, "cloud: cannot" in ran.stderr) == (4, True)
