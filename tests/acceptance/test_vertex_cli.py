"""Vertex AI as its users have it: doctor, plan, a run, and reconcile, before the emulated provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.emulator.client import Emulator
from tests.emulator.clock import START
from tests.emulator.google_wire import project_of
from tests.support.cli import CONFIG, Orch
from tests.support.google import key_file, vertex_told
from tests.support.hostedjob import table

EMAIL = "night@project.iam.gserviceaccount.com"
MODEL = "gemini-2.5-pro"
HOUR_A_SECOND = 3600.0


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider") as running:
        running.settings(models=[MODEL])
        yield running


@pytest.fixture
def env(provider: Emulator, tmp_path: Path) -> dict[str, str]:
    key = key_file(tmp_path, EMAIL, provider.url_of("vertex"))
    nothing = {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(tmp_path / "no-gcloud")}
    return {**provider.environment, **nothing, "GOOGLE_APPLICATION_CREDENTIALS": str(key)}


def write(orch: Orch, provider: Emulator, **more: object) -> None:
    told = {**vertex_told(provider.url_of("vertex"), EMAIL), "poll_seconds": 0.1, "preflight": False, **more}
    lines = f'[backends.night]\n{table(told)}\n[models]\nsmall = {{night = "{MODEL}"}}\n'
    (orch.home / CONFIG).write_text(lines, encoding="utf-8")


def rows(folder: Path, count: int) -> str:
    path = folder / f"rows-{count}.jsonl"
    lines = (
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": f"Say {number}."}]}}
        for number in range(count)
    )  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_doctor_looks_at_jobs_models_and_the_bucket(run_orch: Orch, provider: Emulator, env: dict[str, str]) -> None:
    write(run_orch, provider)
    ran = run_orch("doctor", "--json", env=env)
    found = {one["check"]: (one["ok"], one["found"]) for one in json.loads(ran.stdout)}
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert found["backend night"][1].startswith("vertex, location hosted, 96h")
    assert found["night: batches"] == (True, f"can be listed, as google:{project_of(EMAIL)}/us-central1")
    assert found["night: bucket"][0]
    assert found[f"night: model {MODEL}"] == (True, "is there")
    assert "$0.625 in, $5 out per million tokens" in found[f"night: price of {MODEL}"][1]
    assert "PRIVATE KEY" not in ran.stdout + ran.stderr
    assert provider.state()["files"] == []


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        ({"GOOGLE_APPLICATION_CREDENTIALS": ""}, {}, "credentials were not found"),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "/no/such/key.json"}, {}, "/no/such/key.json"),
        ({}, {"project": "another-project"}, "Permission"),
        ({}, {"bucket": "no-such-bucket"}, "The specified bucket does not exist"),
    ],
    ids=["no credentials", "no such file", "another project", "no such bucket"],
)
def test_doctor_says_what_is_wrong(
    run_orch: Orch,
    provider: Emulator,
    env: dict[str, str],
    change: dict[str, str],
    settings: dict[str, str],
    words: str,
) -> None:
    write(run_orch, provider, **settings)
    ran = run_orch("doctor", "--json", env={**env, **change})
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert [one for one in json.loads(ran.stdout) if not one["ok"] and words in one["found"]]


@pytest.mark.long
def test_a_run_is_paid_once_and_reconciled(
    run_orch: Orch, provider: Emulator, env: dict[str, str], tmp_path: Path
) -> None:
    write(run_orch, provider)
    provider.clock.set(START, speed=HOUR_A_SECOND)
    ran = run_orch("run", rows(tmp_path, 20), "-o", str(tmp_path / "out.jsonl"), "-q", env=env)
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "out.jsonl").read_text("utf-8").splitlines()) == 20
    assert [line["rows"] for line in provider.bill()["lines"]] == [20]
    by_hand = {
        "displayName": "by hand",
        "model": f"publishers/google/models/{MODEL}",
        "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://theirs/in.jsonl"]}},
        "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://theirs/out"}},
    }
    parent = f"{provider.url_of('vertex')}/v1/projects/{project_of(EMAIL)}/locations/us-central1"
    head = {"Authorization": f"Bearer ya29.{EMAIL}"}
    with urlopen(Request(f"{parent}/batchPredictionJobs", json.dumps(by_hand).encode(), head)):
        pass
    ran = run_orch("reconcile", "--json", env=env)
    [found] = json.loads(ran.stdout)
    assert (found["account"], found["batches"], found["known"]) == (f"google:{project_of(EMAIL)}/us-central1", 2, 1)
    assert [one["kind"] for one in found["findings"]] == ["foreign"]
