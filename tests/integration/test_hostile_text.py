"""Text of strangers in every place that takes any: no command lets a character of it act on who reads its output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from orchestrator.cli import run
from tests.support.cli import Orch
from tests.support.everywhere import answer, command_lines, make_home
from tests.support.process import PATIENCE, wait_until
from tests.support.scripted import Scripted, scripted
from tests.support.terminal import on_terminal

BAD = "\x1b[2J\x1b]0;own\x07\x9b31m\x7f\u202eevil\u2066\u2028"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture
def provider() -> Iterator[Scripted]:
    with scripted(partial(answer, text=BAD)) as provider:
        yield provider


@pytest.fixture
def home(tmp_path: Path, provider: Scripted, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, provider.base_url, BAD, monkeypatch)


@pytest.mark.long
def test_no_command_lets_it_act(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = ""
    for line in command_lines(BAD):
        for more in ([], ["--json"]):
            if line[0] in ("up", "serve", "view") and more:
                continue
            run([*line, *more])
            shown = capsys.readouterr()
            for text in (shown.out, shown.err):
                assert (found := ACTS.search(text)) is None, (line, more, found)
                seen += text
            if more:
                assert isinstance(json.loads(shown.out), dict | list), (line, shown.out)
    places = "doc other_ code message_ model broken_ held_ team=x empty batch_ party".split()
    for where in (place.replace("_", " ") if place != "batch_" else place for place in places):
        assert f"{where}\\u001b[2J" in seen, f"{where} was never shown: nothing was tried with it"


def test_no_report_or_file_of_words_lets_it_act(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "night", "contracts-2", "--html", "night.html", "--md"]) == 0
    assert run(["report", "cost", "--by", "model", "--html", "cost.html"]) == 0
    markdown = capsys.readouterr().out
    for text in (markdown, *(Path(name).read_text(encoding="utf-8") for name in ("night.html", "cost.html"))):
        assert ACTS.search(text.replace("\r\n", "\n")) is None
        assert "\\u001b[2J" in text.replace("\\[", "[").replace("\\\\", "\\").replace("<wbr>", "")


@pytest.mark.long
def test_rows_are_data_in_a_pipe_and_shown_on_a_terminal(home: Path, run_orch: Orch) -> None:
    env = {"ORCH_HOME": str(home), "ORCH_CONFIG": str(home / "orch.toml")}
    piped = run_orch("fetch", "contracts-1", env=env).stdout
    assert "\x9b31m" in piped, "a program gets the answer as it is"
    for form in ("jsonl", "csv"):
        code, shown = on_terminal(["-m", "orchestrator.cli", "fetch", "contracts-1", "--format", form], env=env)
        assert (code, ACTS.search(shown.replace("\r\n", "\n"))) == (0, None), "in CSV, lines end in CR LF"
        assert "\\u009b31m" in shown


def test_the_daemon_and_the_server_tell_it_safely(home: Path, provider: Scripted, run_orch: Orch) -> None:
    env = {"ORCH_HOME": str(home), "ORCH_CONFIG": str(home / "orch.toml"), "CLOUD_KEY": "sk-x"}
    up = run_orch.start("up", env=env)
    wait_until(lambda: "is up" in run_orch.output(up))
    serve = run_orch.start("serve", "--upstream", provider.base_url, "--port", "0", env=env)
    wait_until(lambda: "ready (m" in run_orch.output(serve))
    for process in (up, serve):
        process.terminate()
        process.wait(PATIENCE)
        assert ACTS.search(run_orch.output(process)) is None, run_orch.output(process)
    assert ACTS.search((home / "engine.log").read_text()) is None
