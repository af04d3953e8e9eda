"""What Cohere refuses of a row. Sources: cohere 7.3.1 (v2/client.py: ranges)."""

from __future__ import annotations

from tests.emulator.errors import Json
from tests.emulator.refusals.refused import Refused, refused

RANGES = {
    "p": (0.01, 0.99),
    "k": (0, 500),
    "frequency_penalty": (0, 1),
    "presence_penalty": (0, 1),
    "temperature": (0, float("inf")),
}
REASONS = ("command-a-reasoning", "command-a-plus")


def chat(model: str, body: Json) -> Refused | None:
    """The first refusal of a row's body."""
    for name, (least, most) in RANGES.items():
        value = body.get(name)
        if value is not None and not least <= value <= most:
            return refused(f"invalid request: {name} must be between {least:g} and {most:g} inclusive.")
    if body.get("reasoning") and not model.startswith(REASONS):
        return refused(f"invalid request: model {model} does not support thinking.")
    return None
