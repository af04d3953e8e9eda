"""A user's days with jobs, through the command line as a process: what it prints, writes, sends and exits with."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.clock import HeldClock
from tests.support.killing import write_batch_file
from tests.support.process import PATIENCE, Upstream, wait_until

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - id: sender
    model: small
    prompt: Who wrote this?
  - id: facts
    model: small
    max_tokens: 100
    prompt: What are the facts?
    schema:
      type: object
      properties: {topic: {type: string}, pages: {type: integer}}
      required: [topic, pages]
models: {small: some-model}
tags: {team: mail}
"""


@pytest.fixture
def letters(tmp_path: Path, orch_home: Path, upstream: Upstream) -> Path:
    """A job file over five letters, and an orch.toml in front of a fast upstream."""
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    folder = tmp_path / "letters"
    (folder / "documents").mkdir(parents=True)
    for number in range(5):
        (folder / "documents" / f"{number}.txt").write_text(
            f"Dear reader, this is letter {number}.", encoding="utf-8"
        )
    job = folder / "job.yaml"
    job.write_text(JOB, encoding="utf-8")
    return job


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def job_of(run_orch: Orch) -> dict[str, Any]:
    """The newest job, in full."""
    newest = json.loads(run_orch("status", "--json").stdout)[0]
    detail: dict[str, Any] = json.loads(run_orch("status", newest["job"], "--json").stdout)
    return detail


def test_run_gives_a_checked_row_for_every_document_and_task(letters: Path, run_orch: Orch, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run_orch("run", str(letters), "-o", str(out))

    assert done.returncode == 0, done.stderr
    rows = rows_of(out.read_text())
    assert [(row["document"], row["task"]) for row in rows] == [
        (f"documents/{number}.txt", task) for number in range(5) for task in ("sender", "facts")
    ]
    assert {row["status"] for row in rows} == {"succeeded"}
    assert isinstance(rows[0]["output"], str)
    assert set(rows[1]["output"]) == {"topic", "pages"}
    provenance = rows[1]["provenance"]
    assert provenance["backend"] == "local"
    assert provenance["batch_id"].startswith("batch_")
    assert provenance["tokens"]["input"] > provenance["tokens"]["output"] > 0
    assert len({row["provenance"]["prompt_version"] for row in rows}) == 2
    assert "succeeded" in done.stdout


def test_the_document_comes_first_and_its_tasks_side_by_side(
    letters: Path, run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(slots=1, log_bodies=True)
    write_config(orch_home, [upstream.base_url], max_concurrency=2)
    run_orch("run", str(letters))

    texts = [json.loads(entry["body"])["messages"][0]["content"] for entry in upstream.requests()]
    assert all(text.startswith("<document>\nDear reader") for text in texts)
    assert [text.split("letter ")[1][0] for text in sorted(texts)] == sorted("0011223344")
    assert {json.loads(entry["body"])["model"] for entry in upstream.requests()} == {"some-model"}


@pytest.mark.long
def test_nothing_changed_sends_nothing(letters: Path, run_orch: Orch, upstream: Upstream) -> None:
    run_orch("run", str(letters))
    sent = len(upstream.requests())

    again = run_orch("run", str(letters))

    assert again.returncode == 0
    assert "nothing changed" in again.stderr
    assert len(upstream.requests()) == sent
    assert len(json.loads(run_orch("status", "--json").stdout)) == 1


@pytest.mark.long
def test_only_what_changed_is_sent_and_the_rest_is_carried(
    letters: Path, run_orch: Orch, upstream: Upstream, tmp_path: Path
) -> None:
    run_orch("run", str(letters), "-o", str(tmp_path / "first.jsonl"))
    sent = len(upstream.requests())
    documents = letters.parent / "documents"
    (documents / "1.txt").write_text("A new letter one.", encoding="utf-8")
    (documents / "9.txt").write_text("A late letter.", encoding="utf-8")
    (documents / "4.txt").unlink()

    done = run_orch("run", str(letters), "-o", str(tmp_path / "second.jsonl"))

    assert done.returncode == 0
    assert len(upstream.requests()) == sent + 4
    first = {row["custom_id"]: row for row in rows_of((tmp_path / "first.jsonl").read_text())}
    second = rows_of((tmp_path / "second.jsonl").read_text())
    assert [row["document"][-5] for row in second[::2]] == ["0", "1", "2", "3", "9"]
    carried = [row for row in second if row["provenance"]["carried_from"]]
    assert {row["document"][-5] for row in carried} == {"0", "2", "3"}
    assert all(row["output"] == first[row["custom_id"]]["output"] for row in carried)
    assert {row["provenance"]["cost_usd"] for row in carried} == {"0"}


@pytest.mark.long
def test_a_removed_document_alone_makes_a_new_result_without_it(
    letters: Path, run_orch: Orch, upstream: Upstream, tmp_path: Path
) -> None:
    run_orch("run", str(letters))
    sent = len(upstream.requests())
    (letters.parent / "documents" / "0.txt").unlink()

    run_orch("run", str(letters), "-o", str(tmp_path / "out.jsonl"))

    assert len(upstream.requests()) == sent
    assert len(rows_of((tmp_path / "out.jsonl").read_text())) == 8


@pytest.mark.long
def test_a_document_that_comes_back_is_not_somebody_elses_row(
    letters: Path, run_orch: Orch, upstream: Upstream, tmp_path: Path
) -> None:
    documents = letters.parent / "documents"
    for number in (2, 3, 4):
        (documents / f"{number}.txt").unlink()
    out = tmp_path / "out.jsonl"

    def documents_of_a_run() -> list[str]:
        assert run_orch("run", str(letters), "-o", str(out)).returncode == 0
        return sorted({row["document"][-5] for row in rows_of(out.read_text())})

    assert documents_of_a_run() == ["0", "1"]
    text = (documents / "1.txt").read_text()
    (documents / "1.txt").rename(documents / "2.txt")
    assert documents_of_a_run() == ["0", "2"]
    (documents / "2.txt").rename(documents / "1.txt")
    assert documents_of_a_run() == ["0", "1"]
    sent = len(upstream.requests())

    # An answer to an earlier text counts again when the text returns.
    (documents / "1.txt").write_text("Something else.", encoding="utf-8")
    documents_of_a_run()
    (documents / "1.txt").write_text(text, encoding="utf-8")
    assert documents_of_a_run() == ["0", "1"]
    assert len(upstream.requests()) == sent + 2


def test_one_broken_job_holds_up_no_other(letters: Path, run_orch: Orch, orch_home: Path, upstream: Upstream) -> None:
    (letters.parent / "taken").mkdir()
    text = letters.read_text()
    letters.write_text(text + "output: {path: taken}\n", encoding="utf-8")
    first = run_orch("run", str(letters))
    assert first.returncode in (2, 4)
    (letters.parent / "good.yaml").write_text(text.replace("name: letters", "name: good"), encoding="utf-8")

    assert run_orch("run", str(letters.parent / "good.yaml")).returncode == 0


@pytest.mark.long
def test_jobs_wait_for_the_settings_they_were_made_with(
    letters: Path, run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    run_orch("submit", str(letters))
    other = tmp_path / "other.toml"
    other.write_text((orch_home / "orch.toml").read_text(), encoding="utf-8")
    write_batch_file(tmp_path / "mine.jsonl", 3)

    assert run_orch("run", str(tmp_path / "mine.jsonl"), env={"ORCH_CONFIG": str(other)}).returncode == 0

    assert len(upstream.requests()) == 3
    states = {line["name"]: line["state"] for line in json.loads(run_orch("status", "--json").stdout)}
    assert states == {"mine": "completed", "letters": "queued"}


@pytest.mark.long
def test_status_tells_that_the_upstream_is_away(letters: Path, run_orch: Orch, upstream: Upstream) -> None:
    upstream.kill()
    running = run_orch.start("run", str(letters))
    wait_until(lambda: "waiting for http://" in str(_problem(run_orch)))
    assert str(_problem(run_orch)).endswith(": is vLLM running? see `orch doctor`")
    running.kill()


@pytest.mark.long
def test_status_tells_which_rows_are_refused_and_raises_no_alarm(
    letters: Path, run_orch: Orch, orch_home: Path, upstream: Upstream
) -> None:
    write_config(orch_home, [upstream.base_url], retry_delay=0.5)
    (letters.parent / "documents" / "5.txt").write_text("Odd. [[fault:status:529]]", encoding="utf-8")
    running = run_orch.start("run", str(letters), "--deadline", "8h")
    wait_until(lambda: "refused: overloaded (529), try " in str(_problem(run_orch)))
    assert str(_problem(run_orch)).startswith("2 rows refused: overloaded (529), try ")
    assert " of 20" in str(_problem(run_orch))
    found = job_of(run_orch)
    assert found["requests"]["done"] == 10
    assert found["eta_seconds"] is None, "the speed of the others says nothing about a row that is refused"
    assert found["outlook"]["chance"] > 0.9
    running.kill()


def _problem(run_orch: Orch) -> str | None:
    jobs = json.loads(run_orch("status", "--json").stdout)
    return json.loads(run_orch("status", jobs[0]["job"], "--json").stdout)["problem"] if jobs else None


@pytest.mark.long
def test_a_changed_prompt_sends_that_task_again_and_no_other(
    letters: Path, run_orch: Orch, upstream: Upstream
) -> None:
    run_orch("run", str(letters))
    sent = len(upstream.requests())
    letters.write_text(JOB.replace("Who wrote this?", "Who is the author?"), encoding="utf-8")

    run_orch("run", str(letters))

    assert len(upstream.requests()) == sent + 5


@pytest.mark.long
def test_new_sends_everything_again(letters: Path, run_orch: Orch, upstream: Upstream) -> None:
    run_orch("run", str(letters))
    run_orch("run", str(letters), "--new")
    assert len(upstream.requests()) == 20


def test_documents_that_cannot_be_read_are_rows_with_a_reason(letters: Path, run_orch: Orch, tmp_path: Path) -> None:
    (letters.parent / "documents" / "2.txt").write_bytes(b"")
    out = tmp_path / "out.jsonl"

    done = run_orch("run", str(letters), "-o", str(out))

    assert done.returncode == 1
    bad = [row for row in rows_of(out.read_text()) if row["status"] == "failed"]
    assert [row["document"] for row in bad] == ["documents/2.txt"] * 2
    assert {row["error"]["code"] for row in bad} == {"empty"}
    assert "documents/2.txt: It contains no text; add some, or exclude it." in " ".join(done.stdout.split())


def test_a_reason_is_that_of_the_document_beside_it(letters: Path, run_orch: Orch) -> None:
    folder = letters.parent / "documents"
    (folder / "1.txt").write_bytes(b"\xff\xfe\x00\xd8\x01")
    (folder / "2.txt").write_bytes(b"\xfe\xff\xd8\x00\x00")

    found = " ".join(run_orch("run", str(letters)).stdout.split())

    assert "4 encoding documents/1.txt, …: The text is not valid utf-16-le" in found


@pytest.mark.long
def test_submit_queues_and_up_runs_it(letters: Path, run_orch: Orch) -> None:
    queued = run_orch("submit", str(letters))
    assert queued.returncode == 0
    job = queued.stdout.strip()
    assert "no daemon is running" in queued.stderr
    assert job_of(run_orch)["state"] == "queued"
    assert "no daemon is running, so nothing continues" in run_orch("status", job).stdout

    daemon = run_orch.start("up")
    wait_until(lambda: job_of(run_orch)["state"] == "completed")
    daemon.terminate()

    assert daemon.wait(PATIENCE) == 0
    assert f"{job}: completed" in run_orch.output(daemon)
    assert len(rows_of(run_orch("fetch", job).stdout)) == 10


@pytest.mark.long
def test_up_tells_of_its_own_jobs_and_not_of_another_homes(letters: Path, run_orch: Orch, tmp_path: Path) -> None:
    env = {"ORCH_DATABASE_URL": f"sqlite:///{tmp_path / 'both.db'}"}
    up = run_orch.start("up", env=env)
    wait_until(lambda: "is up" in run_orch.output(up))
    (tmp_path / "other").mkdir()
    other = {**env, "ORCH_HOME": str(tmp_path / "other"), "ORCH_CONFIG": str(run_orch.home / "orch.toml")}
    theirs = json.loads(run_orch("run", str(letters), "--json", env=other).stdout)["job"]
    mine = run_orch("submit", str(letters), "--new", env=env).stdout.split()[0]
    wait_until(lambda: f"{mine}: completed, 10/10 rows" in run_orch.output(up))
    assert theirs not in run_orch.output(up)


def test_dry_run_plans_and_leaves_nothing(letters: Path, run_orch: Orch, upstream: Upstream, orch_home: Path) -> None:
    done = run_orch("submit", str(letters), "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert (plan["documents"], plan["requests"], plan["unchanged"]) == (5, 10, 0)
    [route] = plan["plan"]["routes"]
    assert (route["backend"], route["rows"]) == ("local", 10)
    assert route["reason"]
    assert json.loads(run_orch("status", "--json").stdout) == []
    assert upstream.requests() == []
    assert list(orch_home.glob("jobs/*")) == []


@pytest.mark.long
def test_a_batch_file_gives_openai_lines_in_input_order(run_orch: Orch, letters: Path, tmp_path: Path) -> None:
    ids = write_batch_file(tmp_path / "in.jsonl", 40)
    out = tmp_path / "out.jsonl"

    done = run_orch("run", str(tmp_path / "in.jsonl"), "-o", str(out))

    assert done.returncode == 0, done.stderr
    rows = rows_of(out.read_text())
    assert [row["custom_id"] for row in rows] == ids
    assert all(set(row) == {"id", "custom_id", "response", "error"} for row in rows)
    assert all(row["response"]["status_code"] == 200 and row["error"] is None for row in rows)
    job = job_of(run_orch)["job"]
    merged = rows_of(run_orch("fetch", job, "--format", "jsonl").stdout)
    assert [row["custom_id"] for row in merged] == ids
    assert all(row["status"] == "succeeded" for row in merged)


def test_large_jobs_are_cut_into_shards_of_the_configured_size(
    run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    write_config(orch_home, [upstream.base_url], limits={"max_rows": 30})
    ids = write_batch_file(tmp_path / "in.jsonl", 100)
    done = run_orch("run", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    assert done.returncode == 0, done.stderr
    assert [shard["rows"] for shard in job_of(run_orch)["shards"]] == [30, 30, 30, 10]
    assert [row["custom_id"] for row in rows_of((tmp_path / "out.jsonl").read_text())] == ids


@pytest.fixture
def slow(orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path) -> Upstream:
    """An upstream that needs minutes for the 200 rows of `in.jsonl`."""
    upstream = make_upstream(slots=2, latency_ms=300)
    write_config(orch_home, [upstream.base_url], idle=None, cost_per_hour=36, max_concurrency=8)
    write_batch_file(tmp_path / "in.jsonl", 200)
    return upstream


@pytest.mark.long
def test_cancel_keeps_what_is_done_and_retry_runs_the_rest(
    slow: Upstream, run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    running = run_orch.start("run", str(tmp_path / "in.jsonl"))
    wait_until(lambda: len(slow.requests()) > 8)
    job = job_of(run_orch)["job"]

    assert run_orch("cancel", job).returncode == 0
    assert running.wait(PATIENCE) == 1
    counts = job_of(run_orch)["requests"]
    assert counts["succeeded"] > 0
    assert counts["succeeded"] + counts["cancelled"] == 200
    done_before = counts["succeeded"]

    fast = make_upstream()
    write_config(orch_home, [fast.base_url])
    assert run_orch("retry", job, "--wait").returncode == 0
    assert job_of(run_orch)["requests"]["succeeded"] == 200
    assert len(fast.requests()) == 200 - done_before


@pytest.mark.long
def test_partial_gives_what_is_done_of_a_running_job(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    running = run_orch.start("run", str(tmp_path / "in.jsonl"))
    wait_until(lambda: len(slow.requests()) > 10)
    job = job_of(run_orch)["job"]

    assert run_orch("fetch", job).returncode == 2
    rows = rows_of(run_orch("fetch", job, "--partial", "--format", "jsonl").stdout)
    assert 0 < len(rows) < 200
    assert {row["status"] for row in rows} == {"succeeded"}

    running.kill()
    running.wait()
    fetched = run_orch("fetch", job, "--partial", "--format", "jsonl")
    later = rows_of(fetched.stdout)
    assert len(later) >= len(rows)
    assert fetched.stderr == f"orch: {len(later)} rows; {200 - len(later)} of 200 are not here yet\n"
    assert all(float(row["provenance"]["cost_usd"]) > 0 for row in later)


@pytest.mark.long
def test_a_second_run_follows_the_first_ones_daemon(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    write_batch_file(tmp_path / "other.jsonl", 5)
    first = run_orch.start("run", str(tmp_path / "in.jsonl"))
    wait_until(lambda: len(slow.requests()) > 4)
    second = run_orch.start("run", str(tmp_path / "other.jsonl"))
    wait_until(lambda: f"process {first.pid}" in run_orch.output(second))

    first.kill()
    first.wait()

    # The daemon's death hands the home over: the second run finishes its own job, and the first one's is not lost.
    wait_until(lambda: len(json.loads(run_orch("status", "--json").stdout)) == 2)
    names = {line["name"]: line["job"] for line in json.loads(run_orch("status", "--json").stdout)}
    run_orch("cancel", names["in"])
    assert second.wait(PATIENCE) == 0
    assert sum(slow.counts()[f"row-{number:05d}"] for number in range(5)) >= 5


@pytest.mark.long
def test_the_same_run_twice_at_once_is_one_job(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    write_batch_file(tmp_path / "one.jsonl", 20)
    first = run_orch.start("run", str(tmp_path / "one.jsonl"))
    wait_until(lambda: len(slow.requests()) > 2)
    with slow.held():
        second = run_orch.start("run", str(tmp_path / "one.jsonl"))
        wait_until(lambda: "resuming where it stopped" in run_orch.output(second))

    assert first.wait(PATIENCE) == 0
    assert second.wait(PATIENCE) == 0
    assert set(slow.counts().values()) == {1}
    assert len(json.loads(run_orch("status", "--json").stdout)) == 1


@pytest.mark.long
def test_two_runs_started_together_are_one_job(
    run_orch: Orch, letters: Path, upstream: Upstream, tmp_path: Path
) -> None:
    write_batch_file(tmp_path / "one.jsonl", 500)
    both = [run_orch.start("run", str(tmp_path / "one.jsonl"), "-q") for _ in range(3)]

    assert [process.wait(PATIENCE) for process in both] == [0, 0, 0]
    assert len(json.loads(run_orch("status", "--json").stdout)) == 1
    assert set(upstream.counts().values()) == {1}


@pytest.mark.long
def test_a_build_that_was_killed_is_not_a_job(run_orch: Orch, letters: Path, orch_home: Path, tmp_path: Path) -> None:
    write_batch_file(tmp_path / "large.jsonl", 60_000)
    building = run_orch.start("submit", str(tmp_path / "large.jsonl"))
    wait_until(lambda: any(path.stat().st_size for path in orch_home.glob("jobs/*/requests.jsonl")))
    building.kill()
    building.wait()
    assert job_of(run_orch)["state"] == "building"

    assert run_orch("submit", str(tmp_path / "large.jsonl")).returncode == 0
    (job,) = json.loads(run_orch("status", "--json").stdout)
    assert (job["state"], job["requests"]["total"]) == ("queued", 60_000)


@pytest.mark.long
def test_a_batch_that_the_server_lost_is_run_again(
    slow: Upstream, run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    running = run_orch.start("run", str(tmp_path / "in.jsonl"))
    wait_until(lambda: len(slow.requests()) > 4)
    running.kill()
    running.wait()
    shutil.rmtree(orch_home / "servers")
    write_config(orch_home, [make_upstream().base_url])

    assert run_orch("run", str(tmp_path / "in.jsonl")).returncode == 0
    job = job_of(run_orch)
    assert job["requests"]["succeeded"] == 200
    assert [shard["rows"] for shard in job["shards"]] == [200, 200]
    assert {
        row["provenance"]["attempt"] for row in rows_of(run_orch("fetch", job["job"], "--format", "jsonl").stdout)
    } == {2}


@pytest.mark.long
def test_a_budget_stops_the_job_and_keeps_what_was_paid_for(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    # $36 an hour is a cent a second.
    done = run_orch("run", str(tmp_path / "in.jsonl"), "--budget", "0.08")
    job = job_of(run_orch)
    assert done.returncode == 1
    assert job["requests"]["succeeded"] > 0
    assert job["requests"]["cancelled"] > 0
    assert [reason["code"] for reason in job["reasons"]] == ["budget_exhausted"]
    assert "budget of $0.08 covers no further row" in done.stdout
    # Rows in flight are asked to their end: on a busy machine they may take longer than those before them.
    assert 0 < float(job["cost_usd"]) < 0.09


def test_an_output_that_cannot_be_is_told_before_anything_runs(
    letters: Path, run_orch: Orch, upstream: Upstream, tmp_path: Path
) -> None:
    done = run_orch("run", str(letters), "-o", str(letters / "out.jsonl"))
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
    assert upstream.requests() == []


def test_an_unfinished_job_takes_another_deadline_and_budget(letters: Path, run_orch: Orch) -> None:
    run_orch("submit", str(letters), "--budget", "1")
    run_orch("submit", str(letters), "--budget", "2.50", "--deadline", "2099-01-01T00:00+00:00")
    (job,) = json.loads(run_orch("status", "--json").stdout)
    assert (job["budget_usd"], job["deadline_at"]) == ("2.5", "2099-01-01T00:00:00+00:00")


def test_a_budget_of_nothing_sends_nothing(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    assert run_orch("run", str(tmp_path / "in.jsonl"), "--budget", "0").returncode == 1
    assert slow.requests() == []
    assert job_of(run_orch)["requests"]["cancelled"] == 200


def test_a_plan_that_its_budget_would_stop_says_so(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    write_config(run_orch.home, [slow.base_url], idle=None, cost_per_hour=36, rows_per_second=1.0)
    file = str(tmp_path / "in.jsonl")
    over = run_orch("plan", file, "--budget", "0.50")
    assert over.returncode == 0
    assert "the job stops at its budget of $0.5" in over.stdout
    assert "orch run and orch submit proceed: these figures are estimates" in over.stdout
    least = over.stdout.partition("--budget ")[2].split()[0]
    assert run_orch("plan", file, "--budget", least).returncode == 0


@pytest.mark.long
def test_interrupted_runs_go_on_where_they_stopped(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    running = run_orch.start("run", str(tmp_path / "in.jsonl"))
    wait_until(lambda: len(slow.requests()) > 10)
    running.send_signal(2)
    assert running.wait(PATIENCE) == 130
    assert "run the same command again" in run_orch.output(running)
    assert "orch cancel" not in run_orch.output(running), "what ran here stands still now"
    assert job_of(run_orch)["state"] == "stopped"
    assert json.loads(run_orch("status", job_of(run_orch)["job"], "--json").stdout)["state"] == "stopped"
    night = json.loads(run_orch("report", "night", job_of(run_orch)["job"], "--json").stdout)
    assert [one["state"] for one in night["jobs"]] == ["stopped"]
    assert [one["eta_seconds"] for one in json.loads(run_orch("status", "--json").stdout)] == [None]
    assert job_of(run_orch)["eta_seconds"] is None, "it does not end by itself"
    listed, shown = run_orch("status").stdout, run_orch("status", job_of(run_orch)["job"]).stdout
    assert " stopped " in listed
    assert " running " not in listed
    assert shown.splitlines()[0].endswith("stopped")
    assert "no daemon is running, so nothing continues" in shown


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "xlsx"])
def test_the_rows_that_are_counted_are_those_of_the_file(
    letters: Path, run_orch: Orch, tmp_path: Path, form: str
) -> None:
    run_orch("run", str(letters))
    for shape, rows in (("--wide", 5), ("--long", 10)):
        file = str(tmp_path / f"{shape}.{form}")
        told = run_orch("fetch", "letters", "-o", file, shape)
        assert f"{rows} rows in {file}" in told.stderr
        assert json.loads(run_orch("fetch", "letters", "-o", file, shape, "--json").stdout)["rows"] == rows
    partly = json.loads(run_orch("fetch", "letters", "-o", file, "--wide", "--partial", "--json").stdout)
    assert (partly["rows"], partly["left"]) == (5, 0)


@pytest.mark.long
def test_a_deadline_that_passes_is_finished_late_and_said_so(
    slow: Upstream, run_orch: Orch, tmp_path: Path, held_clock: HeldClock
) -> None:
    running = run_orch.start("run", str(tmp_path / "in.jsonl"), "--deadline", "2s", env=held_clock.environment)
    wait_until(lambda: len(slow.requests()) > 4)
    # While it is away no row can end, so that the deadline comes over rows that are open.
    slow.kill()
    held_clock.move(seconds=3)
    wait_until(lambda: len(job_of(run_orch)["shards"]) == 2)
    with Upstream(tmp_path / "fast.log", port=slow.port):
        assert running.wait(PATIENCE) == 0, run_orch.output(running)
    job = job_of(run_orch)
    assert job["requests"]["succeeded"] == 200
    assert [shard["batch_status"] for shard in job["shards"]] == ["expired", "completed"]
    assert "finishing late" in job["shards"][1]["reason"]


@pytest.mark.long
def test_cost_report_sums_equal_the_rows(slow: Upstream, run_orch: Orch, tmp_path: Path) -> None:
    write_batch_file(tmp_path / "paid.jsonl", 10)
    run_orch("run", str(tmp_path / "paid.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    job = job_of(run_orch)["job"]
    rows = rows_of(run_orch("fetch", job, "--format", "jsonl").stdout)

    report = json.loads(run_orch("report", "cost", "--json").stdout)
    paid = sum(Decimal(row["provenance"]["cost_usd"]) for row in rows)
    assert Decimal(report["total"]["cost_usd"]) == paid > 0
    assert report["total"]["tokens"]["input"] == sum(row["provenance"]["tokens"]["input"] for row in rows)
    hosted = report["total"]["hosted"]
    assert float(hosted["realtime_usd"]) == 2 * float(hosted["batch_usd"]) > 0
    for by in ("day", "model", "backend", "tag:team"):
        other = json.loads(run_orch("report", "cost", "--by", by, "--json").stdout)
        assert other["total"]["cost_usd"] == report["total"]["cost_usd"]
    csv_lines = run_orch("report", "cost", "--csv").stdout.splitlines()
    assert csv_lines[0].startswith("job,rows,input_tokens")
    assert csv_lines[1].startswith(f"{job},10,")


def test_doctor_tells_what_is_well_and_what_is_not(letters: Path, run_orch: Orch, upstream: Upstream) -> None:
    well = run_orch("doctor")
    assert well.returncode == 0, well.stdout
    upstream.kill()
    ill = run_orch("doctor")
    assert ill.returncode == 4
    assert f"BAD  upstream {upstream.base_url}" in ill.stdout
