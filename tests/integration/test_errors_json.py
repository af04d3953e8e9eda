"""What goes wrong: with `--json` one object on stdout for programs, and always a message on stderr for people."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.cli import COMMANDS, root, run
from orchestrator.cli.failed_commands import error_json
from orchestrator.core import errors
from orchestrator.core.errors import BackendBusy, InputError, OrchError
from tests.support.cli import write_config

KEYS = {"code", "message", "file", "line", "field", "hint", "exit_code"}
BROKEN = "name: x\ndocuments: letters\ntaks: []\ntasks:\n  - {id: t, prompt: '{{', model: m}\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_config(tmp_path, ["http://127.0.0.1:9/v1"])
    for name, value in {"ORCH_CONFIG": tmp_path / "orch.toml", "ORCH_HOME": tmp_path / "home"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text(BROKEN)
    (tmp_path / "orch.db").write_text("")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any], str]:
    code = run([*argv, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out)["error"], err


CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a mistake in a file": (
        ["validate", "broken.yaml"],
        {"code": "bad_input", "file": "broken.yaml", "line": 3, "field": "taks", "exit_code": 2,
         "hint": "did you mean 'tasks'?"},
    ),
    "no file": (["plan", "none.yaml"], {"code": "bad_input", "file": "none.yaml", "line": None, "exit_code": 2}),
    "no job": (["status", "none"], {"code": "bad_usage", "file": None, "hint": "`orch status` lists the jobs"}),
    "no option": (["status", "--nothing"], {"code": "bad_usage", "exit_code": 2}),
    "no command": (["nothing"], {"code": "bad_usage", "exit_code": 2}),
    "an option's value": (["run", "x.yaml", "--limit", "0"], {"code": "bad_usage", "exit_code": 2}),
    "no argument": (["cancel"], {"code": "bad_usage", "hint": "see `orch cancel --help`"}),
    "no report": (["report", "cost", "--by", "moon"], {"code": "bad_usage"}),
    "no schedule": (["schedule", "run", "none"], {"code": "bad_usage", "hint": "known: none"}),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "wanted"), CASES.values(), ids=CASES.keys())
def test_an_error_says_what_where_and_what_to_do(
    capsys: pytest.CaptureFixture[str], argv: list[str], wanted: dict[str, Any]
) -> None:
    code, error, err = told(capsys, *argv)
    assert error.keys() >= KEYS
    assert {name: error[name] for name in wanted} == wanted
    assert code == error["exit_code"] == 2
    assert error["message"] in err, "people read it on stderr"
    assert run(argv) == 2
    plain = capsys.readouterr()
    assert (plain.out, plain.err) == ("", err), "without --json the same, and nothing on stdout"


def test_every_command_that_has_json_tells_its_errors_so(capsys: pytest.CaptureFixture[str]) -> None:
    context = root.make_context("orch", ["x"], resilient_parsing=True)
    lines = []
    for name in COMMANDS:
        command = root.get_command(context, name)
        assert command is not None
        within = command.commands if isinstance(command, click.Group) else {"": command}
        for inner, one in within.items():
            if name in ("up", "serve", "view", "mcp", "demo", "help", "completion", "man"):
                continue
            assert "as_json" in {parameter.name for parameter in one.params}, f"{name} {inner} has no --json"
            lines.append([name, *([inner] if inner else []), "--no-such-option"])
    for line in lines:
        code, error, _ = told(capsys, *line)
        assert (code, error["code"]) == (2, "bad_usage"), line
        assert "--no-such-option" in error["message"]


def test_several_mistakes_are_told_each_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    (Path("rows.jsonl")).write_text('{"custom_id": 1}\nno json\n')
    _, error, err = told(capsys, "validate", "rows.jsonl")
    assert [one["line"] for one in (error, *error["others"])] == [1, 2]
    assert all(one.keys() >= KEYS for one in error["others"])
    assert "rows.jsonl:1: " in err
    assert "rows.jsonl:2: " in err


def test_storage_and_backends_have_codes_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (home / "home").mkdir()
    (home / "home" / "orch.db").write_text("this is not a database" * 100)
    code, error, _ = told(capsys, "status")
    assert (code, error["code"], error["exit_code"]) == (4, "storage", 4)
    busy = error_json(BackendBusy("later", status=429, code="rate_limit_exceeded", hint="wait"))
    assert (busy["code"], busy["provider_status"], busy["provider_code"]) == (
        "backend_busy",
        429,
        "rate_limit_exceeded",
    )
    kinds = [kind.kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OrchError)]
    assert len(set(kinds)) == len(kinds), "a program tells errors apart by their codes"
    assert error_json(InputError("no", file=Path("x"), line=3, field="a.b"))["file"] == "x"


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("in_a_class", [False, True], ids=["anywhere", "while-a-class-is-made"])
def test_a_command_that_is_stopped_says_so(home: Path, in_a_class: bool) -> None:
    paths = [*filter(None, [os.environ.get("PYTHONPATH")])]
    if in_a_class:  # Python remembers an interrupt in `exec` of a string, as dataclasses use it, until it ends
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(
            "import sys\n"
            "class Interrupting:\n"
            "    def find_spec(self, *asked):\n"
            "        try: exec('raise KeyboardInterrupt(1)')\n"
            "        except KeyboardInterrupt as told:\n"
            "            if told.args != (1,): raise\n"  # the real one, which may come just here
            "sys.meta_path.insert(0, Interrupting())\n"
        )
        paths.insert(0, str(home / "site"))
    (home / "letters").mkdir()
    (home / "letters" / "a.txt").write_text("letter")
    (home / "job.yaml").write_text(
        "name: x\ndocuments: letters\ntasks: [{id: t, prompt: Who, model: m}]\nmodels: {m: {local: default}}\n"
    )
    command = [sys.executable, "-m", "orchestrator.cli", "run", "job.yaml", "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home, env=environment
    ) as process:
        assert process.stderr is not None
        said = b""
        while b"expected" not in said:
            said += (line := process.stderr.readline())
            assert line, said
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert out, err
    error = json.loads(out)["error"]
    assert (process.returncode, error["code"], error["exit_code"]) == (130, "interrupted", 130)
    assert error["message"].startswith("stopped")
    assert error["message"] in err.decode()


def test_a_misspelt_command_is_answered_with_the_one_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["statsu", "--json"]) == 2
    told = capsys.readouterr()
    assert "No such command 'statsu'" in told.err
    assert json.loads(told.out)["error"]["hint"] == "did you mean `orch status`?"
    assert run(["zzz"]) == 2
    assert "No such command 'zzz'" in capsys.readouterr().err


def test_orch_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Usage: orch")
    assert told.err == ""
