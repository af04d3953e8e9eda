"""What the tables of orch.toml share: their base class, and names of variables."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{,99}")


class Strict(BaseModel):
    """A table of orch.toml that rejects unknown fields, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _named(text: str) -> str:
    # It may be a key, typed in the wrong place: no message repeats it.
    if not _VARIABLE.fullmatch(text):
        raise ValueError("is not the name of an environment variable, such as OPENAI_API_KEY")
    return text


VariableName = Annotated[str, AfterValidator(_named)]
"""The name of an environment variable that holds a secret."""
