"""Signatures of requests to AWS and to S3-compatible buckets, beside those of botocore."""

from __future__ import annotations

from urllib.parse import quote, urlencode, urlsplit

import httpx2
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.aws_signature import AwsKeys, Signature

LETTERS = st.characters(codec="utf-8", exclude_characters="/", exclude_categories=["C"])
TEXT = st.text(LETTERS, min_size=1, max_size=20)
PATHS = st.lists(TEXT.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4).map("/".join)
QUERIES = st.dictionaries(TEXT, TEXT, max_size=3)


@pytest.mark.parametrize("service", ["s3", "bedrock", "sts"])
@given(path=PATHS, query=QUERIES, body=st.binary(max_size=50), token=st.none() | st.just("a-token"))
def test_a_request_has_the_signature_that_botocore_gives_it(
    service: str, path: str, query: dict[str, str], body: bytes, token: str | None
) -> None:
    url = f"https://host.example/{quote(path)}"
    url += f"?{urlencode(query, safe='-_.~', quote_via=quote)}" if query else ""
    headers = {"content-type": "application/json", "x-amz-expected-bucket-owner": "12  34"}
    request = httpx2.Request("PUT", url, content=body, headers=headers)
    next(Signature(lambda: AwsKeys("AKID", "secret", token), service, "eu-west-1").auth_flow(request))

    signs = S3SigV4Auth if service == "s3" else SigV4Auth
    there = signs(Credentials("AKID", "secret", token), service, "eu-west-1")
    names = [name for name in request.headers if name.startswith("x-amz-")]
    signed = {name: request.headers[name] for name in ("content-type", *names)}
    theirs = AWSRequest("PUT", str(request.url), data=body, headers={"host": urlsplit(url).netloc, **signed})
    theirs.context["timestamp"] = request.headers["x-amz-date"]
    told = there.string_to_sign(theirs, there.canonical_request(theirs))
    assert request.headers["authorization"].endswith(f"Signature={there.signature(told, theirs)}")
