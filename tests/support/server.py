"""The upstream's routes: judge a request, write it down, give it to the engine, answer it."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.support import answers, vllm_refusals
from tests.support.accesslog import AccessLog
from tests.support.connection import Connection
from tests.support.engine import Engine, count_tokens
from tests.support.faults import IMMEDIATE, MARK, ON_THE_WIRE, Fault, break_answer, due, faults_in
from tests.support.http1 import Request, header, response
from tests.support.metrics import metrics_page
from tests.support.requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    TOKENIZE,
    Prompt,
    marker_of,
    output_limit,
    prompt_of,
)
from tests.support.streaming import Stream

POSTS = frozenset({CHAT, COMPLETIONS, EMBEDDINGS, TOKENIZE})
GETS = frozenset({"/v1/models", "/health", "/metrics", "/version"})
_NO_PROMPT = Prompt("", "", "", [])
_HTML = b"<html><head><title>Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n"

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


_PRIORITY = re.compile(rb'"priority":-?\d+,|,"priority":-?\d+')


@dataclass(frozen=True, slots=True)
class Settings:
    """`max_queued` caps what is in flight, running ones included; no `models` means any name.

    After `tires_after` requests each takes three times as long. `sleeps`: it has vLLM's sleep endpoints, and answers
    well after waking, or nonsense (`addled`).
    """

    slots: int = 256
    seconds: float = 0.0
    piece_seconds: float = 0.0
    log: Path | None = None
    log_bodies: bool = False
    max_queued: int | None = None
    api_key: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int = 32768
    cache_blocks: int = 65536
    sleeps: str | None = None
    tires_after: int | None = None


@dataclass(slots=True)
class Verdict:
    """What becomes of a request: `reply` at once, or the engine, perhaps with a `fault`."""

    outcome: str
    reply: bytes | None = None
    fault: Fault | None = None
    attempt: int = 0


class Exchange:
    """One admitted request on its way through the engine."""

    __slots__ = (
        "body",
        "connection",
        "contents",
        "fault",
        "in_slot",
        "name",
        "path",
        "prompt",
        "seconds",
        "server",
        "stream",
        "timer",
    )

    def __init__(self, server: Server, connection: Connection, request: Request) -> None:
        self.server = server
        self.connection = connection
        self.path = request.path
        self.name = server.name_for(request)
        self.body: answers.Json = {}
        self.prompt = _NO_PROMPT
        self.contents: list[str] = []
        self.fault: Fault | None = None
        self.seconds: float | None = server.settings.seconds
        self.timer: asyncio.TimerHandle | None = None
        self.in_slot = False
        self.stream: Stream | None = None

    def begin(self) -> None:
        if self.stream is not None:
            self.stream.begin()

    def finish(self) -> None:
        self.server.finish(self)


class Server:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = Engine(settings.slots, settings.cache_blocks)
        self.log = AccessLog(settings.log, settings.log_bodies)
        self.finished: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._started = int(time.time())
        self._prefix = uuid.uuid4().hex[:12]
        self._count = 0
        self._submitted = 0
        self._is_asleep = False
        self._is_addled = False

    def name_for(self, request: Request) -> str:
        given = header(request.head, request.head_lower, b"x-request-id")
        if given:
            return given.decode("latin-1")
        self._count += 1
        return f"{self._prefix}{self._count:08x}"

    def receive(self, connection: Connection, request: Request) -> None:
        if self.settings.sleeps is not None and (reply := self._sleep(request)) is not None:
            connection.answer(reply)
        elif request.method == "POST" and request.path in POSTS:
            self._post(connection, request)
        else:
            connection.answer(self._get(request))

    def _sleep(self, request: Request) -> bytes | None:
        """The answer to what concerns sleep, or is answered otherwise for it."""
        path = request.path
        if request.method == "POST" and path in ("/sleep", "/wake_up"):
            if path == "/sleep" and b"/sleep?level=1&mode=wait " not in request.head:
                return response(encode({"detail": "a sleep that loses rows or weights"}), 400)
            self._is_asleep = path == "/sleep"
            self._is_addled |= path == "/wake_up" and self.settings.sleeps == "addled"
            return response(b"")
        if path == "/is_sleeping":
            return response(encode({"is_sleeping": self._is_asleep}))
        if path in POSTS and self._is_asleep:
            return response(encode({"detail": "asleep"}), 500)
        if path in POSTS and self._is_addled:
            choice = {"index": 0, "text": "!!!!!", "message": {"role": "assistant", "content": "!!!!!"}}
            return response(encode({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 5}}))
        return None

    def _get(self, request: Request) -> bytes:
        if request.path not in GETS:
            status = 405 if request.path in POSTS else 404
            return response(encode({"detail": "Method Not Allowed" if status == 405 else "Not Found"}), status)
        if not self._allowed(request):
            return response(b'{"error":"Unauthorized"}', 401)
        names = list(self.settings.models) or ["test-model"]
        match request.path:
            case "/health":
                return response(b"")
            case "/version":
                return response(b'{"version":"0.33.0"}')
            case "/metrics":
                page = metrics_page(self.engine, names[0], self.finished, self.tokens)
                return response(page, content_type="text/plain; version=0.0.4; charset=utf-8")
            case _:
                return response(encode(answers.models(names, self._started, self.settings.max_model_len)))

    def _allowed(self, request: Request) -> bool:
        key = self.settings.api_key
        if key is None or not request.path.startswith("/v1/"):
            return True
        return header(request.head, request.head_lower, b"authorization") == f"Bearer {key}".encode()

    def _post(self, connection: Connection, request: Request) -> None:
        exchange = Exchange(self, connection, request)
        # A server that has just begun may not know yet that priorities are taken: its rows are the same all the same.
        sha = hashlib.sha256(_PRIORITY.sub(b"", request.body)).hexdigest()[:16]
        verdict = self._judge(exchange, request, sha)
        self._write_down(exchange, request, sha, verdict)
        if verdict.reply is not None:
            connection.answer(verdict.reply)
            return
        exchange.fault = fault = verdict.fault
        if fault is not None and fault.name == "hang":
            exchange.seconds = None
        elif fault is not None and fault.name == "slow":
            exchange.seconds = self.settings.seconds + fault.value / 1000
        if exchange.body.get("stream"):
            self._open_stream(exchange)
        self._submitted += 1
        tires = self.settings.tires_after
        if tires is not None and exchange.seconds is not None and self._submitted > tires:
            exchange.seconds *= 3
        connection.exchange = exchange
        self.engine.submit(exchange)

    def _write_down(self, exchange: Exchange, request: Request, sha: str, verdict: Verdict) -> None:
        entry: dict[str, Any] = {
            "time": time.time(),
            "path": request.path,
            "sha": sha,
            "marker": marker_of(exchange.body, exchange.prompt),
            "outcome": verdict.outcome,
            "running": self.engine.running,
            "waiting": len(self.engine.waiting),
        }
        if verdict.attempt:
            entry["try"] = verdict.attempt
        self.log.write(entry, request.body)

    def _judge(self, exchange: Exchange, request: Request, sha: str) -> Verdict:
        if not self._allowed(request):
            return Verdict("unauthorized", response(b'{"error":"Unauthorized"}', 401))
        try:
            body = decode(request.body)
            if not isinstance(body, dict):
                raise ValueError("the request body must be a JSON object")
            exchange.body = body
            exchange.prompt = prompt_of(request.path, body)
            exchange.contents = _contents(request.path, body, exchange.prompt)
            faults = faults_in(exchange.prompt.script) if MARK in exchange.prompt.script else None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as wrong:
            # A schema of a kind that is not understood here ends in any of these.
            return Verdict("invalid", response(encode(answers.error(400, str(wrong))), 400))
        if faults is None:
            return self._admit(exchange, None, 0)
        self.log.tries[sha] += 1
        attempt = self.log.tries[sha]
        fault = due(faults, attempt)
        if fault is not None and fault.name in IMMEDIATE:
            return Verdict(f"fault:{fault}", self._scripted(fault, exchange), fault, attempt)
        return self._admit(exchange, fault, attempt)

    def _admit(self, exchange: Exchange, fault: Fault | None, attempt: int) -> Verdict:
        refused = self._refusal(exchange)
        if refused is not None:
            status = refused["error"]["code"]
            return Verdict(f"refused:{status}", response(encode(refused), status), None, attempt)
        if exchange.path == TOKENIZE:
            return Verdict("ok", response(encode(self._tokenize(exchange))), None, attempt)
        return Verdict("ok" if fault is None else f"fault:{fault}", None, fault, attempt)

    def _refusal(self, exchange: Exchange) -> answers.Json | None:
        settings, body = self.settings, exchange.body
        model = body.get("model")
        if settings.models and model is not None and model not in settings.models:
            return answers.error(404, f"The model `{model}` does not exist.", param="model")
        if exchange.path in (CHAT, COMPLETIONS) and (refusal := vllm_refusals.refused(body)) is not None:
            return answers.error(400, refusal[0], param=refusal[1])
        if body.get("stream") and exchange.path != CHAT:
            return answers.error(501, "only chat is streamed here")
        prompt, wanted = count_tokens(exchange.prompt.whole), output_limit(body)
        if prompt + wanted > settings.max_model_len and exchange.path != TOKENIZE:
            return answers.context_error(settings.max_model_len, wanted, prompt)
        if settings.max_queued is not None and self.engine.in_flight >= settings.max_queued:
            message = f"Too many requests in flight (limit {settings.max_queued}); try again later."
            return answers.error(503, message, "Service Unavailable")
        return None

    def _scripted(self, fault: Fault, exchange: Exchange) -> bytes:
        if fault.name == "html":
            return response(_HTML, fault.value, "text/html; charset=utf-8", fault.options)
        if fault.name == "context":
            limit = self.settings.max_model_len
            return response(encode(answers.context_error(limit, output_limit(exchange.body), limit + 1)), 400)
        body = encode(answers.error(fault.value, f"scripted fault: status {fault.value}"))
        return response(body, fault.value, headers=fault.options)

    def _tokenize(self, exchange: Exchange) -> answers.Json:
        count = count_tokens(exchange.prompt.whole)
        return {"count": count, "max_model_len": self.settings.max_model_len, "tokens": list(range(count))}

    def finish(self, exchange: Exchange) -> None:
        """The engine is done with it: answer, or do what its fault says."""
        if exchange.stream is not None:
            self._end_stream(exchange, exchange.stream)
            return
        body = encode(self._answer(exchange))
        fault, connection = exchange.fault, exchange.connection
        if fault is None or fault.name not in ON_THE_WIRE:
            connection.answer(response(body))
            return
        break_answer(fault.name, connection.transport, body)
        connection.answered()

    def _open_stream(self, exchange: Exchange) -> None:
        kind = "" if exchange.fault is None else exchange.fault.name
        content = _spoilt(kind, exchange.contents[0])
        common = {"id": f"chatcmpl-{exchange.name}", "created": int(time.time()), "model": self._model(exchange.body)}
        transport = exchange.connection.transport
        exchange.stream = Stream(transport, common, content, self.settings.piece_seconds)
        if exchange.seconds is not None:
            exchange.seconds += exchange.stream.seconds

    def _end_stream(self, exchange: Exchange, stream: Stream) -> None:
        fault, wanted = exchange.fault, exchange.body.get("stream_options") or {}
        if fault is not None and fault.name in ON_THE_WIRE:
            stream.break_off(fault.name)
        else:
            content = _spoilt("" if fault is None else fault.name, exchange.contents[0])
            kind = "" if fault is None else fault.name
            finish = _FINISHES.get(kind, "stop")
            used = self._count_tokens(exchange.prompt.whole, self._told(kind, content, exchange), finish)
            stream.finish(finish, used if wanted.get("include_usage") else None)
        exchange.connection.answered()

    def _model(self, body: answers.Json) -> str:
        return str(body.get("model") or (self.settings.models or ("test-model",))[0])

    def _answer(self, exchange: Exchange) -> answers.Json:
        body, prompt = exchange.body, exchange.prompt
        model = self._model(body)
        created = int(time.time())
        if exchange.path == EMBEDDINGS:
            self._count_tokens(prompt.whole, 0, "stop")
            return answers.embeddings(exchange.name, model, created, prompt.inputs, body)
        kind = "" if exchange.fault is None else exchange.fault.name
        finish = _FINISHES.get(kind, "stop")
        if exchange.path == CHAT:
            content = _spoilt(kind, exchange.contents[0])
            used = self._count_tokens(prompt.whole, self._told(kind, content, exchange), finish)
            return answers.chat(
                exchange.name, model, created, content, finish, used, logprobs=body.get("logprobs") is True
            )
        texts = [_spoilt(kind, content) for content in exchange.contents]
        used = self._count_tokens(prompt.whole, sum(map(count_tokens, texts)), finish)
        return answers.completion(exchange.name, model, created, texts, finish, used)

    def _told(self, kind: str, content: str, exchange: Exchange) -> int:
        """The tokens of an answer: one that ends for its length has as many as it may, unless the window was full;
        `full` is one that fills the window and says `stop` all the same."""
        if kind == "full":
            return self.settings.max_model_len - count_tokens(exchange.prompt.whole)
        most = exchange.body.get("max_tokens") or exchange.body.get("max_completion_tokens")
        return most if kind == "length" and isinstance(most, int) else count_tokens(content)

    def _count_tokens(self, whole: str, completion: int, finish: str) -> answers.Json:
        cached = self.engine.cache.look_up(whole)
        tokens = count_tokens(whole)
        self.finished[finish] += 1
        self.tokens["prompt"] += tokens
        self.tokens["generation"] += completion
        return answers.usage(tokens, completion, cached)


_FINISHES = {"length": "length", "window": "length", "eos": "eos"}
"""How answers with a fault end, where that is not `stop`."""


def _contents(path: str, body: answers.Json, prompt: Prompt) -> list[str]:
    if path == CHAT:
        return [answers.content_for(body, prompt.last)]
    return [answers.content_for(body, text) for text in prompt.inputs] if path == COMPLETIONS else []


def _spoilt(kind: str, content: str) -> str:
    match kind:
        case "empty":
            return ""
        case "notjson":
            return answers.NOT_JSON
        case "length" | "window":
            return content[: len(content) // 2]
        case "fenced":
            return f"Here it is:\n```json\n{content}\n```"
        case _:
            return content
