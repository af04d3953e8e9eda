"""Telemetry as its users have it: a section in orch.toml, a job, and a receiver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import run
from orchestrator.settings.telemetry import Telemetry
from tests.support.cli import Orch, write_config
from tests.support.killing import write_batch_file
from tests.support.otlp import Collector
from tests.support.process import Upstream


@pytest.mark.long
def test_a_job_is_told_by_the_time_the_command_ends(run_orch: Orch, upstream: Upstream, tmp_path: Path) -> None:
    with Collector() as collector:
        extra = f'[telemetry]\nendpoint = "{collector.url}"\nsample = 1\n'
        write_config(run_orch.home, [upstream.base_url], extra=extra)
        write_batch_file(tmp_path / "rows.jsonl", 3)
        done = run_orch("run", str(tmp_path / "rows.jsonl"))
        assert done.returncode == 0, done.stderr
        assert "telemetry" not in done.stderr
        assert sorted(span.name.partition(" ")[0] for span in collector.spans) == [
            "batch", "chat", "chat", "chat", "job", "shard",
        ]  # fmt: skip
        assert {span.attributes["gen_ai.provider.name"] for span in collector.named("chat")} == {"vllm"}
        [whole] = collector.named("job")
        detail = json.loads(run_orch("status", "--json").stdout)[0]
        assert {span.attributes["session.id"] for span in collector.spans} == {whole.attributes["session.id"]}
        assert whole.attributes["orch.job.id"] == detail["job"]
        assert whole.attributes["orch.rows.succeeded"] == 3
        resource = collector.messages[0][1].resource_spans[0].resource
        assert {one.key for one in resource.attributes} == {
            "service.name", "service.version", "service.instance.id",
        }  # fmt: skip
        checked = {one["check"]: one["ok"] for one in json.loads(run_orch("doctor", "--json").stdout)}
        assert checked[f"telemetry {collector.url}"]


def test_a_short_run_says_that_its_receiver_is_down(run_orch: Orch, upstream: Upstream, tmp_path: Path) -> None:
    """What is found out when the last spans are sent, after the job's last round."""
    extra = '[telemetry]\nendpoint = "http://127.0.0.1:9"\n'
    write_config(run_orch.home, [upstream.base_url], extra=extra)
    write_batch_file(tmp_path / "rows.jsonl", 1)
    done = run_orch("run", str(tmp_path / "rows.jsonl"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("orch: telemetry: http://127.0.0.1:9 takes no spans (ConnectError") == 1


@pytest.fixture
def here(run_orch: Orch, monkeypatch: pytest.MonkeyPatch) -> Orch:
    monkeypatch.setenv("ORCH_HOME", str(run_orch.home))
    extra = '[telemetry]\nendpoint = "http://127.0.0.1:9"\n'
    monkeypatch.setenv("ORCH_CONFIG", str(write_config(run_orch.home, ["http://127.0.0.1:9/v1"], extra=extra)))
    return run_orch


def telemetry_of(out: str) -> tuple[bool, str]:
    [found] = [one for one in json.loads(out) if one["check"].startswith("telemetry")]
    return found["ok"], found["found"]


def test_doctor_tells_of_a_receiver_that_is_down(here: Orch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 4
    ok, told = telemetry_of(capsys.readouterr().out)
    assert not ok
    assert "ConnectError" in told


def test_without_the_extra_it_says_what_to_install(
    here: Orch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.core.extras.find_spec", lambda name: None)
    run(["doctor", "--json"])
    ok, told = telemetry_of(capsys.readouterr().out)
    assert not ok
    assert told.endswith("pip install 'orch-batch[otel]'; in a checkout: pip install '.[otel]'")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('endpoint = "localhost:4318"', "orch.toml:2: telemetry.endpoint: 'localhost:4318' is not an http(s) URL"),
        ('endpoint = "http://h:4318/v1/traces"', "leave out /v1/traces, it is added"),
        ('endpoint = "http://key:secret@h"', "a URL may not carry a password"),
        (
            'endpoint = "http://h"\nsample = 2',
            "orch.toml:3: telemetry.sample: Input should be less than or equal to 1",
        ),
        ('endpoint = "http://h"\nheaders_env = {"a b" = "K"}', "'a b' is not the name of a header"),
        ("content = true", "telemetry.endpoint: is required"),
        ('endpoint = "http://h"\nheader = "x"', "unknown field"),
    ],
)
def test_settings_that_cannot_be_meant(
    here: Orch,
    text: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "orch.toml"
    file.write_text(f"[telemetry]\n{text}\n")
    monkeypatch.setenv("ORCH_CONFIG", str(file))
    assert run(["doctor"]) == 2
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "location", "stays"),
    [
        ("http://127.0.0.1:4318", "hosted", True),
        ("http://[::1]:4318", "hosted", True),
        ("http://localhost:4318", "hosted", True),
        ("http://10.0.0.5:4318", "hosted", False),
        ("http://10.0.0.5:4318", "local", True),
        ("https://127.0.0.1.example.com", "hosted", False),
    ],
)
def test_what_stays_with_the_user(url: str, location: str, stays: bool) -> None:
    assert Telemetry.model_validate({"endpoint": url, "location": location}).stays_here is stays
