"""Rules in orch.toml for the requests of a backend's models, beyond what orch knows of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from orchestrator.settings.strict import Strict

StructuredOutput = Literal["json_schema", "json_object", "none"]
"""Ways to ask a server for JSON: by a schema, as any JSON, or in the prompt alone."""


class DialectRule(Strict):
    """A rule for models of a backend, beyond what orch knows of them. `models` is a glob of their names.

    `like` names a model whose rules apply, for deployments with their own names. `endpoint` moves the models to the
    Responses API. For a `field`: `rename` it, `refuse` it, or keep it `at_least` or `at_most` a number.
    """

    models: str = Field("*", min_length=1)
    like: str | None = None
    endpoint: Literal["responses"] | None = None
    structured: StructuredOutput | None = None
    field: str | None = Field(None, min_length=1)
    rename: str | None = Field(None, min_length=1)
    refuse: bool = False
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> DialectRule:
        of_field = [name for name in ("rename", "at_least", "at_most") if getattr(self, name) is not None]
        of_field += ["refuse"] if self.refuse else []
        if self.field is None and of_field:
            raise ValueError(f"`{of_field[0]}` needs `field`: the name of a field of the request body")
        if self.field is not None and not of_field:
            raise ValueError("say what becomes of `field`: `rename`, `refuse`, `at_least` or `at_most`")
        if self.field is None and self.like is None and self.endpoint is None and self.structured is None:
            raise ValueError("says nothing: give `like`, `endpoint`, `structured` or `field`")
        return self
