"""AWS's signatures and errors on the wire.

Sources: AWS's page on Signature Version 4, botocore 1.43 (service-2.json of bedrock, bedrock-runtime, s3 and sts),
recorded refusals.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from html import escape
from urllib.parse import parse_qsl, quote

import msgspec

from tests.emulator.errors import Json, Problem, Refusal

REGION = "us-east-1"
UNSIGNED = ("UNSIGNED-PAYLOAD", "STREAMING-")
_AUTH = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request,"
    r" ?SignedHeaders=([^,]+), ?Signature=(\w+)"
)
_CODES = {
    400: "ValidationException",
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    409: "ConflictException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}
_S3_CODES = {400: "InvalidRequest", 401: "InvalidAccessKeyId", 403: "AccessDenied", 404: "NoSuchKey", 429: "SlowDown"}
_STATUSES = {401: 403, 409: 400}
_MESSAGES = {401: "The security token included in the request is invalid."}


def account_of(access_key: str) -> str:
    """The number of the account that a key belongs to."""
    return f"{int(hashlib.sha256(access_key.encode()).hexdigest(), 16) % 10**12:012d}"


def secret_of(access_key: str) -> str:
    return f"secret-of-{access_key}"


def role_of(access_key: str) -> str:
    """A service role in the key's account."""
    return f"arn:aws:iam::{account_of(access_key)}:role/batch"


def check_signature(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    digest: str | None,
    service: str,
    own_region: str = REGION,
    secret: Callable[[str], str] = secret_of,
) -> str:
    """The access key that signed a call. Raises Refusal for another signature, service or body.

    `path` is as it was sent; `digest` is of the body, None for one that is not at hand.
    """
    found = _AUTH.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise Refusal(403, Problem("Missing Authentication Token", code="MissingAuthenticationToken"))
    key, date, region, named, signed, given = found.groups()
    told = headers.get("x-amz-content-sha256")
    is_free = told is not None and told.startswith(UNSIGNED)
    if digest is not None and told is not None and told != digest and not is_free:
        raise Refusal(
            400, Problem("The provided 'x-amz-content-sha256' does not match.", code="XAmzContentSHA256Mismatch")
        )
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, True))
    lines = [
        method,
        # Only S3 takes a path as it is.
        path if service == "s3" else quote(path, safe="/~"),
        "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in signed.split(";")),
        "",
        signed,
        told or digest or "",
    ]
    at = headers.get("x-amz-date", "")
    canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    step = f"AWS4{secret(key)}".encode()
    for part in (date, region, named, "aws4_request"):
        step = hmac.digest(step, part.encode(), "sha256")
    scope = f"{date}/{region}/{named}/aws4_request"
    wanted = hmac.digest(step, f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{canonical}".encode(), "sha256").hex()
    if wanted != given or (named, region) != (service, own_region) or not at.startswith(date):
        words = "The request signature we calculated does not match the signature you provided."
        code = "SignatureDoesNotMatch" if service == "s3" else "InvalidSignatureException"
        raise Refusal(403, Problem(words, code=code))
    return key


def aws_error(refusal: Refusal, service: str) -> tuple[int, bytes, dict[str, str], str]:
    """Status, body, headers and type of an error: JSON with a header, and XML from S3."""
    status, problem = refusal.status, refusal.problem
    # Codes of ours begin with a capital; those of a script for all providers do not.
    is_own = problem.code is not None and problem.code[:1].isupper()
    known = _S3_CODES if service == "s3" else _CODES
    code = (
        problem.code
        if is_own
        else known.get(status, "InternalError" if service == "s3" else "InternalServerException")
    )
    message = _MESSAGES.get(status, problem.message)
    status = _STATUSES.get(status, status)
    if service == "s3":
        status = 503 if status == 429 else status
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{escape(message)}</Message>'
        )
        return status, f"{body}<RequestId>0</RequestId></Error>".encode(), {}, "application/xml"
    told: Json = {"message": message}
    return (
        status,
        msgspec.json.encode(told),
        {"x-amzn-errortype": f"{code}:http://internal.amazon.com/"},
        "application/json",
    )
