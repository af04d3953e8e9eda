"""What the tables of orch.toml share: their base class, and names of variables and profiles."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

_REFERENCE = re.compile(r"\$\{?([A-Z][A-Z_]{,60})\}?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{,99}")


class Strict(BaseModel):
    """A table of orch.toml that rejects unknown fields, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _named(text: str) -> str:
    # It may be a key, typed in the wrong place: no message repeats it.
    if not _VARIABLE.fullmatch(text):
        bare = _REFERENCE.fullmatch(text)
        cure = f": write {bare[1]} alone" if bare else ", such as OPENAI_API_KEY"
        raise ValueError(f"is not the name of an environment variable{cure}")
    return text


VariableName = Annotated[str, AfterValidator(_named)]
"""The name of an environment variable that holds a secret."""

PROFILE_NAMES = ("openai", "azure", "groq", "doubleword", "parasail", "nebius", "deepinfra", "orch", "other")
"""Names of the profiles in `backends.profiles`."""


def _is_a_profile(name: str) -> str:
    if name not in PROFILE_NAMES:
        near = get_close_matches(name.lower(), PROFILE_NAMES, 1)
        cure = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PROFILE_NAMES)}"
        raise ValueError(f"is not a known profile; {cure}")
    return name


ProfileName = Annotated[str, AfterValidator(_is_a_profile)]
"""The name of a provider's profile."""
