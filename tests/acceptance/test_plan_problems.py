"""`orch plan` before money moves: what is wrong with a backend now, and which rows are asked first."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support.cli import Orch

KEY = "sk-test-0123456789abcdef"
PRICES = "[prices.m]\ninput = 4\noutput = 16\nbatch = {input = 2, output = 8}\n"


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as found:
        yield found


def job_file(folder: Path, rows: int = 30) -> Path:
    (folder / "documents").mkdir()
    for number in range(rows):
        (folder / "documents" / f"{number}.txt").write_text("word " * (number + 3), encoding="utf-8")
    task = {"id": "t", "prompt": "What?", "model": "small", "max_tokens": 20}
    given = {"name": "n", "documents": "documents", "tasks": [task], "models": {"small": "m"}, "deadline": "30h"}
    path = folder / "job.yaml"
    path.write_text(json.dumps(given), encoding="utf-8")
    return path


def plan(orch: Orch, file: Path, toml: str) -> tuple[str, dict[str, Any]]:
    (orch.home / "orch.toml").write_text(toml, encoding="utf-8")
    said = orch("plan", str(file), "-q", env={"KEY": KEY})
    found = orch("plan", str(file), "--json", env={"KEY": KEY})
    assert KEY not in said.stdout + said.stderr + found.stdout
    return " ".join(said.stdout.split()), json.loads(found.stdout)


def test_a_dead_server_is_said(run_orch: Orch, tmp_path: Path, dead_port: int) -> None:
    toml = f'[backends.local]\nupstreams = ["http://127.0.0.1:{dead_port}/v1"]\nlocation = "local"\nidle = true\n'
    said, found = plan(run_orch, job_file(tmp_path), toml)
    assert f"local: nothing answers at http://127.0.0.1:{dead_port}/v1" in said
    assert "is vLLM running? see `orch doctor`" in said
    assert "no chance can be given: local does not answer as it should" in said
    assert (list(found["problems"]), found["chance"]) == (["local"], None)


def test_an_unknown_host_is_no_server_to_be_started(run_orch: Orch, tmp_path: Path) -> None:
    toml = '[backends.local]\nupstreams = ["http://no-such-host.invalid/v1"]\nlocation = "local"\nidle = true\n'
    said, _ = plan(run_orch, job_file(tmp_path), toml)
    assert "correct the name of its host in orch.toml; see `orch doctor`" in said
    assert "is vLLM running?" not in said


@pytest.mark.long
def test_a_backend_that_is_too_slow_to_be_checked_is_said(run_orch: Orch, tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]  # none answers
        urls = ", ".join(f'"http://127.0.0.1:{server.getsockname()[1]}/v1"' for server in servers)
        toml = f'[backends.local]\nupstreams = [{urls}]\nlocation = "local"\nidle = true\n'
        said, found = plan(run_orch, job_file(tmp_path), toml)
    assert "local: has not answered for 4 s, so it is not checked; see `orch doctor`" in said
    assert list(found["problems"]) == ["local"]


def test_a_model_that_a_server_does_not_list_is_said(
    run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(model=["another", "m2"])
    toml = f'[backends.local]\nupstreams = ["{upstream.base_url}"]\nlocation = "local"\nidle = true\n'
    said, found = plan(run_orch, job_file(tmp_path), toml)
    assert "m: the model is not in its list of models; near to it: m2; see `orch doctor`" in said
    assert list(found["problems"]) == ["local"]
    assert "%" not in said, "no chance stands beside a model that is not there"
    [route] = found["routes"]
    assert (route["done_p50"], route["done_p95"], route["chance"], found["chance"]) == (None, None, None, None)


def test_a_server_that_is_well_has_no_problem(run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(model=["m"])
    toml = f'[backends.local]\nupstreams = ["{upstream.base_url}"]\nlocation = "local"\nidle = true\n'
    _, found = plan(run_orch, job_file(tmp_path), toml)
    assert found["problems"] == {}
    assert found["first_rows"] == []


@pytest.mark.long
def test_rows_that_are_not_sent_are_named_beside_those_that_are(
    run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(model=["m"])
    toml = f'[backends.local]\nupstreams = ["{upstream.base_url}"]\nlocation = "local"\nidle = true\n'
    (run_orch.home / "orch.toml").write_text(toml, encoding="utf-8")
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"text {number}", encoding="utf-8")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-nothing")
    file = tmp_path / "letters.yaml"
    file.write_text(
        "name: letters\ndocuments: {path: ., include: ['*.txt', '*.pdf']}\nmodels: {s: m}\n"
        "tasks: [{id: a, model: s, prompt: 'Who?'}]\n",
        encoding="utf-8",
    )
    said, found = plan(run_orch, file, toml)
    assert (found["requests"], found["to_send"]) == (5, 4)
    assert "requests: 5 requests of 5 documents, 1 that cannot be asked" in said
    assert run_orch("try", str(file), "--sample", "1").returncode == 0
    said, found = plan(run_orch, file, toml)
    assert (found["requests"], found["to_send"]) == (5, 3)
    assert "5 requests of 5 documents, 1 unchanged since an earlier run, 1 that cannot be asked, 3 new" in said


@pytest.mark.long
def test_a_refused_key_is_said_also_if_nothing_is_to_be_sent(
    run_orch: Orch, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(model=["m"], api_key="right")
    toml = f'[backends.local]\nupstreams = ["{upstream.base_url}"]\nlocation = "local"\nidle = true\n'
    (run_orch.home / "orch.toml").write_text(toml + 'api_key_env = "KEY"\n', encoding="utf-8")
    file = job_file(tmp_path, rows=2)
    assert run_orch("run", str(file), env={"KEY": "right"}).returncode == 0
    said, found = plan(run_orch, file, toml + 'api_key_env = "KEY"\n')
    assert (found["to_send"], list(found["problems"])) == (0, ["local"])
    assert "nothing to send" in said
    assert "! local:" in said
    assert "refuses the key (401): export its right key in KEY" in said


@pytest.mark.long
def test_a_model_without_a_name_at_a_backend_is_told_with_one_that_is_there(
    run_orch: Orch, tmp_path: Path, dead_port: int
) -> None:
    fleet = '{small-gemma = {model = "google/gemma"}}'
    toml = f"""
        [backends.fleet]
        kind = "engines"
        location = "local"
        cost_per_hour = 0
        models = {fleet}
        [backends.local]
        upstreams = ["http://127.0.0.1:{dead_port}/v1"]
        location = "local"
        idle = true
        [backends.cloud]
        kind = "openai"
        api_key_env = "KEY"
        {PRICES}"""
    file = job_file(tmp_path, rows=1)
    given = json.loads(file.read_text(encoding="utf-8"))
    for name, cure in {"fleet": "small-gemma", "local": "default", "cloud": "NAME"}.items():
        other = "local" if name == "cloud" else "cloud"
        given["models"] = {"small": {other: "m"}}
        file.write_text(json.dumps(given), encoding="utf-8")
        _, found = plan(run_orch, file, toml)
        [refused] = [one for one in found["refused"] if one["backend"] == name]
        assert f"models: {{small: {{{name}: {cure}}}}}" in refused["reason"]


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_provider_s_missing_model_and_the_row_that_is_asked_first(
    run_orch: Orch, emulator: Emulator, tmp_path: Path, kind: str
) -> None:
    emulator.reset()
    url = emulator.url_openai if kind == "openai" else emulator.url_anthropic
    toml = f'[backends.cloud]\nkind = "{kind}"\nbase_url = "{url}"\napi_key_env = "KEY"\n{PRICES}'
    file = job_file(tmp_path)
    emulator.settings(models=["m"])
    said, found = plan(run_orch, file, toml)
    assert found["problems"] == {}
    assert [(one["backend"], one["model"]) for one in found["first_rows"]] == [("cloud", "m")]
    assert "asked first at cloud: 1 row, at most $" in said
    assert emulator.calls("chat") == {}
    emulator.settings(models=["another"])
    said, found = plan(run_orch, file, toml)
    assert found["problems"] == {"cloud": "m: the model is not in its list of models; see `orch doctor`"}
    emulator.settings(accounts={"sk-of-somebody-else": "org"})
    _, found = plan(run_orch, file, toml)
    assert "key" in found["problems"]["cloud"].lower()
