"""Settings of Vertex AI's batch inference in orch.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from orchestrator.settings.backends import BucketFolder, HostedBackend, url_of
from orchestrator.settings.strict import VariableName


class VertexBackend(HostedBackend):
    """Vertex AI's batch inference of Gemini models, with input and output in a bucket.

    `key_file` is a service account's key file. Without it, google-auth uses its standard search for credentials.
    Alternatively, `api_key_env` names a variable with an access token. `base_url` replaces all Google addresses.
    """

    kind: Literal["vertex"]
    base_url: str = ""
    api_key_env: VariableName | None = None
    project: str = Field(pattern=r"^[a-z0-9][-a-z0-9.:]{4,98}[a-z0-9]$", description="its id, not its name")
    region: str = Field(
        pattern=r"^(global|us|eu|[a-z]+-[a-z]+[0-9]{1,2})$", description="such as us-central1, or global"
    )
    bucket: str = Field(pattern=r"^[a-z0-9][-._a-z0-9]{1,220}[a-z0-9]$")
    prefix: BucketFolder = "orch"
    key_file: str | None = Field(None, min_length=1, description="of a service account, in JSON")

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        return url_of(value, "http://127.0.0.1:8080") if value else value
