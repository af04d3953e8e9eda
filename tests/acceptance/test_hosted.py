"""Hosted batches as their users have them: the command line before emulated providers, and before our own server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import CONFIG, Orch
from tests.support.hostedjob import KEY, MINUTE, USUAL, cost_of, plain, row, settings_of, write_toml
from tests.support.process import upstreams, wait_until
from tests.support.serving import serve

HOSTED = ("openai", "azure", "claude")
WAIT = 60.0
MINUTES_A_SECOND = 1200.0
"""How fast the providers' clock runs in tests that do not move it themselves: a batch takes a few seconds."""


@dataclass
class User:
    """Somebody at a shell: what is in the environment, and the provider whose keys these are."""

    orch: Orch
    provider: Emulator
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ran = self.orch(*arguments, env=self.env)
        assert KEY not in ran.stdout + ran.stderr
        return ran

    def backends(self, **told: dict[str, Any]) -> None:
        found = {name: settings_of(self.provider, name, poll_seconds=0.2, **more) for name, more in told.items()}
        write_toml(self.orch.home / CONFIG, found)
        self.env |= self.provider.environment | {facts["api_key_env"]: KEY for facts in found.values()}

    def rows(self, *lines: dict[str, Any]) -> str:
        path = self.folder / "rows.jsonl"
        path.write_bytes(jsonl(lines))
        return str(path)

    def run(self, path: str, backend: str) -> tuple[int, dict[str, Any]]:
        """`orch run --backend`: the exit code, and the job in full."""
        ran = self("run", path, "--backend", backend, "--quiet", "--json")
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", job, "--json").stdout)
        return found

    def fetched(self, job: str) -> dict[str, str]:
        """Outcomes by custom_id."""
        lines = self("fetch", job, "--format", "jsonl").stdout.splitlines()
        return {found["custom_id"]: found["status"] for found in map(json.loads, lines)}

    def left_at_the_provider(self) -> list[str]:
        return [file["name"] for file in self.provider.state()["files"] if file["is_there"]]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as emulator:
        yield emulator


@pytest.fixture
def user(emulator: Emulator, run_orch: Orch, tmp_path: Path) -> User:
    emulator.reset()
    emulator.clock.set(speed=MINUTES_A_SECOND)
    emulator.settings(**USUAL, latency_ms=1)
    user = User(run_orch, emulator, tmp_path)
    user.backends(**{name: {} for name in HOSTED})
    return user


JOB = """\
name: letters
documents: {path: documents}
models: {small: m}
tasks:
  - id: facts
    model: small
    max_tokens: 60
    prompt: What are the facts?
    schema: {type: object, properties: {topic: {type: string}}, required: [topic]}
"""


def letters(folder: Path) -> str:
    (folder / "documents").mkdir()
    for number in range(3):
        (folder / "documents" / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("backend", HOSTED)
def test_a_job_of_documents_takes_the_route_that_is_asked_for_and_costs_what_is_billed(
    user: User, backend: str
) -> None:
    code, job = user.run(letters(user.folder), backend)
    assert (code, job["state"], job["requests"]["succeeded"]) == (0, "completed", 3)
    assert [shard["backend"] for shard in job["shards"]] == [backend]
    assert Decimal(job["cost_usd"]) == cost_of(user.provider.bill()) > 0
    assert user.left_at_the_provider() == []
    rows = [json.loads(line) for line in user("fetch", job["job"]).stdout.splitlines()]
    assert all(found["output"]["topic"] for found in rows), "answers fit the schema, whoever gave them"
    assert {found["provenance"]["batch_id"] for found in rows} == {user.provider.state()["batches"][0]["id"]}


@pytest.mark.long
def test_a_provider_that_is_not_reached_is_told_with_the_line_of_its_address_before_other_jobs_troubles(
    user: User,
) -> None:
    user.backends(openai={})
    path = user.folder / "other.yaml"
    letters(user.folder)
    path.write_text(JOB.replace("letters", "other").replace("facts?", "terms?"), encoding="utf-8")
    user.provider.settings(models=["gpt-5-nano"])
    refused = user("run", str(path), "--backend", "openai", "--quiet")
    assert (refused.returncode, "refuses all rows" in refused.stderr) == (4, True), refused.stderr

    user.provider.settings(models=None)
    toml = user.orch.home / CONFIG
    good = toml.read_text(encoding="utf-8")
    address = user.provider.url_openai
    toml.write_text(good.replace(address, "http://127.0.0.1:9/v1"), encoding="utf-8")
    line = 1 + next(number for number, text in enumerate(good.splitlines()) if address in text)
    process = user.orch.start("run", str(user.folder / "job.yaml"), "--backend", "openai", env=user.env)
    place = f"A wrong address can be corrected now: {toml}:{line}: backends.openai.base_url."
    wait_until(lambda: place in " ".join(user.orch.output(process).split()))
    wait_until(lambda: "! openai: cannot" in user.orch.output(process))
    toml.write_text(good, encoding="utf-8")
    assert process.wait(WAIT) == 0
    told = user.orch.output(process)
    assert told.count("A wrong address") == 1
    assert "refuses all rows" not in told, "the trouble of another job"


@pytest.mark.long
def test_the_flex_route_is_our_server_before_a_synchronous_api(user: User) -> None:
    user.backends(flex={})
    code, job = user.run(user.rows(*plain(6)), "flex")
    assert (code, job["requests"]["succeeded"]) == (0, 6)
    [line] = user.provider.bill()["lines"]
    assert (line["tier"], line["rows"]) == ("flex", 6)
    assert Decimal(job["cost_usd"]) == cost_of(user.provider.bill()) > 0
    report = json.loads(user("report", "cost", "--by", "backend", "--json").stdout)
    assert [found["group"] for found in report["lines"]] == ["flex"]


@pytest.mark.long
def test_failed_rows_are_an_exit_code_and_are_tried_again_when_asked(user: User) -> None:
    code, job = user.run(user.rows(*plain(2), row("flaky", "status:500:3"), row("bad", "content_filter")), "openai")
    assert (code, job["requests"]["succeeded"], job["requests"]["failed"]) == (1, 2, 2)
    codes = {reason["code"] for reason in job["reasons"]}
    assert codes == {"http_500", "content_filter"}
    again = user("retry", job["job"], "--failed", "--wait", "--quiet")
    assert again.returncode == 1, "the filter has not changed its mind"
    assert user.fetched(job["job"]) == {
        "r0": "succeeded",
        "r1": "succeeded",
        "flaky": "succeeded",
        "bad": "failed",
    }
    assert user.provider.bill(rows=True)["rows"] == {"r0": 1, "r1": 1, "flaky": 1}


@pytest.mark.long
def test_an_expired_batch_ends_well_without_anybody_doing_anything(user: User) -> None:
    user.provider.settings(turnaround_s=[60, 60])
    user.provider.script({"do": "expires", "share": 0.5})
    user.provider.clock.set(speed=86_400 / 3)
    code, job = user.run(user.rows(*plain(4)), "openai")
    assert (code, job["requests"]["succeeded"]) == (0, 4)
    assert [(shard["batch_status"], shard["rows"]) for shard in job["shards"]] == [("expired", 4), ("completed", 2)]
    assert user.provider.bill(rows=True)["rows"] == {f"r{number}": 1 for number in range(4)}


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("backend", HOSTED)
def test_a_cancelled_job_ends_its_batch_and_gives_what_was_done(user: User, backend: str) -> None:
    user.provider.clock.set(speed=0.0)
    job = user("submit", user.rows(*plain(10)), "--backend", backend, "--quiet").stdout.strip()
    daemon = user.orch.start("up", env=user.env)
    wait_until(lambda: user.provider.calls("retrieve"), WAIT)
    user.provider.clock.advance(330)
    cancel = user.orch.start("cancel", job, env=user.env)
    wait_until(lambda: user.provider.calls("cancel"), WAIT)
    user.provider.clock.set(speed=MINUTES_A_SECOND)
    assert cancel.wait(WAIT) == 0
    assert f"{job}: cancelled; 5 of 10 rows done" in user.orch.output(cancel)
    ends = list(user.fetched(job).values())
    assert (ends.count("succeeded"), ends.count("cancelled")) == (5, 5)
    assert Decimal(user.status(job)["cost_usd"]) == cost_of(user.provider.bill())
    daemon.terminate()
    assert daemon.wait(WAIT) == 0


@pytest.mark.long
def test_status_says_what_a_batch_waits_for_in_words(user: User) -> None:
    user.backends(openai={"limits": {"max_rows": 1, "enqueued_tokens": 40}})
    user.provider.clock.set(speed=0.0)
    user.provider.script({"do": "stuck_validating"})
    job = user("submit", user.rows(*plain(2)), "--backend", "openai", "--quiet").stdout.strip()
    daemon = user.orch.start("up", env=user.env)

    def held() -> list[str]:
        return [shard["held"] for shard in user.status(job)["shards"] if shard["held"]]

    [quota] = wait_until(held, WAIT)
    assert quota.startswith("queued behind quota: ")
    assert quota.endswith("more do not fit")
    user.provider.clock.advance(41 * MINUTE)
    validating, _ = wait_until(lambda: found if len(found := held()) == 2 else None, WAIT)
    assert validating == "validating for 41 min; usual p90 10 min (assumed)"
    shown = " ".join(user("status", job).stdout.split())
    assert "! shard 001: validating for 41 min; usual p90 10 min (assumed)" in shown
    assert "! shard 002: queued behind quota:" in shown
    daemon.kill()


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("verb", ["upload", "create"])
def test_no_credit_stops_with_one_message_and_the_same_command_goes_on(user: User, verb: str) -> None:
    user.backends(openai={"limits": {"max_rows": 1}})
    refusal = {"do": "status", "match": {"verb": verb}, "status": 429, "code": "insufficient_quota", "times": None}
    user.provider.script(refusal)
    path = user.rows(*plain(3))
    ran = user("run", path, "--backend", "openai", "--quiet")
    assert ran.returncode == 4
    assert ran.stderr.count("You exceeded your current quota") == 1
    calls = user.provider.calls(verb)
    assert calls.keys() == {429}
    # Five refused tries end the run. Each may find all three shards under way, and the clock here outruns the pauses.
    assert 5 <= calls[429] <= 15, "an account without credit is asked a few times, not at every look"
    user.provider.clear()
    code, job = user.run(path, "openai")
    assert (code, job["requests"]["succeeded"]) == (0, 3)
    assert user.provider.bill(rows=True)["rows"] == {f"r{number}": 1 for number in range(3)}


def test_a_key_that_is_not_set_bad_or_another_accounts_is_said_before_anything_is_paid(user: User) -> None:
    path = user.rows(*plain(2))
    del user.env["OPENAI_KEY"]
    ran = user("run", path, "--backend", "openai", "--quiet")
    assert (ran.returncode, "OPENAI_KEY is not set" in ran.stderr) == (2, True)
    user.env["OPENAI_KEY"] = "sk-bad"
    user.provider.settings(accounts={KEY: "org-1", "sk-other": "org-2"})
    ran = user("run", path, "--backend", "openai", "--quiet")
    assert (ran.returncode, "Incorrect API key provided." in ran.stderr) == (4, True)
    assert "sk-bad" not in ran.stderr
    assert user.provider.state()["batches"] == []


@pytest.mark.long
def test_a_batch_of_another_account_is_not_touched(user: User) -> None:
    user.provider.clock.set(speed=0.0)
    path = user.rows(*plain(2))
    job = user("submit", path, "--backend", "openai", "--quiet").stdout.strip()
    daemon = user.orch.start("up", env=user.env)
    wait_until(lambda: user.provider.calls("retrieve"), WAIT)
    daemon.kill()
    daemon.wait()
    user.env["OPENAI_KEY"] = "sk-somebody-elses"
    ran = user("run", path, "--backend", "openai", "--quiet")
    assert ran.returncode == 2
    assert "was made by the account org:" in ran.stderr
    assert "sk-somebody-elses" not in ran.stderr
    user.env["OPENAI_KEY"] = KEY
    user.provider.clock.set(speed=MINUTES_A_SECOND)
    code, done = user.run(path, "openai")
    assert (code, done["job"], len(user.provider.state()["batches"])) == (0, job, 1)


def test_the_key_is_in_no_file_of_the_home(user: User) -> None:
    user.provider.script({"do": "status", "match": {"verb": "retrieve"}, "status": 400, "message": f"bad {KEY}"})
    code, _ = user.run(user.rows(*plain(2)), "openai")
    assert code == 0
    files = [path for path in user.orch.home.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


# --- our own server as the provider


@pytest.fixture
def served(run_orch: Orch, tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Rows answered by an upstream behind `orch serve`, which stands in orch.toml as any other provider."""
    server = Orch(tmp_path / "server")
    server.home.mkdir()
    (server.home / CONFIG).touch()
    with upstreams(tmp_path) as make:
        _, url = serve(server, "--upstream", make(model=["m"]).base_url)
        backend = {"kind": "openai", "base_url": f"{url}/v1", "profile": "orch", "api_key_env": "CLOUD_KEY"}
        write_toml(run_orch.home / CONFIG, {"cloud": {**backend, "poll_seconds": 0.1, "limits": {"max_rows": 4}}})
        yield partial(run_orch, env={"CLOUD_KEY": KEY})
        server.close()


@pytest.mark.long
def test_our_own_server_is_a_provider_like_any_other(
    served: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(plain(10)))
    ran = served("run", str(path), "--backend", "cloud", "--quiet", "--json")
    job = json.loads(ran.stdout)
    assert (ran.returncode, job["requests"]["succeeded"]) == (0, 10)
    assert [(shard["rows"], shard["batch_status"]) for shard in job["shards"]] == [
        (4, "completed"),
        (4, "completed"),
        (2, "completed"),
    ]
    assert Decimal(job["cost_usd"]) > 0
    ran = served("reconcile", "--json")
    assert json.loads(ran.stdout)[0]["findings"] == [], "no file is left there, and no batch is unknown"
