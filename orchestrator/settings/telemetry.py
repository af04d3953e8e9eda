"""The section `[telemetry]` of orch.toml: the receiver of traces and metrics."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from orchestrator.core.listening import is_local_url
from orchestrator.settings.backends import url_of
from orchestrator.settings.strict import Strict, VariableName

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


class Telemetry(Strict):
    """An OpenTelemetry receiver of OTLP over HTTP; orch appends `/v1/traces` and `/v1/metrics` to `endpoint`.

    `headers_env` maps each header to the environment variable that holds its value. Every failed row gets a span.
    `sample` is the share of succeeded rows that get a span. `content` adds prompts, answers and failure messages. As
    for a backend, `location` says whether the received data stays with the user.
    """

    endpoint: str
    headers_env: dict[str, VariableName] = Field(default_factory=dict)
    sample: Annotated[float, Field(ge=0, le=1)] = 0.0
    content: bool = False
    metrics: bool = True
    location: Literal["hosted", "local"] = "hosted"

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        url = url_of(value, "http://127.0.0.1:4318")
        if urlsplit(url).path.endswith(("/v1/traces", "/v1/metrics")):
            raise ValueError(f"{value!r}: leave out /v1/traces, it is added")
        return url

    @field_validator("headers_env")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _HEADER.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a header such as Authorization")
        return value

    @property
    def stays_here(self) -> bool:
        """True if the data stays with the user: `location` says so, or the endpoint is on this machine."""
        return self.location == "local" or is_local_url(self.endpoint)
