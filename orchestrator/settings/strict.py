"""The base of what orch.toml is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A table of orch.toml that knows all its fields, and holds only numbers that are ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
