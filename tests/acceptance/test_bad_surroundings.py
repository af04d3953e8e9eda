"""Disks, databases and upstreams that fail under the command line: what it says, and that the job goes on after."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support.batchapi import jsonl, row
from tests.support.cli import Orch, write_config
from tests.support.limits import prefix
from tests.support.process import PATIENCE, Upstream, upstreams, wait_until

GOOD = ["a", "b", "c"]


@pytest.fixture
def batch(tmp_path: Path, orch_home: Path, upstream: Upstream) -> Path:
    """A good batch file of three rows, and an orch.toml in front of an upstream."""
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, patience=1)
    path = tmp_path / "batch.jsonl"
    path.write_bytes(jsonl([row(custom_id) for custom_id in GOOD]))
    return path


def the_job(run_orch: Orch) -> dict[str, Any]:
    """The only job."""
    (job,) = json.loads(run_orch("status", "--json").stdout)
    return dict(job)


def no_job(run_orch: Orch) -> bool:
    return run_orch("status", "--json").stdout == "[]\n"


def done(run_orch: Orch, batch: Path, custom_ids: list[str]) -> None:
    """A run that comes to its end, with every row once and in order."""
    out = batch.with_name("out.jsonl")
    finished = run_orch("run", str(batch), "-o", str(out), "-q")
    assert finished.returncode == 0, finished.stderr
    assert [json.loads(line)["custom_id"] for line in out.read_bytes().splitlines()] == custom_ids
    assert the_job(run_orch)["requests"]["succeeded"] == len(custom_ids)


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_home_that_may_not_be_written(
    batch: Path, run_orch: Orch, orch_home: Path, upstream: Upstream, used: bool
) -> None:
    if used:
        assert no_job(run_orch)
    before = {path: path.stat().st_mode for path in (orch_home, *orch_home.rglob("*"))}
    for path, mode in before.items():
        path.chmod(mode & 0o555)
    refused = run_orch("run", str(batch), prefix=prefix(no_override=True))
    for path, mode in before.items():
        path.chmod(mode)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert f"the database {orch_home}/orch.db cannot be used" in refused.stderr
    assert "set ORCH_HOME" in refused.stderr
    assert {*orch_home.rglob("*")} | {orch_home} == set(before)
    done(run_orch, batch, GOOD)


def test_a_home_that_is_a_file(batch: Path, run_orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("precious")
    refused = run_orch("run", str(batch), env={"ORCH_HOME": str(file)})
    assert (refused.returncode, refused.stdout) == (4, "")
    assert f"the folder {file} cannot be created: File exists" in refused.stderr
    assert "set ORCH_HOME to a folder you may write" in refused.stderr
    assert file.read_text() == "precious"


@pytest.mark.long
def test_a_database_that_another_process_holds(batch: Path, run_orch: Orch, orch_home: Path) -> None:
    assert no_job(run_orch)
    other = sqlite3.connect(orch_home / "orch.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    refused = run_orch("run", str(batch), env={"ORCH_DATABASE_TIMEOUT": "0.3"})
    other.execute("ROLLBACK")
    other.close()
    assert (refused.returncode, refused.stdout) == (4, "")
    assert f"the database {orch_home}/orch.db cannot be used: database is locked" in refused.stderr
    assert "another program holds it; end that one, or set ORCH_DATABASE_TIMEOUT higher" in refused.stderr
    assert no_job(run_orch)
    assert list(orch_home.glob("jobs/*")) == []
    done(run_orch, batch, GOOD)


def test_a_database_that_is_none(batch: Path, run_orch: Orch, orch_home: Path) -> None:
    database = orch_home / "orch.db"
    database.write_bytes(b"something else entirely\n" * 100)
    refused = run_orch("run", str(batch))
    assert (refused.returncode, refused.stdout) == (4, "")
    assert f"the database {database} cannot be used: file is not a database" in refused.stderr
    assert "move it away or set ORCH_HOME elsewhere" in refused.stderr
    assert database.read_bytes() == b"something else entirely\n" * 100
    database.unlink()
    done(run_orch, batch, GOOD)


@pytest.mark.long
def test_a_disk_too_full_for_the_database(batch: Path, run_orch: Orch, orch_home: Path) -> None:
    refused = run_orch("run", str(batch), prefix=prefix(fsize=20_000))
    assert (refused.returncode, refused.stdout) == (4, "")
    assert f"the database {orch_home}/orch.db cannot be used: disk I/O error" in refused.stderr
    assert "check whether the disk is full or failing, then run the command again" in refused.stderr
    assert no_job(run_orch)
    done(run_orch, batch, GOOD)


@pytest.mark.long
def test_a_disk_too_full_for_the_results(batch: Path, run_orch: Orch, orch_home: Path, upstream: Upstream) -> None:
    """Answers of 20 kB each: their file is the first that grows too large."""
    ids = [f"e{number}" for number in range(100)]
    body = {"model": "m", "dimensions": 2000}
    lines = [
        {"custom_id": c, "method": "POST", "url": "/v1/embeddings", "body": {**body, "input": c, "user": c}}
        for c in ids
    ]
    batch.write_bytes(jsonl(lines))
    refused = run_orch("run", str(batch), prefix=prefix(fsize=700_000))
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "output.jsonl: File too large" in refused.stderr
    assert "free disk space, then run the same command again; nothing is lost" in refused.stderr
    job = the_job(run_orch)
    assert (job["state"], job["requests"]["pending"]) == ("stopped", 100)
    (output,) = orch_home.glob("servers/local/batches/*/output.jsonl")
    kept = [json.loads(line)["custom_id"] for line in output.read_bytes().splitlines()]
    assert 0 < len(kept) < 100
    done(run_orch, batch, ids)
    assert all(upstream.counts()[custom_id] == 1 for custom_id in kept)


@pytest.mark.long
def test_an_upstream_that_is_down_at_the_start(batch: Path, run_orch: Orch, upstream: Upstream) -> None:
    upstream.stop()
    refused = run_orch("run", str(batch))
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "backend local: no upstream took a row for" in refused.stderr
    assert f"{upstream.base_url}: unreachable: " in refused.stderr
    assert "run the same command again: the job resumes where it stopped" in refused.stderr
    job = the_job(run_orch)
    assert (job["state"], job["requests"]["pending"]) == ("stopped", 3)
    upstream.start()
    done(run_orch, batch, GOOD)
    assert upstream.counts() == Counter(GOOD)


@pytest.mark.long
def test_a_server_that_still_loads_is_waited_for_and_the_wait_is_said(
    batch: Path, run_orch: Orch, orch_home: Path, upstream: Upstream
) -> None:
    upstream.stop()
    write_config(orch_home, [upstream.base_url])
    process = run_orch.start("run", str(batch), "-q")
    wait_until(lambda: "waits up to 10 min for it" in " ".join(run_orch.output(process).split()))
    assert f"{upstream.base_url} does not answer (unreachable: " in " ".join(run_orch.output(process).split())
    upstream.start()
    assert process.wait(PATIENCE) == 0
    assert run_orch.output(process).count("does not answer") == 1


def test_a_wrong_address_is_told_with_its_line_and_may_be_corrected_meanwhile(
    batch: Path, run_orch: Orch, orch_home: Path, upstream: Upstream
) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    process = run_orch.start("run", str(batch), "-q")
    line = 1 + (orch_home / "orch.toml").read_text().splitlines().index('upstreams = ["http://127.0.0.1:9/v1"]')
    told = f"A wrong address can be corrected now: {orch_home / 'orch.toml'}:{line}: backends.local.upstreams."
    wait_until(lambda: told in " ".join(run_orch.output(process).split()))
    write_config(orch_home, [upstream.base_url])
    assert process.wait(PATIENCE) == 0
    assert upstream.counts() == Counter(GOOD)


@pytest.mark.long
def test_an_upstream_that_dies_in_the_middle(
    run_orch: Orch, orch_home: Path, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(slots=4, latency_ms=30)
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, patience=1, max_concurrency=8)
    ids = [f"r{number}" for number in range(100)]
    hanging = set(ids[60:64])  # at their first try, one in each slot: it dies in the middle, however late that is
    batch = tmp_path / "batch.jsonl"
    batch.write_bytes(jsonl([row(one, f"{one} [[fault:hang:1]]" if one in hanging else one) for one in ids]))
    process = run_orch.start("run", str(batch), "-q")
    wait_until(lambda: hanging <= upstream.counts().keys())
    upstream.kill()
    assert process.wait(PATIENCE) == 4
    assert "no upstream took a row for" in run_orch.output(process)
    (output,) = orch_home.glob("servers/local/batches/*/output.jsonl")
    kept = [json.loads(line)["custom_id"] for line in output.read_bytes().splitlines()]
    assert kept
    upstream.start()
    done(run_orch, batch, ids)
    assert all(upstream.counts()[custom_id] == 1 for custom_id in kept)


@pytest.mark.long
def test_a_key_that_is_missing_and_one_that_is_wrong(
    batch: Path, run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(api_key="right-secret")
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    refused = run_orch("run", str(batch))
    assert (refused.returncode, refused.stdout) == (4, "")
    assert 'api_key_env = "NAME", under [backends.local] in orch.toml' in refused.stderr
    tried = run_orch("try", str(batch))
    assert tried.returncode == 4
    assert 'refuses the key (401): give the variable that holds its key: api_key_env = "NAME"' in tried.stderr
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, api_key_env="MY_KEY")
    refused = run_orch("run", str(batch))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the environment variable MY_KEY is not set" in refused.stderr
    refused = run_orch("run", str(batch), env={"MY_KEY": "wrong-secret"})
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "upstream refuses the API key (401)" in refused.stderr
    assert "export its right key in MY_KEY; then run the same command again" in refused.stderr
    assert "secret" not in refused.stderr
    assert the_job(run_orch)["requests"]["pending"] == 3
    finished = run_orch("run", str(batch), env={"MY_KEY": "right-secret"})
    assert finished.returncode == 0, finished.stderr
    assert the_job(run_orch)["requests"]["succeeded"] == 3
    stored = [path for path in orch_home.rglob("*") if path.is_file() and b"-secret" in path.read_bytes()]
    assert stored == []


@pytest.mark.long
def test_a_job_is_taken_up_though_its_deadline_has_passed(
    run_orch: Orch, orch_home: Path, tmp_path: Path, upstream: Upstream
) -> None:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, patience=1)
    (tmp_path / "letter.txt").write_text("Dear reader", encoding="utf-8")
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    job = tmp_path / "job.yaml"
    job.write_text(
        f"name: late\ndocuments: {{path: letter.txt}}\ndeadline: {soon}\nmodels: {{m: m}}\n"
        "tasks: [{id: t, model: m, prompt: 'Who?'}]\n",
        encoding="utf-8",
    )
    upstream.stop()
    assert run_orch("run", str(job)).returncode == 4
    upstream.start()
    tomorrow = {"ORCH_NOW": (datetime.now(UTC) + timedelta(days=1)).isoformat()}
    finished = run_orch("run", str(job), env=tomorrow)
    assert finished.returncode == 0, finished.stderr
    assert "resuming where it stopped" in finished.stderr
    assert the_job(run_orch)["requests"]["succeeded"] == 1
    # A new job is another matter.
    assert run_orch("run", str(job), "--new", env=tomorrow).returncode == 3


@pytest.mark.long
def test_a_dry_run_beside_a_daemon_sends_nothing(
    run_orch: Orch, orch_home: Path, tmp_path: Path, upstream: Upstream
) -> None:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    (tmp_path / "letters.csv").write_text("text\n" + "".join(f"letter {n}\n" for n in range(5000)), encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: dry\ndocuments: {path: letters.csv, text_column: text}\nmodels: {m: m}\n"
        "tasks: [{id: t, model: m, prompt: 'Who?'}]\n",
        encoding="utf-8",
    )
    daemon = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(daemon))
    planned = run_orch("submit", str(job), "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "requests   5,000" in planned.stdout
    assert no_job(run_orch)
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0, run_orch.output(daemon)
    assert upstream.requests() == []


# Rows of one batch, and what becomes of each.
FAULTS: dict[str, tuple[str, str | None, str]] = {
    "good": ("hello", None, ""),
    "429": ("[[fault:status:429:Retry-After=0.1:2]]", None, ""),
    "500-twice": ("[[fault:status:500:2]]", None, ""),
    "cut-once": ("[[fault:cut:1]]", None, ""),
    "429-always": ("[[fault:status:429:Retry-After=0]]", "http_429", "scripted fault: status 429"),
    "500-always": ("[[fault:status:500]]", "http_500", "scripted fault: status 500"),
    "400": ("[[fault:status:400]]", "http_400", "scripted fault: status 400"),
    "html": ("[[fault:html]]", "upstream_error", "garbled: the answer (text/html; charset=utf-8, "),
    "html-502": ("[[fault:html:502]]", "http_502", "Bad Gateway"),
    "hang": ("[[fault:hang]]", "upstream_error", "timed out: no answer within 2 s"),
    "cut": ("[[fault:cut]]", "upstream_error", "cut: "),
    "short": ("[[fault:short]]", "upstream_error", "cut: "),
    "truncated": ("[[fault:truncated]]", "upstream_error", "garbled: the answer (application/json, "),
    "row-too-long": ("x" * 5000, "context_length_exceeded", "maximum context length is 1000 tokens"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """One run over rows with every fault: its exit code, its job in full, its rows by custom_id."""
    folder = tmp_path_factory.mktemp("faulty")
    home, batch, out = folder / "home", folder / "batch.jsonl", folder / "out.jsonl"
    home.mkdir()
    batch.write_bytes(jsonl([row(name, text) for name, (text, *_) in FAULTS.items()]))
    orch = Orch(home)
    with upstreams(folder) as make:
        upstream = make(max_model_len=1000)
        write_config(home, [upstream.base_url], retry_delay=0.01, request_timeout=2.0)
        ran = orch("run", str(batch), "-o", str(out), "--json")
        rows = [json.loads(line) for line in out.read_bytes().splitlines()]
        yield {
            "code": ran.returncode, "job": json.loads(ran.stdout), "stderr": ran.stderr, "rows": rows,
            "again": orch("run", str(batch), "--json"),
        }  # fmt: skip
    orch.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize(("name", "code", "message"), [(n, c, m) for n, (_, c, m) in FAULTS.items()], ids=FAULTS)
def test_a_fault_of_the_upstream(faulty: dict[str, Any], name: str, code: str | None, message: str) -> None:
    (line,) = (line for line in faulty["rows"] if line["custom_id"] == name)
    if code is None:
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
    elif code == "upstream_error":
        assert line["error"]["code"] == code
        assert line["error"]["message"].startswith(message)
    else:
        assert message in line["response"]["body"]["error"]["message"]
        assert code in [reason["code"] for reason in faulty["job"]["reasons"]]


def test_a_run_with_failed_rows(faulty: dict[str, Any]) -> None:
    assert faulty["code"] == 1
    job, failed = faulty["job"], sum(code is not None for _, code, _ in FAULTS.values())
    counts = job["requests"]
    assert (counts["total"], counts["succeeded"], counts["failed"]) == (len(FAULTS), len(FAULTS) - failed, failed)
    assert [line["custom_id"] for line in faulty["rows"]] == list(FAULTS)
    assert sum(reason["rows"] for reason in job["reasons"]) == failed
    assert (job["state"], job["error"]) == ("completed", None)
    again = json.loads(faulty["again"].stdout)
    assert again["job"] != job["job"]
    assert faulty["again"].returncode == 1


@pytest.mark.long
def test_a_refused_key_is_waited_out_where_the_rows_may_go_elsewhere_and_the_wait_is_said(
    batch: Path, run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(api_key="right-secret")
    other = f'[backends.other]\nupstreams = ["{upstream.base_url}"]\nlocation = "local"\ncost_per_hour = 2\n'
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, extra=other, api_key_env="MY_KEY")
    process = run_orch.start("run", str(batch), env={"MY_KEY": "wrong-secret"})

    def said() -> str:
        return " ".join(run_orch.output(process).split())

    wait_until(lambda: "s of at most 600 before its rows go to another backend): export its right key in" in said())
    assert "of at most 5)" not in said()
