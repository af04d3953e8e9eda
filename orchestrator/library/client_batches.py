"""The backend that a client's calls would go to: found by the client's address, without its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.settings.backends import HostedBackend, LocalBackend, SyncBackend
from orchestrator.settings.config import Config

_URLS = {
    "chat.completions": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}  # fmt: skip


def url_and_address(method: Callable[..., Any]) -> tuple[str, str]:
    """Return the endpoint of a client's bound `create`, and the client's address. Raises UsageError."""
    resource: Any = getattr(method, "__self__", None)
    client = getattr(resource, "_client", None)
    # openai.resources.chat.completions.completions and openai.resources.embeddings, for example
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
    """Return the name of the backend at an address. Raises UsageError with the lines that would add one."""
    for name, backend in config.backends.items():
        match backend:
            case LocalBackend():
                there: tuple[str, ...] = backend.upstreams
            case HostedBackend() | SyncBackend():
                there = (backend.base_url,)
            case _:
                there = ()
        if address in {one.rstrip("/") for one in there}:
            return name
    lines = f'[backends.NAME]\nkind = "openai"\nbase_url = "{address}"\napi_key_env = "NAME_OF_THE_VARIABLE"'
    where = config.path or "orch.toml"
    raise UsageError(
        f"no backend of {where} has the client's address {address}; its key is not taken over",
        hint=f"add to {where}, with the variable that holds the key:\n{lines}",
    )
