"""Bedrock as its users have it: doctor, plan, a run, and reconcile, before the emulated provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.emulator.aws_wire import REGION, account_of, role_of, secret_of
from tests.emulator.client import Emulator
from tests.emulator.clock import START
from tests.support.aws import BUCKET, aws_environment, bedrock_told
from tests.support.cli import CONFIG, Orch
from tests.support.hostedjob import table

KEY = "AKIACOMMANDLINE"
MODEL = "amazon.nova-micro-v1:0"
HOUR_A_SECOND = 3600.0


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider") as running:
        running.settings(models=[MODEL], min_rows=100)
        yield running


@pytest.fixture
def env(provider: Emulator, tmp_path: Path) -> dict[str, str]:
    return {**provider.environment, **aws_environment(KEY, tmp_path)}


def write(orch: Orch, provider: Emulator, **more: object) -> None:
    told = {**bedrock_told(provider.url_of("bedrock"), KEY), "poll_seconds": 0.1, "preflight": False, **more}
    lines = f'[backends.night]\n{table(told)}\n[models]\nsmall = {{night = "{MODEL}"}}\n'
    (orch.home / CONFIG).write_text(lines, encoding="utf-8")


def rows(folder: Path, count: int) -> str:
    path = folder / f"rows-{count}.jsonl"
    body = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "Say it."}]}
    lines = (
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.long
def test_doctor_looks_at_jobs_models_and_the_bucket(run_orch: Orch, provider: Emulator, env: dict[str, str]) -> None:
    write(run_orch, provider)
    ran = run_orch("doctor", "--json", env=env)
    found = {one["check"]: (one["ok"], one["found"]) for one in json.loads(ran.stdout)}
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert found["backend night"][1].startswith("bedrock, location hosted, 24h")
    assert "100 to 50,000 rows and 1,000,000,000 bytes a batch" in found["backend night"][1]
    assert found["night: batches"] == (True, f"can be listed, as aws:{account_of(KEY)}/{REGION}")
    assert found["night: bucket"][0]
    assert found[f"night: model {MODEL}"] == (True, "is there")
    assert "$0.0175 in, $0.07 out per million tokens" in found[f"night: price of {MODEL}"][1]
    assert secret_of(KEY) not in ran.stdout + ran.stderr
    assert provider.state()["files"] == []


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, {}, "boto3's chain finds no AWS credentials"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, {}, "signature"),
        ({}, {"aws_profile": "nobody"}, "The config profile (nobody) could not be found"),
        ({}, {"role_arn": role_of("AKIAOTHER")}, f"the credentials belong to account {account_of(KEY)}"),
        ({}, {"bucket": "no-such-bucket"}, "The specified bucket does not exist"),
    ],
    ids=["no credentials", "wrong ones", "no such profile", "another account", "no such bucket"],
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


def test_a_plan_says_that_the_rows_are_too_few(
    run_orch: Orch, provider: Emulator, env: dict[str, str], tmp_path: Path
) -> None:
    write(run_orch, provider)
    ran = run_orch("run", rows(tmp_path, 3), env=env)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "its batches take at least 100 rows of one model, and there are only 3" in ran.stderr
    assert provider.state()["files"] == []


@pytest.mark.long
def test_a_run_is_paid_once_and_reconciled(
    run_orch: Orch, provider: Emulator, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run_orch, provider)
    provider.clock.set(START, speed=HOUR_A_SECOND)
    ran = run_orch("run", rows(tmp_path, 120), "-o", str(tmp_path / "out.jsonl"), "-q", env=env)
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "out.jsonl").read_text("utf-8").splitlines()) == 120
    assert [line["rows"] for line in provider.bill()["lines"]] == [120]
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    other = boto3.Session().client("bedrock", region_name=REGION, endpoint_url=provider.url_of("bedrock"))
    other.create_model_invocation_job(
        jobName="by-hand", roleArn=role_of(KEY), modelId=MODEL, modelInvocationType="Converse",
        inputDataConfig={"s3InputDataConfig": {"s3Uri": f"s3://{BUCKET}/theirs/in.jsonl"}},
        outputDataConfig={"s3OutputDataConfig": {"s3Uri": f"s3://{BUCKET}/theirs/"}},
    )  # fmt: skip
    other.close()
    ran = run_orch("reconcile", "--json", env=env)
    [found] = json.loads(ran.stdout)
    assert (found["account"], found["batches"], found["known"]) == (f"aws:{account_of(KEY)}/{REGION}", 2, 1)
    assert [one["kind"] for one in found["findings"]] == ["foreign"]
