"""Bedrock's wire: boto3 unmodified before the emulator, and our calls before moto, a server of others.

moto 5.2 has no batch inference. Its S3 and its STS are asked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from orchestrator.backends import BatchOrder
from orchestrator.backends.bedrock import PACKAGE
from orchestrator.backends.package import BackendAccess
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import AccountError
from tests.emulator.aws_wire import REGION, account_of, role_of
from tests.emulator.client import Emulator
from tests.support.aws import BUCKET, aws_environment, bedrock_settings
from tests.support.s3 import s3_server

KEY = "AKIAEXAMPLE"
HALF_A_DAY = 12 * 3600.0
MODEL = "amazon.nova-micro-v1:0"
MOTOS_ACCOUNT = "123456789012"
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in aws_environment(KEY, tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as running:
        running.settings(min_rows=2)
        yield running


class Sdk:
    """boto3's clients, with no change but the address."""

    def __init__(self, emulator: Emulator) -> None:
        url, once = emulator.url_of("bedrock"), Config(retries={"total_max_attempts": 1})
        session = boto3.Session()  # boto3.client has the credentials of the first test that asked for them
        self.bedrock, self.s3, self.runtime, self.sts = (
            session.client(name, region_name=REGION, endpoint_url=url, config=once)
            for name in ("bedrock", "s3", "bedrock-runtime", "sts")
        )

    def create(self, name: str, **more: Any) -> str:
        asked = {
            "jobName": name,
            "clientRequestToken": f"token-{name}",
            "roleArn": role_of(KEY),
            "modelId": MODEL,
            "modelInvocationType": "Converse",
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": f"s3://{BUCKET}/{name}/in.jsonl"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"s3://{BUCKET}/{name}/out/"}},
            **more,
        }
        arn: str = self.bedrock.create_model_invocation_job(**asked)["jobArn"]
        return arn


@pytest.fixture
def sdk(emulator: Emulator) -> Iterator[Sdk]:
    found = Sdk(emulator)
    yield found
    for client in (found.bedrock, found.s3, found.runtime, found.sts):
        client.close()


RECORDS = b"".join(
    b'{"recordId":"R%d","modelInput":{"messages":[{"role":"user","content":[{"text":"Say %d."}]}]}}\n' % (n, n)
    for n in range(3)
)


@pytest.mark.long
def test_boto3_runs_a_job_from_upload_to_results(emulator: Emulator, sdk: Sdk) -> None:
    sdk.s3.put_object(Bucket=BUCKET, Key="whole/in.jsonl", Body=RECORDS)
    arn = sdk.create("whole", tags=[{"key": "orch_shard", "value": "s.001"}])
    assert sdk.create("whole") == arn, "the same token makes no second job"
    assert sdk.bedrock.get_model_invocation_job(jobIdentifier=arn)["status"] == "Validating"
    emulator.clock.advance(HALF_A_DAY)
    job = sdk.bedrock.get_model_invocation_job(jobIdentifier=arn.rpartition("/")[2])
    counts = [job[f"{name}RecordCount"] for name in ("total", "processed", "success", "error")]
    assert (job["status"], counts) == ("Completed", [3, 3, 3, 0])
    listed = sdk.bedrock.list_model_invocation_jobs(sortBy="CreationTime", nameContains="whole")
    assert [one["jobArn"] for one in listed["invocationJobSummaries"]] == [arn]
    found = sdk.s3.list_objects_v2(Bucket=BUCKET, Prefix="whole/out/")["Contents"]
    assert sorted(one["Key"].rpartition("/")[2] for one in found) == ["in.jsonl.out", "manifest.json.out"]
    results = next(one["Key"] for one in found if one["Key"].endswith(".jsonl.out"))
    lines = sdk.s3.get_object(Bucket=BUCKET, Key=results)["Body"].read().splitlines()
    assert len(lines) == 3
    assert b'"modelOutput"' in lines[0]
    for one in found:
        sdk.s3.delete_object(Bucket=BUCKET, Key=one["Key"])
    assert "Contents" not in sdk.s3.list_objects_v2(Bucket=BUCKET, Prefix="whole/out/")
    sdk.bedrock.close()


def test_boto3_reads_the_other_answers(emulator: Emulator, sdk: Sdk) -> None:
    assert sdk.sts.get_caller_identity()["Account"] == account_of(KEY)
    assert MODEL in {one["modelId"] for one in sdk.bedrock.list_foundation_models()["modelSummaries"]}
    assert sdk.bedrock.list_inference_profiles()["inferenceProfileSummaries"] == []
    said = sdk.runtime.converse(modelId=MODEL, messages=[{"role": "user", "content": [{"text": "Say 1."}]}])
    assert said["stopReason"] == "end_turn"
    sdk.s3.put_object(Bucket=BUCKET, Key="stopped/in.jsonl", Body=RECORDS)
    arn = sdk.create("stopped")
    sdk.bedrock.stop_model_invocation_job(jobIdentifier=arn)
    emulator.clock.advance(HALF_A_DAY)
    assert sdk.bedrock.get_model_invocation_job(jobIdentifier=arn)["status"] == "Stopped"


def _code(call: Any, **asked: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**asked)
    return str(caught.value.response["Error"]["Code"])


@pytest.mark.long
def test_boto3_names_the_refusals(emulator: Emulator, sdk: Sdk) -> None:
    sdk.s3.put_object(Bucket=BUCKET, Key="few/in.jsonl", Body=RECORDS.splitlines()[0] + b"\n")
    arn = sdk.create("few")
    emulator.clock.advance(HALF_A_DAY)
    job = sdk.bedrock.get_model_invocation_job(jobIdentifier=arn)
    assert job["status"] == "Failed"
    assert job["message"] == "Batch job contains less records (1) than the required minimum of: 2"
    assert _code(sdk.create, name="few", clientRequestToken="another") == "ConflictException"
    assert _code(sdk.bedrock.stop_model_invocation_job, jobIdentifier=arn) == "ConflictException"
    unknown = f"{arn[:-4]}0000"
    assert _code(sdk.bedrock.get_model_invocation_job, jobIdentifier=unknown) == "ResourceNotFoundException"
    assert _code(sdk.s3.get_object, Bucket=BUCKET, Key="nothing") == "NoSuchKey"
    assert _code(sdk.s3.get_object, Bucket="no-such-bucket", Key="nothing") == "NoSuchBucket"
    emulator.script({"do": "status", "status": 429, "match": {"verb": "list"}})
    assert _code(sdk.bedrock.list_model_invocation_jobs) == "ThrottlingException"
    liar = boto3.Session().client(
        "bedrock", region_name=REGION, endpoint_url=emulator.url_of("bedrock"),
        aws_access_key_id=KEY, aws_secret_access_key="another", config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip
    assert _code(liar.list_model_invocation_jobs) == "InvalidSignatureException"
    liar.close()


@pytest.mark.long
def test_our_calls_of_the_bucket_and_of_identity_run_before_moto(tmp_path: Path) -> None:
    lines = b"".join(
        b'{"custom_id":"row %d","body":{"model":"m","messages":[{"role":"user","content":"x"}]}}\n' % n
        for n in range(3)
    )
    source = tmp_path / "s.001.input.jsonl"
    source.write_bytes(lines)
    with s3_server() as server:
        s3 = boto3.Session().client("s3", region_name=REGION, endpoint_url=server)
        s3.create_bucket(Bucket=BUCKET)
        role = f"arn:aws:iam::{MOTOS_ACCOUNT}:role/batch"
        backend = PACKAGE.open(bedrock_settings(server, KEY, role_arn=role), BackendAccess("it", ""))
        assert backend.account() == f"aws:{MOTOS_ACCOUNT}/{REGION}"
        key = backend.upload(source, "s.001.jsonl")
        assert backend.upload(source, "s.001.jsonl") == key, "a repeated upload is the same file"
        assert [(file.id, file.name) for file in backend.files()] == [(key, "s.001.jsonl")]
        body = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        assert body.splitlines()[0].startswith(b'{"recordId":"x0')
        s3.put_object(Bucket=BUCKET, Key="o/j/in.jsonl.out", Body=b'{"recordId":"a","modelOutput":{}}\n')
        s3.put_object(Bucket=BUCKET, Key="o/j/manifest.json.out", Body=b"{}")
        found = backend.download("o/j/in.jsonl.out", tmp_path / "results", source)
        assert found.cut is None
        assert json.loads((tmp_path / "results").read_bytes())["custom_id"] == "a"
        for file in ("o/j/in.jsonl.out", key):
            backend.forget_file(file)
            backend.forget_file(file)
        assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET)
        backend.close()
        s3.close()


def test_a_role_of_another_account_is_refused_before_anything_is_sent(emulator: Emulator) -> None:
    settings = bedrock_settings(emulator.url_of("bedrock"), KEY, role_arn=role_of("AKIAOTHER"))
    backend = PACKAGE.open(settings, BackendAccess("it", ""))
    with pytest.raises(AccountError, match=rf"account {account_of(KEY)}, role_arn to {account_of('AKIAOTHER')}"):
        backend.account()
    backend.close()


@pytest.mark.slow
def test_a_create_whose_token_is_forgotten_ends_in_the_job_of_its_name(emulator: Emulator, tmp_path: Path) -> None:
    backend = PACKAGE.open(bedrock_settings(emulator.url_of("bedrock"), KEY), BackendAccess("it", ""))
    source = tmp_path / "lost.001.input.jsonl"
    source.write_bytes(
        b"".join(
            b'{"custom_id":"r%d","body":{"model":"m","messages":[{"role":"user","content":"x"}]}}\n' % n
            for n in range(2)
        )
    )
    key = backend.upload(source, "lost.001.jsonl")
    order = BatchOrder("lost.001", key, "/v1/chat/completions", 86_400, 2, "home-1", MODEL)
    made = backend.create(order)
    assert backend.create(order).id == made.id
    emulator.settings(forgets_tokens=True)
    try:
        assert backend.create(order).id == made.id
    finally:
        emulator.settings(forgets_tokens=False)
    assert made.status is BatchStatus.VALIDATING
    assert len([one for one in backend.batches() if one.shard == "lost.001"]) == 1
    backend.close()
