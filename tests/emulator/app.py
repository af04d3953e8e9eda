"""The HTTP side: which call it is, whose it is, what is scripted for it, and its answer."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import Literal

import msgspec
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.emulator import (
    anthropic_api,
    bedrock_api,
    cohere_api,
    fireworks_api,
    gemini_api,
    mistral_api,
    openai_batches,
    openrouter_api,
    scaleway_api,
    together_api,
    vertex_api,
    xai_api,
)
from tests.emulator.answers import decode_body
from tests.emulator.aws_wire import account_of, aws_error, check_signature
from tests.emulator.call import Call, Reply
from tests.emulator.control import control
from tests.emulator.errors import (
    HTML_502,
    Json,
    Problem,
    Refusal,
    anthropic_error,
    gemini_error,
    mistral_error,
    problem_of,
    refuse,
    xai_error,
)
from tests.emulator.google_wire import vertex_error
from tests.emulator.oddanswers import spoken
from tests.emulator.oddbytes import RAW, changed, kind_of, send_raw
from tests.emulator.oddlines import told
from tests.emulator.refusals import SYNCHRONOUS
from tests.emulator.script import OF_ANSWERS, Fault
from tests.emulator.wire import Wire
from tests.emulator.world import World

PREFIXES = {
    "/v1": "openai",
    "/azure/openai/v1": "azure",
    "/anthropic/v1": "anthropic",
    "/gemini/v1beta": "gemini",
    "/gemini/upload/v1beta": "gemini",
    "/bedrock": "bedrock",
    "/vertex": "vertex",
    "/together/v1": "together",
    "/fireworks": "fireworks",
    "/cohere": "cohere",
    "/scaleway": "scaleway",
    "/zhipu/v4": "zhipu",
    "/siliconflow/v1": "siliconflow",
    **{f"/{flavour}/v1": flavour for flavour in SYNCHRONOUS},
}
CONTROL = "/_emulator/"

_OPENAI = {
    "POST /files": "upload",
    "GET /files": "files",
    "GET /files/{}": "file",
    "GET /files/{}/content": "content",
    "DELETE /files/{}": "delete_file",
    "POST /batches": "create",
    "GET /batches": "list",
    "GET /batches/{}": "retrieve",
    "POST /batches/{}/cancel": "cancel",
    "GET /models": "models",
    "GET /models/{}": "model",
    "POST /chat/completions": "chat",
    "POST /responses": "chat",
    "POST /embeddings": "chat",
}
_ANTHROPIC = {
    "POST /messages/batches": "create",
    "GET /messages/batches": "list",
    "GET /messages/batches/{}": "retrieve",
    "POST /messages/batches/{}/cancel": "cancel",
    "GET /messages/batches/{}/results": "results",
    "DELETE /messages/batches/{}": "delete",
    "POST /messages": "chat",
    "GET /models": "models",
    "GET /models/{}": "model",
}
_MISTRAL = {
    **{route: verb for route, verb in _OPENAI.items() if "/batches" not in route and "/responses" not in route},
    "POST /batch/jobs": "create",
    "GET /batch/jobs": "list",
    "GET /batch/jobs/{}": "retrieve",
    "POST /batch/jobs/{}/cancel": "cancel",
    "DELETE /batch/jobs/{}": "delete",
}
_XAI = {
    **{route: verb for route, verb in _OPENAI.items() if "/cancel" not in route and "/embeddings" not in route},
    "POST /batches/{}:cancel": "cancel",
    "GET /batches/{}/results": "results",
}
_OPENROUTER = {
    "POST /batches": "create",
    "GET /batches": "list",
    "GET /batches/{}": "retrieve",
    "DELETE /batches/{}": "delete",
    "GET /models": "models",
    "GET /models/{}": "model",
    "POST /chat/completions": "chat",
}
_GEMINI = {
    "POST /files": "upload",
    "GET /files": "files",
    "GET /files/{}:download": "content",
    "GET /files/{}": "file",
    "DELETE /files/{}": "delete_file",
    "POST /models/{}:batchGenerateContent": "create",
    "POST /models/{}:generateContent": "chat",
    "GET /models": "models",
    "GET /models/{}": "model",
    "GET /batches": "list",
    "GET /batches/{}": "retrieve",
    "POST /batches/{}:cancel": "cancel",
    "DELETE /batches/{}": "delete",
}
_BEDROCK = {
    "POST /model-invocation-job": "create",
    "GET /model-invocation-jobs": "list",
    "GET /model-invocation-job/{}": "retrieve",
    "POST /model-invocation-job/{}/stop": "cancel",
    "POST /model/{}/converse": "chat",
    "GET /foundation-models": "models",
    "GET /inference-profiles": "profiles",
    "POST /?": "caller",
    "GET /([^/]+)/?": "files",
    "PUT /{}": "upload",
    "GET /{}": "content",
    "DELETE /{}": "delete_file",
}
_JOBS = "/v1(?:beta1)?/{}/batchPredictionJobs"
_JOB = "/v1(?:beta1)?/({}/batchPredictionJobs/[^/:]+)".replace("{}", ".+")
_VERTEX = {
    "POST /token": "token",
    f"POST {_JOBS}": "create",
    f"GET {_JOBS}": "list",
    f"POST {_JOB}:cancel": "cancel",
    f"GET {_JOB}": "retrieve",
    f"DELETE {_JOB}": "delete",
    "POST /v1(?:beta1)?/{}:generateContent": "chat",
    "GET /v1beta1/publishers/google/models": "models",
    "GET /v1beta1/publishers/google/models/{}": "model",
    "POST /upload/storage/v1/b/{}/o": "upload",
    "GET /storage/v1/b/{}/o": "files",
    "GET /storage/v1/b/{}": "content",
    "DELETE /storage/v1/b/{}": "delete_file",
}
_TOGETHER = {
    **_OPENAI,
    "POST /files": "begin_upload",
    "PUT /uploads/{}": "put",
    "POST /files/upload": "upload",
    "POST /files/{}/preprocess": "preprocess",
}
_ACCOUNT = "/v1/accounts/[^/]+"
_FIREWORKS = {
    f"POST {_ACCOUNT}/datasets": "create_dataset",
    f"GET {_ACCOUNT}/datasets": "files",
    f"POST {_ACCOUNT}/datasets/{{}}:upload": "upload",
    f"GET {_ACCOUNT}/datasets/{{}}:getDownloadEndpoint": "endpoint",
    f"GET {_ACCOUNT}/datasets/{{}}": "file",
    f"DELETE {_ACCOUNT}/datasets/{{}}": "delete_file",
    f"POST {_ACCOUNT}/batchInferenceJobs": "create",
    f"GET {_ACCOUNT}/batchInferenceJobs": "list",
    f"GET {_ACCOUNT}/batchInferenceJobs/{{}}": "retrieve",
    f"DELETE {_ACCOUNT}/batchInferenceJobs/{{}}": "cancel",
    f"GET {_ACCOUNT}/models": "models",
    "GET /signed/(.+)": "content",
    "POST /inference/v1/chat/completions": "chat",
}
_COHERE = {
    "POST /v1/datasets": "upload",
    "GET /v1/datasets": "files",
    "GET /v1/datasets/{}": "file",
    "DELETE /v1/datasets/{}": "delete_file",
    "GET /signed/(.+)": "content",
    "POST /v2/batches": "create",
    "GET /v2/batches": "list",
    "POST /v2/batches/{}:cancel": "cancel",
    "GET /v2/batches/{}": "retrieve",
    "GET /v1/models": "models",
}
_SCALEWAY = {
    "POST /v1/batches": "create",
    "GET /v1/batches": "list",
    "GET /v1/batches/{}": "retrieve",
    "GET /v1/models": "models",
    "GET /v1/models/{}": "model",
    "POST /v1/chat/completions": "chat",
    "POST /v1/responses": "chat",
    "POST /v1/embeddings": "chat",
    "GET /s3/?": "files",
    "PUT /(s3/.+)": "upload",
    "GET /(s3/.+)": "content",
    "DELETE /(s3/.+)": "delete_file",
}
_OTHERS = {
    "anthropic": _ANTHROPIC,
    "mistral": _MISTRAL,
    "gemini": _GEMINI,
    "bedrock": _BEDROCK,
    "vertex": _VERTEX,
    "together": _TOGETHER,
    "fireworks": _FIREWORKS,
    "cohere": _COHERE,
    "scaleway": _SCALEWAY,
    "xai": _XAI,
    "openrouter": _OPENROUTER,
}
ROUTES = {
    # An ARN, a key and a resource's name have slashes, and the path is read decoded.
    flavour: [
        (re.compile(route.replace("{}", "(.+)" if flavour in ("bedrock", "vertex") else "([^/]+)")), verb)
        for route, verb in routes.items()
    ]
    for flavour in PREFIXES.values()
    for routes in (_OTHERS.get(flavour, _OPENAI),)
}
_UNNAMED = _OTHERS.keys() - {"anthropic"}
"""Providers that name no owner of a key."""
_LARGE = (
    ("anthropic", "create"),
    ("gemini", "upload"),
    ("bedrock", "upload"),
    ("vertex", "upload"),
    ("scaleway", "upload"),
    ("together", "put"),
)
"""Calls whose body goes to the disk."""
_MARKS_OF_PAGES = ("page", "pageToken", "pagination_token", "page_token")
_SIGNED = (("vertex", "token"), ("together", "put"), ("fireworks", "content"), ("cohere", "content"))
"""Calls that need no key beside their address or body."""
Break = Literal["cut", "hang", "reset"]
BEFORE: dict[str, Break] = {"cut_before": "cut", "hang_before": "hang", "reset_before": "reset"}
AFTER: dict[str, Break] = {"cut_after": "cut", "hang_after": "hang", "reset_after": "reset"}
_WITHOUT_BATCHES = {verb: openai_batches.VERBS[verb] for verb in ("models", "model", "chat")}
VERBS = {
    **dict.fromkeys(SYNCHRONOUS, _WITHOUT_BATCHES),
    **dict.fromkeys(("openai", "azure", "groq", "zhipu", "siliconflow"), openai_batches.VERBS),
    "anthropic": anthropic_api.VERBS,
    "mistral": mistral_api.VERBS,
    "gemini": gemini_api.VERBS,
    "bedrock": bedrock_api.VERBS,
    "vertex": vertex_api.VERBS,
    "together": together_api.VERBS,
    "fireworks": fireworks_api.VERBS,
    "cohere": cohere_api.VERBS,
    "scaleway": scaleway_api.VERBS,
    "xai": xai_api.VERBS,
    "openrouter": openrouter_api.VERBS,
}


class App:
    """The ASGI application."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = request.url.path
        if path.startswith(CONTROL):
            await self._control(request, path.removeprefix(CONTROL), await request.body())(scope, receive, send)
        elif (response := await self._provider(request, path, scope["state"]["wire"])) is not None:
            await response(scope, receive, send)

    def _control(self, request: Request, name: str, body: bytes) -> Response:
        if (request.method, name) == ("POST", "reset"):
            self.world = self.world.anew(int(request.query_params["seed"]))
            return _json({}, 200, {})
        try:
            told = control(self.world, request.method, name, request.query_params, body)
            return _json(told, 200, {})
        except Refusal as refusal:
            return _json({"error": refusal.problem.json()}, refusal.status, {})

    async def _provider(self, request: Request, path: str, wire: Wire) -> Response | None:
        """None where the wire was cut instead of an answer."""
        prefix = next((prefix for prefix in PREFIXES if path == prefix or path.startswith(f"{prefix}/")), "")
        flavour = PREFIXES.get(prefix, "openai")
        verb, name = _verb(flavour, request.method, path.removeprefix(prefix))
        if flavour == "gemini" and request.headers.get("x-goog-upload-command") == "start":
            verb = "begin_upload"
        root = f"{request.url.scheme}://{request.url.netloc}{prefix}"
        call = Call(flavour, verb, name, "", root, request.query_params, address=request.url.path)
        headers = {"date": formatdate(self.world.now() + self.world.settings.clock_offset_s, usegmt=True)}
        request_id = f"req_{uuid.uuid4().hex}"
        headers["request-id" if flavour == "anthropic" else "x-request-id"] = request_id
        try:
            await self._read(call, request)
            call.account = self._account(call, request)
            if self.world.settings.tells_owner and flavour not in _UNNAMED:
                owner = "anthropic-organization-id" if flavour == "anthropic" else "openai-organization"
                headers[owner] = call.account
            reply = await self._answer(call, wire)
        except Refusal as refusal:
            self._count(call, refusal.status)
            return _refused(refusal, flavour, request_id, headers, call.verb)
        if reply is None:
            self._count(call, 0)
            return None
        self._count(call, reply.status)
        fault = call.fault
        if fault is not None and fault.do in RAW:
            body = b"".join(reply.blocks) if reply.blocks is not None else told(reply.body)
            await send_raw(wire, fault, reply.status, {"content-type": reply.kind, **headers}, body)
            return None
        return _response(reply, headers)

    def _count(self, call: Call, status: int) -> None:
        self.world.requests[call.flavour, call.verb, status] += 1

    def _account(self, call: Call, request: Request) -> str:
        """Whose key it is; Anthropic's SDK sends a bearer's since 2.12. Raises Refusal."""
        if call.flavour == "bedrock":
            service, digest = bedrock_api.service_of(call.verb), bedrock_api.digest_of(call)
            path = request.scope["raw_path"].partition(b"?")[0].decode()
            return account_of(
                check_signature(request.method, path, request.url.query, request.headers, digest, service)
            )
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if call.flavour == "scaleway" and call.verb in scaleway_api.BUCKET_VERBS:
            path, digest = request.scope["raw_path"].partition(b"?")[0].decode(), bedrock_api.digest_of(call)
            signed = (request.method, path, request.url.query, request.headers, digest, "s3")
            key = scaleway_api.secret_of(check_signature(*signed, scaleway_api.REGION, scaleway_api.secret_of))
        if call.flavour in ("azure", "anthropic"):
            key = request.headers.get("api-key" if call.flavour == "azure" else "x-api-key", key)
        if (call.flavour, call.verb) == ("gemini", "upload") and call.query.get("upload_id") in self.world.begun:
            # The address of an upload needs no key beside it.
            return str(self.world.begun[call.query["upload_id"]]["account"])
        if call.flavour == "gemini":
            key = request.headers.get("x-goog-api-key", "")
        if (call.flavour, call.verb) in _SIGNED:
            return ""
        known = self.world.settings.accounts
        if not key or (known and key not in known):
            raise Refusal(401, problem_of(401))
        if call.flavour == "anthropic" and "anthropic-version" not in request.headers:
            raise refuse(400, "anthropic-version: header is required")
        if call.flavour == "vertex":
            return key
        return known.get(key) or "org-" + hashlib.sha256(key.encode()).hexdigest()[:12]

    async def _read(self, call: Call, request: Request) -> None:
        """The body: what may be large goes to the disk."""
        if call.flavour == "gemini":
            names = {"command": "x-goog-upload-command", "length": "x-goog-upload-header-content-length"}
            call.fields = {name: request.headers.get(header, "") for name, header in names.items()}
        if call.flavour == "bedrock":
            call.fields = {"owner": request.headers.get("x-amz-expected-bucket-owner", "")}
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            await self._read_form(call, request)
        elif (call.flavour, call.verb) in _LARGE:
            call.path = self.world.new_path()
            with call.path.open("wb") as file:
                async for chunk in request.stream():
                    file.write(chunk)
        else:
            call.body = await request.body()

    async def _read_form(self, call: Call, request: Request) -> None:
        async with request.form() as form:
            call.fields = {name: value for name, value in form.items() if isinstance(value, str)}
            given = form.get("file", form.get("data"))
            if isinstance(given, UploadFile):
                call.filename, call.path = given.filename, self.world.new_path()
                with call.path.open("wb") as target:
                    shutil.copyfileobj(given.file, target, 1024 * 1024)

    async def _answer(self, call: Call, wire: Wire) -> Reply | None:
        """Raises Refusal; None where the wire was cut instead of an answer."""
        world = self.world
        call.faults = world.script.take(call.flavour, call.verb, self._model(call), world.now())
        fault, do = call.fault, "" if call.fault is None else call.fault.do
        if fault is not None and do == "status":
            raise _scripted(fault.options)
        if fault is not None and do in ("redirect", "bare_status"):
            return _elsewhere(fault, call) if do == "redirect" else Reply(status=fault.options["status"])
        if await wire.breaks(BEFORE.get(do)):
            return None
        reply = _spoken(self._do(call), call)
        if call.verb == "chat" and world.settings.latency_ms:
            await asyncio.sleep(world.settings.latency_ms / 1000)
        if await wire.breaks(AFTER.get(do, reply.effect.wire)):
            return None
        return reply if fault is None else _torn(reply, fault, wire)

    def _do(self, call: Call) -> Reply:
        verb = VERBS[call.flavour].get(call.verb)
        if verb is None:
            raise refuse(404, f"Invalid URL ({call.verb} {call.name})")
        if call.has("unpaged_list"):
            call.query = {
                name: value
                for name, value in call.query.items()
                if not name.startswith("after") and name not in _MARKS_OF_PAGES
            }
        try:
            return verb(self.world, call)
        finally:
            if call.flavour == "anthropic" and call.path is not None:
                call.path.unlink()

    def _model(self, call: Call) -> str | None:
        """The model that a call is about, where it is about one."""
        world = self.world
        try:
            match call.verb:
                case "create" | "chat" if call.flavour == "gemini":
                    return call.name
                case "create" if call.flavour in ("vertex", "fireworks"):
                    return str(call.json().get("model")).rpartition("/")[2]
                case "chat" if call.flavour == "vertex":
                    return call.name.rpartition("/")[2]
                case "create" if call.flavour == "bedrock":
                    return str(call.json().get("modelId"))
                case "chat" if call.flavour == "bedrock":
                    return call.name
                case "create" if call.path is not None:
                    return anthropic_api.first_model(call.path)
                case "create" if call.flavour in ("mistral", "openrouter", "cohere"):
                    return str(call.json().get("model"))
                case "create" if call.flavour == "scaleway":
                    return world.model_of(scaleway_api.key_of(call.json().get("input_file_id")) or "")
                case "create":
                    return world.model_of(str(call.json().get("input_file_id")))
                case "chat":
                    model = decode_body(call.body).model
                    return model if isinstance(model, str) else None
                case "model":
                    return call.name
                case "file" | "content" | "delete_file":
                    return world.model_of(call.name)
        except (Refusal, msgspec.DecodeError, UnicodeDecodeError):
            return None
        batch = world.batches.get(call.name)
        return None if batch is None else batch.model


def _verb(flavour: str, method: str, path: str) -> tuple[str, str]:
    """The verb and the id in the path; what is none is named as it was asked for."""
    for route, verb in ROUTES[flavour]:
        if found := route.fullmatch(f"{method} {path}"):
            return verb, next(iter(found.groups()), "")
    return method, path


def _scripted(options: dict[str, object]) -> Refusal:
    status, code = options["status"], options["code"]
    assert isinstance(status, int)
    usual = problem_of(status, str(code) if code else None)
    problem = Problem(
        str(options["message"] or usual.message),
        str(options["type"] or usual.type),
        usual.param,
        str(code) if code else usual.code,
    )
    headers = dict(options["headers"]) if isinstance(options["headers"], dict) else {}
    after = options["retry_after"]
    return Refusal(status, problem, headers if after is None else headers | {"retry-after": str(after)})


def _spoken(reply: Reply, call: Call) -> Reply:
    """What its JSON says under the faults of answers."""
    names = [fault.do for fault in call.faults if fault.do in OF_ANSWERS]
    if reply.blocks is not None or not names:
        return reply
    body = reply.body
    for name in names:
        body = spoken(name, call.verb, body)
    return replace(reply, body=None, blocks=iter([told(body)]))


def _elsewhere(fault: Fault, call: Call) -> Reply:
    """The call is to be made at another address: again here, or where nobody is."""
    place = {"itself": "", "nowhere": "http://127.0.0.1:9"}[fault.options["to"]]
    return Reply({}, status=fault.options["status"], headers={"location": f"{place}{call.address}"})


def _torn(reply: Reply, fault: Fault, wire: Wire) -> Reply:
    """The body under a fault of its bytes: another one, a part of it, or cut behind that part."""
    whole = b"".join(reply.blocks if reply.blocks is not None else iter([told(reply.body)]))
    if fault.do == "cut_body":
        return replace(reply, blocks=iter([whole[: int(len(whole) * fault.options["share"])]]), cut=wire)
    headers = {**reply.headers, "content-encoding": "gzip"} if fault.do == "gzip" else reply.headers
    kind = kind_of(fault, reply.kind)
    return replace(reply, blocks=iter([changed(fault, whole)]), kind=kind, headers=headers)


def _refused(refusal: Refusal, flavour: str, request_id: str, headers: dict[str, str], verb: str) -> Response:
    if refusal.status == 502:
        # What is between the client and the provider says this, and speaks no JSON.
        return Response(HTML_502, 502, {**headers, **refusal.headers}, "text/html")
    if flavour == "bedrock" or (flavour == "scaleway" and verb in scaleway_api.BUCKET_VERBS):
        refusal.status, content, more, kind = aws_error(refusal, bedrock_api.service_of(verb))
        return Response(content, refusal.status, {**headers, **refusal.headers, **more}, kind)
    body: Json = {"error": refusal.problem.json()}
    if refusal.body is not None:
        body = msgspec.json.decode(refusal.body)
    elif flavour == "anthropic":
        body = anthropic_error(refusal.status, refusal.problem.message, request_id)
    elif flavour == "mistral":
        body = mistral_error(refusal.status, refusal.problem)
    elif flavour == "openrouter":
        body = {"error": {"code": refusal.status, "message": refusal.problem.message}}
    elif flavour == "cohere":
        body = cohere_api.cohere_error(refusal.problem.message, request_id)
    elif flavour == "xai":
        refusal.status, body = xai_error(refusal.status, refusal.problem)
    elif flavour == "vertex":
        body = vertex_error(refusal.status, refusal.problem)
    elif flavour == "gemini":
        body = gemini_error(refusal.status, refusal.problem)
        refusal.status = body["error"]["code"]
    return _json(body, refusal.status, {**headers, **refusal.headers})


def _response(reply: Reply, headers: dict[str, str]) -> Response:
    if reply.blocks is None:
        return _json(reply.body, reply.status, {**headers, **reply.headers})
    body = _sent(reply.blocks, reply.cut)
    return StreamingResponse(body, reply.status, {**headers, **reply.headers}, reply.kind)


async def _sent(blocks: Iterator[bytes], cut: Wire | None) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block
        # Making lines takes the processor: other calls come in between.
        await asyncio.sleep(0)
    if cut is not None:
        await cut.cut()


def _json(body: object, status: int, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")
