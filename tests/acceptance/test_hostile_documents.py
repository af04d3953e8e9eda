"""Documents, links and answers of strangers, met by the command line: each is told, and none holds the others up."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support import bombs
from tests.support.cli import Orch, Process, write_config
from tests.support.process import wait_until
from tests.support.raycluster import below, command_of

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, max_tokens: 50, prompt: "Who wrote this?"}
models: {small: some-model}
"""
LIMITS = '[documents]\nworkers = 2\nmax_seconds = %d\nmax_memory = "300MB"\n'
SLOW = bombs.form_objects(30, 2, padding=5000)
"""Minutes of work in 600 kB."""
IGNORED = {
    "read": 2,
    "in_part": 0,
    "unreadable": {},
    "total": 7,
    "kinds": {".png": 2, ".dwg": 1},
    "lock_files": 1,
    "links": 2,
    "special_files": 1,
    "secrets": 0,
    "first": ["documents/environ.txt", "documents/etc", "documents/pipe.txt"],
}
WORDS = (
    "read 2; 2 .png not read (`render` would), 1 of other kinds (.dwg 1), 1 lock file, 2 links out of the folder, "
    "1 pipe, socket or device"
)


def files(folder: Path) -> Path:
    """A job file, two good documents, and what is none."""
    documents = folder / "documents"
    documents.mkdir()
    (documents / "a.txt").write_text("Dear Anna")
    (documents / "z.html").write_text("<p>Dear Zoe")
    for name in ("x.png", "y.png", "sheet.dwg", "~$letter.docx"):
        (documents / name).write_bytes(b"\0")
    (documents / "environ.txt").symlink_to("/proc/self/environ")
    (documents / "etc").symlink_to("/etc")
    os.mkfifo(documents / "pipe.txt")
    (folder / "job.yaml").write_text(JOB)
    return documents


def bad(documents: Path) -> None:
    """Put documents there that take too much."""
    (documents / "slow.pdf").write_bytes(SLOW)
    (documents / "large.pdf").write_bytes(bombs.form_objects(30, 2))
    (documents / "boxes.docx").write_bytes(bombs.text_boxes(30))


def result(orch: Orch, *arguments: str, expect: int = 0) -> Any:
    done = orch(*arguments, "--json", timeout=120)
    assert done.returncode == expect, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_every_file_that_was_not_read_is_named_on_demand(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    write_config(run_orch.home, [make_upstream().base_url])
    documents = files(tmp_path)
    (documents / "old.doc").write_bytes(b"\0")
    (documents / "locked.zip").write_bytes(b"no archive")
    (documents / "server.pem").write_bytes(b"x")
    plain = run_orch("validate", "job.yaml", "--list").stdout
    for line in (
        "old.doc: an older format, which LibreOffice reads", "locked.zip: damaged or out of reach",
        "server.pem: a key or certificate", "~$letter.docx: the lock file", "etc: a link out of the source's folder",
    ):  # fmt: skip
        assert f"  not read: documents/{line}" in plain
    assert "read 2; 1 .doc not read (LibreOffice would), 2 .png not read (`render` would), 1 damaged or" in plain
    told = result(run_orch, "validate", "job.yaml", "--list")
    assert {"key": "documents/locked.zip", "why": "unreadable", "notes": ""} in told["not_read"]
    assert len(told["not_read"]) == told["ignored"]["total"] + sum(told["ignored"]["unreadable"].values())
    assert result(run_orch, "validate", "job.yaml")["not_read"] is None


@pytest.mark.long
def test_what_is_ignored_is_told_everywhere(run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path) -> None:
    write_config(run_orch.home, [make_upstream().base_url])
    files(tmp_path)
    for command in (["validate", "job.yaml"], ["plan", "job.yaml"], ["submit", "job.yaml", "--dry-run"]):
        assert result(run_orch, *command)["ignored"] == IGNORED
        assert WORDS in run_orch(*command).stdout
    ran = run_orch("run", "job.yaml")
    assert ran.returncode == 0, ran.stderr
    assert f"2 requests of 2 documents; {WORDS}" in ran.stderr
    (told,) = result(run_orch, "report", "night")["jobs"]
    assert told["ignored"] == IGNORED
    assert WORDS in run_orch("report", "night").stdout
    assert "/etc" not in run_orch("fetch", told["job"]).stdout


@pytest.mark.soak  # `make test` has the readers, in unit/test_documents_hostile
def test_documents_that_take_too_much_are_rows_that_failed(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    write_config(run_orch.home, [make_upstream().base_url], extra=LIMITS % 3)
    bad(files(tmp_path))
    problems = {one["document"]: one for one in result(run_orch, "validate", "job.yaml")["problems"]}
    assert {name: one["code"] for name, one in problems.items()} == {
        "documents/large.pdf": "memory_limit",
        "documents/slow.pdf": "time_limit",
    }
    assert "raise `max_memory` under [documents] in orch.toml" in problems["documents/large.pdf"]["message"]
    assert "the 3 seconds allowed" in problems["documents/slow.pdf"]["message"]
    ran = result(run_orch, "run", "job.yaml", expect=1)
    assert (ran["requests"]["succeeded"], ran["requests"]["failed"]) == (3, 2)
    rows = [json.loads(row) for row in run_orch("fetch", ran["job"]).stdout.splitlines()]
    assert [(row["document"], (row["error"] or {}).get("code")) for row in rows] == [
        ("documents/a.txt", None),
        ("documents/boxes.docx", None),
        ("documents/large.pdf", "memory_limit"),
        ("documents/slow.pdf", "time_limit"),
        ("documents/z.html", None),
    ]


def readers_of(process: Process) -> list[int]:
    """The processes that read documents for another or its builders, and have been at it for a while."""
    found = []
    for pid in below(process.pid):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if "bounded.confined_child" in command_of(pid) and int(fields[11]) > 20 and fields[0] != "Z":
            found.append(pid)
    return found


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.long
@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    ("command", "number"),
    [("validate", signal.SIGTERM), ("run", signal.SIGINT), ("up", signal.SIGTERM), ("up", signal.SIGINT)],
)
def test_a_signal_ends_the_reading_at_once(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    write_config(run_orch.home, [make_upstream().base_url], extra=LIMITS % 3600)
    documents = files(tmp_path)
    if command == "up":
        added = run_orch("schedule", "add", "job.yaml", "--name", "n", "--cron", "0 22 * * *", "--tz", "UTC")
        assert added.returncode == 0, added.stderr
    for name in ("1.pdf", "2.pdf", "3.pdf"):
        (documents / name).write_bytes(SLOW)
    if command == "up":
        assert run_orch("schedule", "run", "n").returncode == 0
    process = run_orch.start(*(["up"] if command == "up" else [command, "job.yaml"]))
    readers = wait_until(lambda: readers_of(process), 60)
    process.send_signal(number)
    code = process.wait(20)  # reading goes on for minutes
    assert code == (0 if command == "up" else 130 if number is signal.SIGINT else -number)
    wait_until(lambda: all(map(is_gone, readers)))
    for pdf in documents.glob("*.pdf"):
        pdf.unlink()
    ran = result(run_orch, "run", "job.yaml")
    assert ran["requests"]["succeeded"] == 2


def test_an_answer_that_hangs_other_checks_fails_its_row(
    run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    """A backtracking engine takes 2^200 steps to find that these answers have no exclamation mark."""
    write_config(run_orch.home, [make_upstream().base_url])
    files(tmp_path)
    code = '{type: string, minLength: 200, pattern: "^([a-z0-9:.]+)+!$"}'
    schema = f"{{type: object, properties: {{code: {code}}}, required: [code]}}"
    (tmp_path / "job.yaml").write_text(JOB.replace('this?"', f'this?", schema: {schema}'))
    ran = result(run_orch, "run", "job.yaml", expect=1)
    assert ran["requests"]["failed"] == 2
    assert {one["code"] for one in ran["reasons"]} == {"schema_mismatch"}
    assert all("does not match '^([a-z0-9:.]+)+!$'" in one["message"] for one in ran["reasons"])


def test_aliases_that_stand_for_a_billion_values_are_told(run_orch: Orch, tmp_path: Path) -> None:
    write_config(run_orch.home, ["http://127.0.0.1:1/v1"])
    files(tmp_path)
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    (tmp_path / "job.yaml").write_text(bomb + JOB)
    done = run_orch("validate", "job.yaml")
    assert done.returncode == 2
    assert "job.yaml:" in done.stderr
    assert "has more than 100,000 values when its aliases (*name) are written out" in done.stderr
