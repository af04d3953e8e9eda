"""Documents that fail night after night: told apart, acknowledged, and what the exit code makes of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - id: facts
    model: small
    max_tokens: 100
    prompt: What are the facts?
    schema: {type: object, properties: {topic: {type: string}}, required: [topic]}
models: {small: some-model}
"""
BAD = "Letter. [[fault:notjson]]"


class Nights:
    """A job file that is run night after night, by the clock that a test sets."""

    def __init__(self, orch: Orch, folder: Path) -> None:
        self.orch = orch
        self.documents = folder / "documents"
        self.documents.mkdir()
        self.job_file = folder / "job.yaml"
        self.job_file.write_text(JOB, encoding="utf-8")
        self.clock = folder / "clock.json"
        self.night = 8

    def write(self, name: str, text: str) -> None:
        (self.documents / f"{name}.txt").write_text(text, encoding="utf-8")

    def run(self, *more: str) -> int:
        """The next night, with a letter that is new; the exit code."""
        self.night += 1
        self.write(f"new-{self.night}", f"Letter {self.night}.")
        return self.again(*more)

    def again(self, *more: str) -> int:
        return self("run", str(self.job_file), "--quiet", *more).returncode

    def __call__(self, *arguments: str) -> Any:
        clock = {"at": f"2026-11-{self.night:02d}T22:00:00+00:00", "since": time.time(), "speed": 1.0}
        self.clock.write_text(json.dumps(clock), encoding="utf-8")
        return self.orch(*arguments, env={"TZ": "UTC", "ORCH_CLOCK": str(self.clock)})

    def json(self, *arguments: str) -> Any:
        found = self(*arguments, "--json")
        assert found.stdout, found.stderr
        return json.loads(found.stdout)

    @property
    def job(self) -> str:
        newest: str = self.json("status")[0]["job"]
        return newest

    @property
    def failures(self) -> dict[str, Any]:
        told: dict[str, Any] = self.json("status", self.job)["failures"]
        return told


@pytest.fixture
def nights(run_orch: Orch, upstream: Upstream, tmp_path: Path) -> Nights:
    write_config(run_orch.home, [upstream.base_url], retry_delay=0.01)
    found = Nights(run_orch, tmp_path)
    found.write("bad", BAD)
    found.write("empty", "")
    found.write("good", "Letter.")
    return found


@pytest.mark.long
def test_a_document_that_fails_as_before_is_counted_apart(nights: Nights) -> None:
    assert nights.run() == 1
    assert nights.failures["new"] == 2
    assert nights.run("--fail-on", "new") == 0
    assert nights.failures["known"] == 2
    assert nights.failures["known_since"].startswith("2026-11-09T22:")
    shown = " ".join(nights("status", nights.job).stdout.split())
    assert "failures 2 known since Mon 9 Nov" in shown

    # One more is new, and makes the night a bad one.
    nights.write("worse", f"Another. {BAD}")
    assert nights.run("--fail-on", "new") == 1
    shown = " ".join(nights("status", nights.job).stdout.split())
    assert "failures 1 new, 2 known since Mon 9 Nov" in shown
    assert "3, 2 known" in " ".join(nights("status").stdout.split())

    report = nights.json("report", "night", nights.job)["jobs"][0]
    fates = {fate: [one["name"] for one in of["first"]] for fate, of in report["documents"].items() if of["first"]}
    assert fates["known"] == ["documents/bad.txt", "documents/empty.txt"]
    assert fates["failed"] == ["documents/worse.txt"]
    assert [(one["code"], one["rows"], one["since"][:10]) for one in report["known"]] == [
        ("invalid_json", 1, "2026-11-09"),
        ("empty", 1, "2026-11-09"),
    ]
    assert [need.partition(":")[0] for need in report["needs"]] == ["1 row did not succeed (invalid_json)"]
    assert "known failures: 2 rows since Mon 9 Nov" in nights("report", "night", nights.job).stdout


@pytest.mark.long
def test_what_is_acknowledged_makes_no_night_a_bad_one(nights: Nights) -> None:
    assert nights.run() == 1
    assert nights("acknowledge", "documents/empty.txt", "--note", "the scanner's test page").returncode == 0
    assert nights.again() == 1, "the other one is not acknowledged"
    done = nights("acknowledge", "--all", "--json")
    assert [one["status"] for one in json.loads(done.stdout)] == ["acknowledged", "acknowledged"]
    assert done.stderr == "orch: 1 failure is acknowledged\n"
    assert [nights.again(*more) for more in ((), ("--fail-on", "new"), ("--fail-on", "any"))] == [0, 0, 1]
    assert nights.run() == 0
    assert nights.failures == {"new": 0, "known": 0, "acknowledged": 2, "known_since": None}
    assert "failures 2 acknowledged" in " ".join(nights("status", nights.job).stdout.split())
    report = nights.json("report", "night", nights.job)["jobs"][0]
    assert (report["needs"], [one["rows"] for one in report["known"]]) == ([], [1, 1])

    listed = nights.json("acknowledge", "--list")
    assert [(one["document"], one["code"], one["status"]) for one in listed] == [
        ("documents/bad.txt", "invalid_json", "acknowledged"),
        ("documents/empty.txt", "empty", "acknowledged"),
    ]
    assert (listed[1]["since"][:10], listed[1]["note"], listed[0]["note"]) == ("2026-11-09", None, None)
    assert nights("acknowledge", "--take-back", "documents/bad.txt").returncode == 0
    assert nights.again() == 1
    told = nights("acknowledge", "--list").stdout.splitlines()
    assert told[1].split()[:7] == ["documents/bad.txt", "facts", "invalid_json", "known", "Mon", "9", "Nov"]


@pytest.mark.long
def test_a_document_that_was_mended_and_broke_again_is_new(nights: Nights) -> None:
    nights.run()
    nights("acknowledge", "--all")
    nights.write("empty", "Now there is something.")
    nights.write("bad", "And here too.")
    assert nights.run() == 0
    nights.write("empty", "")
    assert nights.run("--fail-on", "new") == 1
    assert nights.failures["new"] == 1


@pytest.mark.long
def test_the_exit_code_of_what_only_gives_rows(nights: Nights) -> None:
    nights.run()
    given = {more: nights("fetch", nights.job, *more).returncode for more in ((), ("--fail-on", "new"))}
    assert given == {(): 0, ("--fail-on", "new"): 1}
    nights.run()
    for fail_on, code in (("new", 0), ("unacknowledged", 1), ("any", 1)):
        assert nights("fetch", nights.job, "--fail-on", fail_on).returncode == code
        assert nights("submit", str(nights.job_file), "--wait", "--fail-on", fail_on).returncode == code
    assert nights("retry", nights.job, "--wait", "--fail-on", "new").returncode == 0


BAD_ARGUMENTS = {
    ("acknowledge",): "name a DOCUMENT, --job JOB, or --all",
    ("acknowledge", "documents/good.txt"): "no row of the document 'documents/good.txt' has failed in the newest run",
    ("acknowledge", "--all", "documents/bad.txt"): "--all takes all failures of all job files",
    ("acknowledge", "--list", "--note", "x"): "--list: only shows failures",
    ("acknowledge", "--take-back", "--all", "--note", "x"): "--note: only applies when acknowledging",
    ("acknowledge", "--job", "none"): "there is no job 'none'",
    ("submit", "job.yaml", "--fail-on", "new"): "--fail-on: only applies with --wait",
    ("run", "job.yaml", "--fail-on", "some"): "'some' is not one of 'new', 'unacknowledged', 'any'",
}


def test_what_cannot_be_meant_is_refused(nights: Nights) -> None:
    nights.run()
    for arguments, said in BAD_ARGUMENTS.items():
        refused = nights(*arguments)
        assert (refused.returncode, said in refused.stderr) == (2, True), (arguments, refused.stderr)


def test_nothing_has_failed(nights: Nights) -> None:
    for name in ("bad", "empty"):
        (nights.documents / f"{name}.txt").unlink()
    assert nights.run("--fail-on", "any") == 0
    assert nights("acknowledge", "--list").stderr == "orch: nothing has failed in the newest runs\n"
    assert nights.json("acknowledge", "--list") == []
