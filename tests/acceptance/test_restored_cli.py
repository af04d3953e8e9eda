"""A home put back before Anthropic, as its user has it: what is told, and kills while it looks for batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from orchestrator.settings.home import Home
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import CONFIG, Orch, kill_group
from tests.support.databases import database
from tests.support.hostedjob import DAY, KEY, MODEL, USUAL, plain, settings_of, write_toml
from tests.support.postgres import PostgresServer, copy_database
from tests.support.process import wait_until
from tests.support.restoring import age

ROWS = 6


@dataclass
class Restored:
    """A home of which a copy was made once its job was recorded, and which is put back after its batch was made."""

    orch: Orch
    provider: Emulator
    env: dict[str, str]
    path: str
    copy: Path
    url: str

    def submit(self) -> str:
        """Record the job, and copy the home."""
        submitted = self.orch("submit", self.path, "-q", env=self.env)
        assert submitted.returncode == 0, submitted.stderr
        self.save()
        return submitted.stdout.strip()

    def save(self) -> None:
        shutil.copytree(self.orch.home, self.copy)
        self._copy_database(self._database, f"{self._database}_monday")

    def put_back(self) -> None:
        shutil.rmtree(self.orch.home)
        shutil.copytree(self.copy, self.orch.home)
        age(Home(self.orch.home))
        self._copy_database(f"{self._database}_monday", self._database)

    def batches(self) -> int:
        return len(self.provider.state()["batches"])

    def calls(self) -> int:
        return sum(one["count"] for one in self.provider.state()["requests"])

    @property
    def _database(self) -> str | None:
        return make_url(self.url).database

    def _copy_database(self, source: str | None, target: str | None) -> None:
        if not self.url.startswith("sqlite"):
            copy_database(self.url, source, target)


@pytest.fixture(params=["sqlite", "postgres"])
def home(
    request: pytest.FixtureRequest, run_orch: Orch, tmp_path: Path, postgres: PostgresServer
) -> Iterator[Restored]:
    orch_home = run_orch.home
    with (
        database(request.param, orch_home, postgres) as url,
        Emulator(tmp_path / "provider", speed=1200.0) as provider,
    ):
        provider.settings(**USUAL, latency_ms=1)
        write_toml(orch_home / CONFIG, {"claude": settings_of(provider, "claude", poll_seconds=0.2)})
        path = tmp_path / "rows.jsonl"
        path.write_bytes(jsonl(plain(ROWS)))
        env = {**provider.environment, "CLAUDE_KEY": KEY, "ORCH_DATABASE_URL": url}
        yield Restored(run_orch, provider, env, str(path), tmp_path / "monday", url)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_paid_answers_that_are_gone_are_told_with_their_sum_and_paid_again_on_request(home: Restored) -> None:
    job = home.submit()
    assert home.orch("run", home.path, "-q", env=home.env).returncode == 0
    home.provider.clock.advance(30 * DAY)
    home.put_back()
    refused = home.orch("run", home.path, "-q", env=home.env)
    assert refused.returncode == 3, refused.stderr
    assert f"for {ROWS} rows of batch" in refused.stderr
    assert "their answers are gone" in refused.stderr
    assert f"orch retry {job} --repay --wait" in refused.stderr
    assert home.batches() == 1
    repaid = home.orch("retry", job, "--repay", "--wait", "-q", "--json", env=home.env)
    assert repaid.returncode == 0, repaid.stderr
    assert json.loads(repaid.stdout)["requests"]["succeeded"] == ROWS
    assert home.batches() == 2


@pytest.mark.soak  # `make test` has such a kill in test_older_than_anthropic
def test_kills_while_it_looks_for_batches_pay_nothing_twice(home: Restored) -> None:
    home.submit()
    process = home.orch.start("run", home.path, "-q", env=home.env)
    wait_until(lambda: home.batches() == 1, 60.0)
    kill_group(process)
    process.wait()
    home.put_back()
    for calls in range(1, 7):
        before = home.calls()
        process = home.orch.start("run", home.path, "-q", env=home.env)
        wait_until(lambda least=before + calls, one=process: home.calls() >= least or one.poll() is not None, 60.0)
        kill_group(process)
        process.wait()
    ended = home.orch("run", home.path, "-q", "--json", env=home.env)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["requests"]["succeeded"] == ROWS
    assert home.batches() == 1
    assert sorted(home.provider.bill(rows=True)["rows"].values()) == [1] * ROWS


@pytest.mark.thinned(2)
def test_rows_of_a_forgotten_job_whose_documents_folder_was_renamed_are_paid_once(home: Restored) -> None:
    """Every row has another id then; its request is the same."""
    found = settings_of(home.provider, "openai", poll_seconds=0.2)
    write_toml(home.orch.home / CONFIG, {"openai": found})
    home.env["OPENAI_KEY"] = KEY
    assert home.orch("run", home.path, "-q", env=home.env).returncode == 0
    home.save()
    folder = Path(home.path).parent
    (folder / "documents").mkdir()
    for number in range(ROWS):
        (folder / f"documents/{number}.txt").write_text(f"Letter {number}.")
    job = folder / "job.yaml"

    def write(documents: str) -> None:
        tasks = f"models: {{small: {MODEL}}}\ntasks: [{{id: who, prompt: Who wrote this, model: small}}]\n"
        job.write_text(f"name: letters\ndocuments: {documents}\n{tasks}")

    write("documents")
    process = home.orch.start("run", str(job), "-q", env=home.env)
    wait_until(lambda: home.batches() == 2, 60.0)
    kill_group(process)
    process.wait()
    home.put_back()
    (folder / "documents").rename(folder / "letters")
    write("letters")
    ended = home.orch("run", str(job), "-q", "--json", env=home.env)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["requests"]["succeeded"] == ROWS
    assert home.batches() == 2
    assert set(home.provider.bill(rows=True)["asked"].values()) == {1}
