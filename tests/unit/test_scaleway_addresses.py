"""Addresses of objects in Scaleway's batches, however they are spelled."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx2
import msgspec
import pytest

from orchestrator.backends.buckets import BucketPrefix, WithBucket
from orchestrator.backends.scaleway import PROFILE
from orchestrator.backends.scaleway.api import ScalewayAPI
from orchestrator.core.errors import BackendError

ADDRESS = "https://night.s3.fr-par.scw.cloud"
FOLDER = "orch/in/0123456789abcdef"
BATCH = {"id": "b", "object": "batch", "status": "completed", "created_at": 1_790_000_000}


def batches(told: object) -> WithBucket:
    """The verbs before a provider that answers every call alike."""
    http = httpx2.Client(
        base_url="https://api.example/v1",
        transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=msgspec.json.encode(told))),
    )
    api = ScalewayAPI(http, "secret", 30.0, http, BucketPrefix("night", "orch"), ADDRESS)
    return WithBucket("it", api, PROFILE, bucket="night", role="Scaleway's application")


@pytest.mark.parametrize(
    "root",
    [ADDRESS, "s3://night", "https://s3.fr-par.scw.cloud/night"],
    ids=["as its guide has it", "of the console", "with the bucket in the path"],
)
def test_a_batch_is_ours_by_its_input_and_results_lie_beside_it(root: str) -> None:
    signed = f"{root}/{FOLDER}/shard-1_output.jsonl?X-Amz-Signature=0"
    found = batches({**BATCH, "input_file_id": f"{root}/{FOLDER}/shard-1.jsonl", "output_file_id": signed}).retrieve(
        "b"
    )
    assert found is not None
    assert (found.shard, found.input_file_id) == ("shard-1", f"{FOLDER}/shard-1.jsonl")
    assert found.output_file_id == f"{FOLDER}/shard-1_output.jsonl"


@pytest.mark.parametrize(
    "address", [f"{ADDRESS}/else/shard-1.jsonl", f"https://other.s3.fr-par.scw.cloud/{FOLDER}/s.jsonl"]
)
def test_a_batch_of_another_folder_or_bucket_is_not_ours(address: str) -> None:
    found = batches({**BATCH, "input_file_id": address}).retrieve("b")
    assert found is not None
    assert found.shard is None


def test_results_with_an_unknown_address_are_not_guessed_and_hide_no_batch() -> None:
    batch = {**BATCH, "input_file_id": f"{ADDRESS}/{FOLDER}/shard-1.jsonl", "output_file_id": "file-1"}
    with pytest.raises(BackendError, match="unknown address: file-1"):
        batches(batch).retrieve("b")
    listed = batches({"object": "list", "data": [batch], "has_more": False})
    found = listed.listed("b", datetime(2026, 9, 1, tzinfo=UTC)).batch
    assert found is not None
    assert (found.shard, found.output_file_id) == ("shard-1", None)
