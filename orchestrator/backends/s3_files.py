"""Batch files in an S3-compatible bucket: its calls, and its listings and errors in OpenAI's shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import unescape
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

import httpx2

from orchestrator.backends import lenient
from orchestrator.backends.api import ApiAnswer, ApiRefusal, answer_of
from orchestrator.backends.aws_signature import DIGEST
from orchestrator.backends.buckets import BucketPrefix, input_object
from orchestrator.backends.openai_http import HttpAPI
from orchestrator.backends.result_lines import lines

Json = dict[str, Any]
BAD_CREDENTIALS = 401
_STATUSES = {
    "ConflictException": 409,
    "ServiceQuotaExceededException": 429,
    "SlowDown": 429,
    # For bad credentials, some services answer 400 and others 403.
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidAccessKeyId",
         "InvalidClientTokenId", "InvalidToken", "SignatureDoesNotMatch", "InvalidSignatureException",
         "IncompleteSignature", "MissingAuthenticationToken", "RequestExpired", "RequestTimeTooSkewed"),
        BAD_CREDENTIALS,
    ),
    # A bucket that is missing or in another region is a mistake in the settings, which must not cost any row.
    **dict.fromkeys(("NoSuchBucket", "PermanentRedirect", "AuthorizationHeaderMalformed"), 403),
}  # fmt: skip
"""HTTP statuses that replace AWS's own, which mean something else at other providers."""
_XML_WORDS = re.compile(r"<(Code|Message)>([^<]*)</")


class S3FilesAPI(HttpAPI):
    """Calls of a Batch API whose files are objects in a bucket.

    `bucket` is a signing client with the bucket's address. `headers` go with each call to the bucket.
    """

    def __init__(
        self,
        http: httpx2.Client,
        api_key: str,
        silent: float,
        bucket: httpx2.Client,
        place: BucketPrefix,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(http, api_key, silent)
        self._bucket, self._place, self._owner = bucket, place, dict(headers or {})

    def close(self) -> None:
        super().close()
        self._bucket.close()

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        token = {} if after is None else {"continuation-token": after}
        query = {"list-type": "2", "prefix": self._place.inputs, "max-keys": str(limit), **token}
        answer = self._answer(self._bucket.get(asked("", query), headers=self._owner))
        found, next_page = objects_of(answer.content)
        listed = {"data": found, "has_more": next_page is not None}
        return answer_of(listed, answer.headers, next_page)

    def file(self, file_id: str) -> ApiAnswer:
        """Return an object without its size, because orch translates its lines. Raises ApiRefusal if the object is
        missing.
        """
        with self.content(file_id):
            return answer_of({"id": file_id})

    def put(self, name: str, content: BinaryIO, sent: Iterable[bytes]) -> ApiAnswer | None:
        """Store an input file with these lines, made from `content`. Return None if there are no lines."""
        with input_object(self._place, name, content, sent) as found:
            if not found.size:
                return None
            headers = {**self._owner, DIGEST: found.digest, "Content-Length": str(found.size)}
            put = self._bucket.put(quote(found.key), content=found.file, headers=headers, timeout=self._transfer)
            return answer_of({"id": found.key, "filename": name}, self._answer(put).headers)

    def delete_file(self, file_id: str) -> None:
        self._answer(self._bucket.delete(quote(file_id), headers=self._owner))

    @contextmanager
    def object_lines(self, key: str, convert: Callable[[bytes], bytes]) -> Iterator[Iterator[bytes]]:
        """Open an object and yield its lines, each converted to another shape."""
        with self._streamed(self._bucket, quote(key), headers=self._owner) as chunks:
            yield (convert(line) + b"\n" for line in lines(chunks))

    def _refusal(self, response: httpx2.Response) -> ApiRefusal:
        return self._aws_refusal(response) if b"<Error" in response.content else super()._refusal(response)

    def _aws_refusal(self, response: httpx2.Response, kind: str = "") -> ApiRefusal:
        error = error_of(response.content, kind)
        status = response.status_code if error is None else status_of(error["code"], response.status_code)
        return ApiRefusal(status, response.headers, response.request.url.path, error)


def asked(path: str, query: Mapping[str, str]) -> str:
    """Return a path with its query, encoded exactly as in the signature."""
    return f"{path}?{urlencode(query, safe='-_.~', quote_via=quote)}" if query else path


def error_of(content: bytes, kind: str) -> Json | None:
    """Return the error object in a JSON or XML answer, or from the header `x-amzn-errortype`; None for other
    answers.
    """
    told = lenient.decode_object(content)
    if told is None:
        found = dict(_XML_WORDS.findall(content.decode(errors="replace"))) if b"<Error" in content else {}
        told = {"code": found.get("Code"), "message": unescape(found.get("Message", ""))}
    code = kind or lenient.text(told.get("__type") or told.get("code"))
    code = code.partition(":")[0].rpartition("#")[2]
    # From the second line on, AWS explains a refused signature by the whole request, with the session's token.
    said = lenient.text(told.get("message") or told.get("Message")).partition("\n")[0]
    return {"code": code, "type": code, "param": None, "message": said or code} if code else None


def status_of(code: str, status: int) -> int:
    return _STATUSES.get(code, status)


def objects_of(content: bytes) -> tuple[list[Json], str | None]:
    """Return the objects in a bucket listing as OpenAI's files, and the token of the next page."""
    text = content.decode(errors="replace")
    if "<ListBucketResult" not in text:
        raise ValueError("the answer is not a listing of a bucket")
    files = [
        {
            "id": (key := unescape(found["key"])),
            "filename": key.rpartition("/")[2],
            "bytes": tag_in("Size", found["rest"]),
            "created_at": tag_in("LastModified", found["rest"]),
        }
        for found in re.finditer(r"<Contents>.*?<Key>(?P<key>[^<]*)</Key>(?P<rest>.*?)</Contents>", text, re.DOTALL)
    ]
    return files, tag_in("NextContinuationToken", text)


def tag_in(name: str, text: str) -> str | None:
    """Return the content of the XML tag `name`, or None if the tag is missing."""
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return None if found is None else unescape(found[1])
