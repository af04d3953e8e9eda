"""Files that cannot be right, given to the command line: what it exits with and says, and that it leaves nothing.

docs/reference/bad-input.md is this table for users.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store import Store
from tests.support.batchapi import jsonl, row
from tests.support.cli import Orch, write_config
from tests.support.limits import prefix
from tests.support.process import PATIENCE, Upstream, upstreams, wait_until

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - id: sender
    model: small
    prompt: Who wrote this?
models: {small: some-model}
"""
GOOD = jsonl([row("a"), row("b")])


def line(**changes: Any) -> dict[str, Any]:
    """A good line with changed fields; one given as None is left out."""
    return {name: value for name, value in {**row("x"), **changes}.items() if value is not None}


@dataclass(frozen=True)
class Bench:
    """A home whose database is there, a folder for files, an upstream that must hear of nothing."""

    orch: Orch
    folder: Path
    upstream: Upstream

    def file(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """Whatever is done in the block leaves no job and no file, and sends nothing."""
        before = self._state()
        yield
        assert self._state() == before

    def _state(self) -> tuple[list[str], list[Path], int]:
        with Store.open(f"sqlite:///{self.orch.home / 'orch.db'}") as store:
            jobs = [job.id for job in store.jobs.newest()]
        return jobs, sorted(self.orch.home.glob("jobs/*")), len(self.upstream.requests())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bad")
    home = folder / "home"
    (folder / "documents").mkdir()
    (folder / "documents" / "1.txt").write_text("Dear reader", encoding="utf-8")
    (folder / "empty").mkdir()
    home.mkdir()
    with upstreams(folder) as make:
        upstream = make()
        write_config(home, [upstream.base_url], retry_delay=0.01)
        orch = Orch(home)
        assert orch("status").returncode == 0
        yield Bench(orch, folder, upstream)
        orch.close()


TO_DO = "fix these lines and run the same command again; nothing was sent"
BATCH_FILES: dict[str, tuple[bytes, list[str]]] = {
    "not-json": (
        jsonl([row("a"), b"{broken", row("b"), b"nope"]),
        ["FILE:2: This line is not parseable as valid JSON.", "FILE:4: This line is not parseable", TO_DO],
    ),
    "not-utf8": (jsonl([row("a"), b'{"custom_id": "\xff"}']), ["FILE:2: ", "not parseable", TO_DO]),
    "nul-bytes": (GOOD + b"\x00\x00\n", ["FILE:3: This line is not parseable as valid JSON.", TO_DO]),
    "no-custom-id": (jsonl([line(custom_id=None)]), ["FILE:1: custom_id: Missing required parameter: 'custom_id'."]),
    "no-body": (jsonl([row("a"), line(body=None)]), ["FILE:2: body: Missing required parameter: 'body'."]),
    "no-model": (
        jsonl([line(body={"messages": [{"role": "user", "content": "x"}]})]),
        ["FILE:1: body.model: Model parameter is required."],
    ),
    "duplicate": (
        jsonl([row("a"), row("b"), row("a")]),
        ["FILE:3: custom_id: The custom_id 'a' for this request is a duplicate", "Line 1 has it first.", TO_DO],
    ),
    "url": (jsonl([line(url="/v1/chats")]), ["FILE:1: url: The URL must be one of /v1/responses, /v1/chat/comp"]),
    "method": (jsonl([line(method="GET")]), ["FILE:1: method: The method must be 'POST'."]),
    "stream": (
        jsonl([line(body={**row("x")["body"], "stream": True})]),
        ["FILE:1: body.stream: Chat Completions: Streaming is not supported in the Batch API."],
    ),
    "more-digits-than-a-number-has": (
        jsonl([row("a"), row("b")]).replace(b'"user": "b"', b'"seed": ' + b"9" * 5000),
        ["FILE:2: a number has more than 4,300 digits", TO_DO],
    ),
    "more-tokens-than-any-answer-has": (
        jsonl([row("a", max_tokens=2**63), row("b", max_tokens=2**31)]),
        [
            "FILE:1: body.max_tokens: must be at most 2,147,483,647",
            "FILE:2: body.max_tokens: must be at most 2,147,483,647",
        ],
    ),
    "more-answers-of-them": (
        jsonl([row("a", max_completion_tokens=2**30, n=2)]),
        ["FILE:1: body.n: times max_tokens must be at most 2,147,483,647"],
    ),
    "one-line-of-50-mb": (
        jsonl([row("a"), row("big", "x" * 50_000_000)]),
        ["FILE:2: This line is longer than 33,554,432 bytes.", TO_DO],
    ),
    **{
        f"{depth}-deep": (
            jsonl([row("a"), jsonl([row("b", deep=0)]).strip().replace(b"0", b"[" * depth + b"]" * depth)]),
            ["FILE:2: This line nests lists and objects more than 500 deep.", TO_DO],
        )
        for depth in (499, 985, 100_000)
    },
    "empty": (b"", ["FILE: the file has no request lines", "write one request per line"]),
    "only-blank-lines": (b"\n \r\n", ["FILE: the file has no request lines"]),
}


@pytest.mark.parametrize(("content", "texts"), BATCH_FILES.values(), ids=BATCH_FILES)
def test_a_bad_batch_file(bench: Bench, content: bytes, texts: list[str]) -> None:
    file = bench.file("bad.jsonl", content)
    with bench.unmoved():
        done = bench.orch("run", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    for text in texts:
        assert text.replace("FILE", str(file)) in done.stderr
    assert "Traceback" not in done.stderr


def changed(old: str, new: str) -> str:
    assert old in JOB
    return JOB.replace(old, new)


JOB_FILES: dict[str, tuple[str, int, list[str]]] = {
    "broken-yaml": (changed("{path: documents}", "{path: documents"), 2, ["FILE:3: is not valid YAML: expected ','"]),
    "tab": (changed("  - id", "\t- id"), 2, ["FILE:4: is not valid YAML", "'\\t'"]),
    "empty": ("", 2, ["FILE:1: is empty or not a mapping; a job file begins with `name:`"]),
    "key-twice": (JOB + "name: other\n", 2, ["FILE:8: name: the key 'name' is given twice (first in line 1)"]),
    "fields-missing": ("name: x\n", 2, ["FILE:1: documents: is required", "FILE:1: tasks: is required"]),
    "unknown-field": (
        changed("    prompt", "    promt: x\n    prompt"), 2,
        ["FILE:6: tasks[0].promt: unknown field", "did you mean 'prompt'?"],
    ),
    "no-number": (
        changed("small\n    p", "small\n    max_tokens: many\n    p"), 2,
        ["FILE:6: tasks[0].max_tokens: ", "valid integer"],
    ),
    "more-digits-than-a-number-has": (
        changed("small\n    p", f"small\n    max_tokens: {'9' * 5000}\n    p"), 2,
        ["FILE:6: is not valid YAML: a number of 5,000 characters, more than 400"],
    ),
    "more-tokens-than-any-answer-has": (
        changed("small\n    p", f"small\n    max_tokens: {2**63}\n    p"), 2,
        ["FILE:6: tasks[0].max_tokens: Input should be less than or equal to 2147483647"],
    ),
    "nul": (
        JOB + 'tags: {team: "a\\0b"}\n', 2, ["FILE:8: tags.team: holds a NUL or half a character, which is not text"],
    ),
    "half-a-character": (
        JOB + 'gold: "\\ud800"\n', 2, ["FILE:8: gold: holds a NUL or half a character, which is not text"],
    ),
    "unknown-alias": (
        changed("model: small", "model: smal"), 2,
        ["FILE:5: tasks[0].model: the model alias 'smal' is not declared (known: small)", "did you mean 'small'?"],
    ),
    "unknown-variable": (
        changed("Who wrote this?", "Who wrote {{ nmae }}?"), 2,
        ["FILE:6: tasks[0].prompt: the template uses {{ nmae }}, which no document has", "did you mean {{ name }}?"],
    ),
    "bad-template": (
        changed("Who wrote this?", '"{% if %}"'), 2,
        ["FILE:6: tasks[0].prompt: is not a Jinja2 template: Expected an expression", "line 1 of the text"],
    ),
    "no-schema": (
        changed("    prompt", "    schema: {type: objekt}\n    prompt"), 2,
        ["FILE:6: tasks[0].schema: is not a JSON Schema: type: 'objekt' is not a type", "did you mean 'object'?"],
    ),
    "empty-folder": (
        changed("path: documents", "path: empty"), 2,
        [
            "FILE:2: documents[0].path: There are no documents in 'empty'", "files ending in .txt",
            "add files or correct `include`",
        ],
    ),
    "missing-folder": (
        changed("path: documents", "path: nowhere"), 2,
        ["FILE:2: documents[0].path: There is no file or folder nowhere", "correct the path"],
    ),
    "no-deadline": (JOB + "deadline: soon\n", 2, ["FILE:8: deadline: 'soon' is not a deadline; write 8h, 90m"]),
    "deadline-in-the-past": (
        JOB + "deadline: 2020-01-01T00:00Z\n", 3, ["2020-01-01 00:00 UTC has already passed", "give a later one"],
    ),
    "unknown-backend": (
        JOB + "allow: {backends: [gpu]}\n", 2,
        ["FILE:8: allow.backends: there is no backend 'gpu' in HOME/orch.toml", "known: local"],
    ),
    "budget": (JOB + "budget: -1\n", 2, ["FILE:8: budget: ", "greater than or equal to 0"]),
}  # fmt: skip


@pytest.mark.parametrize(("content", "code", "texts"), JOB_FILES.values(), ids=JOB_FILES)
def test_a_bad_job_file(bench: Bench, content: str, code: int, texts: list[str]) -> None:
    file = bench.file("bad.yaml", content)
    with bench.unmoved():
        done = bench.orch("run", str(file))
    assert (done.returncode, done.stdout) == (code, "")
    for text in texts:
        expected = text.replace("FILE", str(file)).replace("FOLDER", str(bench.folder))
        assert expected.replace("HOME", str(bench.orch.home)) in done.stderr
    assert "Traceback" not in done.stderr


COMMANDS: dict[str, tuple[list[str], int, list[str]]] = {
    "no-such-file": (["FOLDER/nope.yaml"], 2, ["FOLDER/nope.yaml: there is no such file"]),
    "a-folder": (["FOLDER"], 2, ["FOLDER: is neither a job file (.yaml) nor an OpenAI batch file (.jsonl)"]),
    "backend": (["GOOD", "--backend", "gpu"], 2, ["--backend gpu: there is no such backend in ", "known: local"]),
    "deadline": (["GOOD", "--deadline", "soon"], 2, ["--deadline: 'soon' is not a deadline; write 8h"]),
    "deadline-past": (["GOOD", "--deadline", "2020-01-01T00:00Z"], 3, ["has already passed", "give a later one"]),
    "budget": (["GOOD", "--budget", "much"], 2, ["'much' is not an amount of dollars"]),
    "euros": (["GOOD", "--budget", "5 EUR"], 2, ["amounts are in US dollars, not EUR", "as in  --budget 5\n"]),
    "a-decimal-comma": (["GOOD", "--budget", "5,00"], 2, ["write  --budget 5.00  (amounts are in US dollars)"]),
}


@pytest.mark.parametrize(("arguments", "code", "texts"), COMMANDS.values(), ids=COMMANDS)
def test_a_bad_command(bench: Bench, arguments: list[str], code: int, texts: list[str]) -> None:
    good = bench.file("good.yaml", JOB)
    folder = str(bench.folder)
    with bench.unmoved():
        done = bench.orch("run", *(word.replace("FOLDER", folder).replace("GOOD", str(good)) for word in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    for text in texts:
        assert text.replace("FOLDER", folder) in done.stderr


CONFIGS: dict[str, tuple[str, int, list[str]]] = {
    "none": ("", 2, ["no backend is configured (CONFIG)", "write into orch.toml:", "[backends.local]"]),
    "no-toml": ("[backends.local\n", 2, ["CONFIG:1: is not valid TOML: Expected ']'"]),
    "unknown-field": (
        "[backends.local]\nupstream = 5\n", 2,
        ["CONFIG:2: backends.local.upstream: unknown field", "did you mean 'upstreams'?"],
    ),
    "not-allowed": (
        '[backends.cloud]\nupstreams = ["http://127.0.0.1:9/v1"]\nidle = true\n', 3,
        ["no backend may run this job:", 'cloud: the job is local only, and this backend does not have location ='],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "code", "texts"), CONFIGS.values(), ids=CONFIGS)
def test_a_bad_configuration(bench: Bench, config: str, code: int, texts: list[str]) -> None:
    file, job = bench.file("orch.toml", config), bench.file("local.yaml", JOB + "allow: {location: local}\n")
    with bench.unmoved():
        done = bench.orch("run", str(job), env={"ORCH_CONFIG": str(file)})
    assert (done.returncode, done.stdout) == (code, "")
    for text in texts:
        assert text.replace("CONFIG", str(file)) in done.stderr


@pytest.mark.long
def test_good_runs_follow_bad_ones(upstream: Upstream, run_orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "1.txt").write_text("Dear reader", encoding="utf-8")
    job, batch = tmp_path / "job.yaml", tmp_path / "batch.jsonl"
    job.write_text(JOB.replace("small\n    p", "small\n    p_: 1\n    p"), encoding="utf-8")
    batch.write_bytes(GOOD + b"{")
    for file in (job, batch):
        assert run_orch("run", str(file)).returncode == 2
    assert run_orch("status", "--json").stdout == "[]\n"
    job.write_text(JOB, encoding="utf-8")
    # A BOM and Windows line ends are what editors put there, and mean nothing.
    batch.write_bytes(b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n"))
    for file in (job, batch):
        done = run_orch("run", str(file))
        assert done.returncode == 0, done.stderr
    found = json.loads(run_orch("status", "--json").stdout)
    assert [(one["state"], one["requests"]["succeeded"]) for one in found] == [("completed", 2), ("completed", 1)]
    assert sorted(upstream.counts().values()) == [1, 1, 1]


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("what", ["folder", "file", "inner-folder"])
def test_documents_that_may_not_be_read(
    upstream: Upstream, run_orch: Orch, orch_home: Path, tmp_path: Path, what: str
) -> None:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    (tmp_path / "documents" / "inner").mkdir(parents=True)
    for name in ("1.txt", "2.txt", "inner/3.txt"):
        (tmp_path / "documents" / name).write_text(f"letter {name}", encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text(JOB, encoding="utf-8")
    shut = tmp_path / {"folder": "documents", "file": "documents/1.txt", "inner-folder": "documents/inner"}[what]
    shut.chmod(0)
    done = run_orch("run", str(job), "--json", prefix=prefix(no_override=True))
    shut.chmod(0o755)
    if what == "folder":
        assert done.returncode == 2
        assert f"{shut}: The folder cannot be listed (Permission denied); give this user read" in done.stderr
        assert run_orch("status", "--json").stdout == "[]\n"
        return
    # What cannot be read fails by name; everything else is done.
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["requests"]["succeeded"], found["requests"]["failed"]) == (2, 1)
    (reason,) = found["reasons"]
    assert (reason["code"], reason["rows"]) == ("unreadable", 1)
    assert "give read permission" in reason["message"]
    # It is asked again when it can be read.
    again = json.loads(run_orch("run", str(job), "--json").stdout)
    assert again["requests"]["succeeded"] == 3
    assert set(upstream.counts().values()) == {1}


@pytest.mark.long
def test_documents_that_vanish_while_they_are_read(
    upstream: Upstream, run_orch: Orch, orch_home: Path, tmp_path: Path
) -> None:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    folder = tmp_path / "documents"
    folder.mkdir()
    names = [f"{number:04}.txt" for number in range(6000)]
    for name in names:
        (folder / name).write_text(f"letter {name}", encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text(JOB, encoding="utf-8")
    process = run_orch.start("submit", str(job), "--json")
    # Once the first requests are written the folder is listed, and the process is stopped before its end.
    wait_until(lambda: any(path.stat().st_size for path in orch_home.glob("jobs/*/requests.jsonl")))
    os.kill(process.pid, signal.SIGSTOP)
    for name in names[-200:]:
        (folder / name).unlink()
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(PATIENCE) == 0, run_orch.output(process)
    (job_id,) = (path.name for path in orch_home.glob("jobs/*"))
    found = json.loads(run_orch("status", job_id, "--json").stdout)
    assert found["requests"]["total"] == 6000
    (reason,) = found["reasons"]
    assert (reason["code"], reason["rows"]) == ("vanished", found["requests"]["failed"])
    assert "was listed and is gone" in reason["message"]
    assert 0 < reason["rows"] <= 200
