"""Webhooks of providers: a signed event that a batch has ended triggers an immediate poll.

Only the batch's id is taken from an event, and each event counts once. So a forged or repeated event causes at most
one poll. Batches are also polled on schedule, without any event.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Annotated

import msgspec
import openai
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.core.batch_api import JSON_ERRORS, BatchStatus
from orchestrator.core.client_limits import ClientTimeouts, Connections
from orchestrator.core.errors import UsageError
from orchestrator.core.guarded_server import threaded
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.listening import bound, url_host
from orchestrator.server.webhooks import SECRET_PREFIX, signing_key
from orchestrator.settings.backends import NotifyingBackend
from orchestrator.settings.config import Config

log = logging.getLogger(__name__)

PATH = "/webhooks/"
MAX_BODY = 128 * 1024
"""Maximum bytes of an event; a usual event has a few hundred."""
MOST_CONNECTIONS = 256
"""Maximum number of connections. A further connection replaces the longest-waiting one: real events arrive
quickly.
"""
PATIENCE = ClientTimeouts(head=10.0, body=10.0, answer=10.0)
REMEMBERED = 1000
"""Maximum number of remembered events. An account sends fewer while a signature is valid (ten minutes)."""
ENDS = frozenset(["batch.succeeded", *(f"batch.{status}" for status in BatchStatus if status.is_final)])
"""Types of events that report a batch's end. `batch.succeeded` is Gemini's type for a completed batch."""

Push = Callable[[str], None]


class _Batch(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class _Event(msgspec.Struct):
    type: str
    data: _Batch


_decode_event = json_decoder(_Event).decode


def secrets_of(config: Config, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the webhook secrets of backends in orch.toml, by the backend's name.

    Raises UsageError if no backend has a webhook secret, or if a secret's variable is not set or invalid. No error
    shows a secret.
    """
    named = {
        name: variable
        for name, backend in config.backends.items()
        if isinstance(backend, NotifyingBackend) and (variable := backend.webhook_secret_env) is not None
    }
    if not named:
        raise UsageError(
            "no backend has a webhook secret",
            hint='name its variable in orch.toml: webhook_secret_env = "OPENAI_WEBHOOK_SECRET"',
        )
    return {name: _secret(name, variable, environ) for name, variable in named.items()}


def _secret(backend: str, variable: str, environ: Mapping[str, str]) -> str:
    secret = environ.get(variable, "").strip()
    if not secret:
        raise UsageError(
            f"the environment variable {variable} is not set; it must hold the webhook secret of {backend}",
            hint="set it, then run the same command again",
        )
    if not signing_key(secret):  # anybody can sign with an empty key
        raise UsageError(f"what follows {SECRET_PREFIX} in the environment variable {variable} is not base64")
    return secret


@contextmanager
def listening(
    host: str, port: int, secrets: Mapping[str, str], push: Push, patience: ClientTimeouts = PATIENCE
) -> Iterator[str]:
    """Receive webhooks in a thread until the block ends. Yield the URL; the backend's name must be appended to it.

    The thread calls `push` with the batch id of each event that ends a batch. Port 0 takes a free port. Raises
    UsageError if the host is not an address, BackendError if the address cannot be used.
    """
    listener = bound(host, port)
    port = listener.getsockname()[1]
    connections = Connections(MOST_CONNECTIONS, patience=patience)
    with closing(openai.OpenAI(api_key="none")) as client:
        app = _Webhooks(client, secrets, push).application()
        with threaded(app, listener, connections, "webhooks"):
            yield f"http://{url_host(host)}:{port}{PATH}"


class _Webhooks:
    def __init__(self, client: openai.OpenAI, secrets: Mapping[str, str], push: Push) -> None:
        self._client = client
        self._secrets = secrets
        self._push = push
        self._known: deque[tuple[str, str]] = deque(maxlen=REMEMBERED)
        self._refused: set[tuple[str, str]] = set()

    def application(self) -> Starlette:
        """Return the application. Its responses have only a status, and repeat nothing from the request."""
        application = Starlette(routes=[Route(PATH + "{backend}", self._take, methods=["POST"])])
        application.router.redirect_slashes = False
        return application

    async def _take(self, request: Request) -> Response:
        backend = request.path_params["backend"]
        secret = self._secrets.get(backend)
        if secret is None:
            return Response(status_code=404)
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    return Response(status_code=413)
        except ClientDisconnect:
            return Response(status_code=400)
        try:
            self._client.webhooks.verify_signature(bytes(body), request.headers, secret=secret)
        except openai.InvalidWebhookSignatureError as error:
            return self._refuse(backend, str(error))
        except (ValueError, TypeError):
            # A missing or non-ASCII header, or a body that is not UTF-8.
            return self._refuse(backend, "it is not a signed event")
        self._pass_on(backend, request.headers["webhook-id"], bytes(body))
        return Response()

    def _refuse(self, backend: str, reason: str) -> Response:
        if (backend, reason) not in self._refused:
            # Any client can send any number of rejected events, which must not fill the log.
            self._refused.add((backend, reason))
            log.warning("a webhook for %s was rejected: %s (others like it are not logged)", backend, reason)
        return Response(status_code=400)

    def _pass_on(self, backend: str, event_id: str, body: bytes) -> None:
        if (backend, event_id) in self._known:
            return
        self._known.append((backend, event_id))
        try:
            event = _decode_event(body)
        except JSON_ERRORS:
            return
        if event.type in ENDS:
            log.info("%s reports %s of batch %s", backend, event.type, event.data.id)
            self._push(event.data.id)
