"""Clients of what runs on this machine, where nothing speaks TLS.

An HTTP client reads the system's certificates when it is made, 20 ms each time: a tenth of the suite.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx2
import openai

from orchestrator.backends.anthropic.api import AnthropicAPI, headers_of

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def for_openai() -> httpx2.Client:
    """What the official client would make itself."""
    return openai.DefaultHttpxClient(verify=NO_TLS)


def with_bearer(url: str, key: str, **options: Any) -> httpx2.Client:
    """As the package of the backend makes it, without its limits of time."""
    options = {"verify": NO_TLS, "timeout": 30.0, "follow_redirects": True, **options}
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, **options)


def for_gemini(url: str, key: str) -> httpx2.Client:
    """As the package of the backend makes it, without its limits of time."""
    return httpx2.Client(base_url=url, headers={"x-goog-api-key": key}, verify=NO_TLS, timeout=30.0)


def for_anthropic(url: str, key: str, timeout: Any = 30.0) -> AnthropicAPI:
    """As the package of the backend makes it, without its limits of time."""
    http = httpx2.Client(base_url=f"{url}/v1", headers=headers_of(key), verify=NO_TLS, timeout=timeout)
    return AnthropicAPI(http, key)
