"""A client's calls as a batch: their bodies, and the backend at the client's address. The client's key is ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from orchestrator.core.errors import UsageError
from orchestrator.core.listening import host_and_port, is_local_url
from orchestrator.settings.backends import HostedBackend, LocalBackend, SyncBackend
from orchestrator.settings.config import Config

_URLS = {
    "chat.completions": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}  # fmt: skip
_NO_BODY = ("extra_headers", "extra_query")


def body_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that a client would send for a call's arguments.

    `timeout` is dropped because a batch has a deadline. Raises UsageError for arguments that a batch cannot have.
    """
    body = {name: value for name, value in arguments.items() if not _is_placeholder(value)}
    for name in _NO_BODY:
        if body.pop(name, None):
            raise UsageError(f"{name}: a request in a batch has only a body", hint="leave it out; extra_body is sent")
    body.pop("timeout", None)
    extra = body.pop("extra_body", None) or {}
    if not isinstance(extra, Mapping):
        raise UsageError(f"extra_body: {type(extra).__name__} is not a dict of fields")
    return {**body, **extra}


def _is_placeholder(value: Any) -> bool:
    """Return True for OpenAI's placeholders of arguments that are not sent."""
    kind = type(value)
    return kind.__module__.partition(".")[0] == "openai" and kind.__name__ in ("NotGiven", "Omit")


def url_and_address(method: Callable[..., Any]) -> tuple[str, str]:
    """Return the endpoint of a client's bound `create`, and the client's address. Raises UsageError."""
    resource: Any = getattr(method, "__self__", None)
    client = getattr(resource, "_client", None)
    # For example openai.resources.chat.completions.completions or openai.resources.embeddings.
    module = type(resource).__module__.rpartition("resources.")[2]
    name = next((one for one in _URLS if f"{module}.".startswith(f"{one}.")), "")
    address = str(getattr(client, "base_url", ""))
    if getattr(method, "__name__", "") != "create" or not name or not address:
        raise UsageError(
            "batch: give the bound method of an OpenAI client",
            hint="orch.batch(client.chat.completions.create, many)",
        )
    return _URLS[name], address.rstrip("/")


def backend_at(config: Config, address: str) -> str:
    """Return the name of the backend at an address.

    Raises UsageError, with the lines to add to orch.toml, if no backend has that address.
    """
    for name, backend in config.backends.items():
        match backend:
            case LocalBackend():
                there: tuple[str, ...] = backend.upstreams
            case HostedBackend() | SyncBackend():
                there = (backend.base_url,)
            case _:
                there = ()
        if _normalized(address) in map(_normalized, there):
            return name
    if is_local_url(address):
        lines, what = f'[backends.NAME]\nupstreams = ["{address}"]\nlocation = "local"\nidle = true', ""
    else:
        lines = f'[backends.NAME]\nkind = "openai"\nbase_url = "{address}"\napi_key_env = "NAME_OF_THE_VARIABLE"'
        what = ", with the variable that holds the key"
    where = config.path or "orch.toml"
    raise UsageError(
        f"no backend of {where} has the client's address {address}; its key is not taken over",
        hint=f"add to {where}{what}:\n{lines}",
    )


def _normalized(address: str) -> tuple[str, str | None, int | None, str]:
    parts = urlsplit(address)
    return parts.scheme, *host_and_port(address), parts.path.rstrip("/")
