"""Rows of OpenAI's input files, for providers with their own request format. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from orchestrator.backends.received_files import request_lines
from orchestrator.core.batch_api import CHAT
from orchestrator.core.errors import InputError
from orchestrator.core.json_decoders import json_decoder

NO_EFFECT = frozenset(
    {
        "metadata", "store", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "prediction",
    }
)  # fmt: skip
"""Fields of a chat completion that do not change its answer."""
Json = dict[str, Any]
Translate = Callable[[Mapping[str, Any]], Json]
"""A function that returns the provider's request for a chat completion's body.

It raises InputError, which names the field, for a field without a counterpart.
"""


class ChatLine(msgspec.Struct):
    """A row of our input files. A row without an address is a chat completion."""

    custom_id: str
    body: dict[str, Any]
    url: str = CHAT


decode_line = json_decoder(ChatLine).decode


def check_counterparts(body: Mapping[str, Any], known: Collection[str], problem: str) -> None:
    """Raise InputError with `problem` if a body sets a field that is neither `model` nor in `known`."""
    for name, value in body.items():
        if name not in known and name != "model" and value is not None:
            raise InputError(problem, field=name)


def sent_rows(source: Iterable[bytes], translate: Translate) -> Iterator[tuple[str, Json]]:
    """Yield the custom_id and the request of each row that has a counterpart. Raises InputError for an invalid
    line.
    """
    for custom_id, request, _ in translated_rows(source, translate):
        if request is not None:
            yield custom_id, request


def translated_rows(
    source: Iterable[bytes], translate: Translate
) -> Iterator[tuple[str, Json | None, InputError | None]]:
    """Yield each row's custom_id with its request, or with the error if a field has no counterpart."""
    for line in request_lines(source, decode_line):
        yield line.custom_id, *translated_row(line, translate)


def translated_row(line: ChatLine, translate: Translate) -> tuple[Json | None, InputError | None]:
    """Return the request of a row, or the error if a field has no counterpart."""
    try:
        if line.url != CHAT:
            raise InputError(f"only {CHAT} has a counterpart", field="url")
        return translate(line.body), None
    except InputError as error:
        return None, error
