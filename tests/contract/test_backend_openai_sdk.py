"""Our client and the official SDK: given the same answers, they ask the same and say the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.openai_http import NO_KEY, HttpAPI
from orchestrator.core.errors import OrchError
from tests.support.batchapi import CHAT, jsonl, row
from tests.support.hosted import ORDER, batch, error
from tests.support.scripted import Answer, Asked, Scripted, scripted
from tests.support.sdk_api import SdkAPI

FILE = {"id": "file-1", "object": "file", "bytes": 3, "filename": "in.jsonl", "purpose": "batch", "created_at": 1}
ANSWERS: dict[str, Answer] = {
    "a batch": Answer(batch()),
    "a file": Answer(FILE),
    "a list": Answer({"object": "list", "data": [batch(), batch(2)], "has_more": False}),
    "a list of files": Answer({"object": "list", "data": [FILE], "has_more": False}),
    "bytes": Answer(b"abc", headers={"Content-Type": "application/octet-stream"}),
    "bad key": error(401, "invalid_api_key"),
    "no permission": error(403),
    "not there": error(404, "not_found"),
    "not there, in nobody's words": Answer(b"", 404),
    "a gateway's page": Answer(b"<html>Bad gateway</html>", 502, {"Content-Type": "text/html"}),
    "conflict": error(409, "conflict", "it is over"),
    "too large": error(413),
    "nothing there yet": error(416),
    "slow down": error(429, "rate_limit_exceeded", retry_after="7"),
    "internal error": error(500),
    "overload that says when": error(503, retry_after="7"),
    "disk full": error(507, "storage"),
    "an error that is a word": Answer({"error": "no"}, 400),
    "an error that is a number": Answer(7, 400),
    "an error in a list": Answer([{"message": "no"}], 400),
    "an error with numbers in it": Answer({"error": {"message": 7, "code": 8, "param": 9, "type": None}}, 400),
    "an error that is not UTF-8": Answer(b'{"error": {"message": "\xff"}}', 400),
    "an error in words alone": Answer(b"max_tokens is not supported\n", 400, {"Content-Type": "text/plain"}),
    "moved": Answer(b"", 302, {"Location": "/v1/elsewhere"}),
    "nothing": Answer(b""),
    "no JSON": Answer(b'{"id":'),
    "cut off": Answer(fault="cut"),
    "cut within the answer": Answer(batch(), fault="short"),
}


def sdk(url: str) -> SdkAPI:
    # It follows redirects; our own server gives none.
    plain = openai.DefaultHttpxClient(timeout=30.0, follow_redirects=False)
    return SdkAPI(openai.OpenAI(base_url=url, api_key=NO_KEY, http_client=plain, max_retries=0))


def own(url: str) -> HttpAPI:
    return HttpAPI(httpx2.Client(base_url=url, timeout=30.0), NO_KEY)


def calls(folder: Path) -> Iterator[tuple[str, Callable[[ApiBatches], Any]]]:
    """Each verb, with what it gives."""
    path, kept = folder / "in.jsonl", folder / "kept"
    path.write_bytes(b"abc")

    def bytes_of(verb: Callable[[], Any]) -> Any:
        kept.unlink(missing_ok=True)
        return verb(), kept.read_bytes() if kept.exists() else None

    yield "upload", lambda found: found.upload(path, "other.jsonl")
    yield "create", lambda found: found.create(ORDER)
    yield "retrieve", lambda found: found.retrieve("batch_1")
    yield "cancel", lambda found: found.cancel("batch_1")
    yield "batches", lambda found: list(found.batches())
    yield "files", lambda found: list(found.files())
    yield "size", lambda found: found.size_of("file-1")
    yield "forget", lambda found: found.forget_file("file/../1?x#y %")
    yield "download", lambda found: bytes_of(lambda: found.download("file-1", kept, path))
    yield "partial", lambda found: bytes_of(lambda: found.partial("batch_1", "output", kept))
    yield "read on", lambda found: found.read_on("batch_1", "output", 10, 100)
    yield "ask", lambda found: found.ask(CHAT, jsonl([row("a")]))


def told(verb: Callable[[], Any]) -> Any:
    """What a verb gives, or the error that it raises, as far as anybody sees it."""
    try:
        return verb()
    except OrchError as raised:
        facts = ("status", "code", "retry_after", "hint")
        return type(raised).__name__, str(raised), [getattr(raised, fact, None) for fact in facts]


def seen(asked: Asked) -> tuple[Any, ...]:
    """A request, but for what names the client and what divides the parts of a form."""
    kind, _, boundary = asked.headers.get("content-type", "").partition("; boundary=")
    plain = asked.body.replace(boundary.encode(), b"") if boundary else asked.body
    body = json.loads(plain) if plain and kind == "application/json" else sorted(plain.splitlines())
    kind = kind if plain else ""  # the SDK names a type for nothing, too
    return asked.method, asked.path, asked.query, kind, asked.headers.get("range"), body


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_both_clients_ask_the_same_and_say_the_same(answer: Answer, tmp_path: Path) -> None:
    def outcomes(provider: Scripted, api: Callable[[str], Any]) -> list[Any]:
        backend = ApiBatches("local", api(provider.base_url), extra={"include_provenance": True})
        try:
            return [(name, told(lambda call=call: call(backend))) for name, call in calls(tmp_path)]  # type: ignore[misc]
        finally:
            backend.close()

    with scripted(lambda _: answer) as one, scripted(lambda _: answer) as other:
        assert outcomes(one, own) == outcomes(other, sdk)
        mine, theirs = list(map(seen, one.asked)), list(map(seen, other.asked))
    assert mine == theirs
    assert len(mine) >= len(list(calls(tmp_path)))


@pytest.mark.long
def test_a_run_imports_no_sdk_on_our_own_server_or_at_a_provider() -> None:
    code = (
        "import sys, orchestrator.cli.jobs, orchestrator.cli.running;"
        "from orchestrator.backends.open import open_backend;"
        "from orchestrator.backends.openai.settings import OpenAIBackend;"
        "settings = OpenAIBackend(kind='openai', api_key_env='K');"
        "open_backend('cloud', settings, {'K': 'sk-1'}).close();"
        "sys.exit(str(sorted({'openai', 'anthropic', 'alembic', 'aiohttp'} & set(sys.modules))))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == "[]"
