"""Prompt tokens per byte of a job's request lines, from billed tokens of earlier runs or a counted sample."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from orchestrator.core import tokens
from orchestrator.core.batch_api import JSON_ERRORS, WITHOUT_OUTPUT
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Job, JobId
from orchestrator.settings.home import Home
from orchestrator.store import Store

ENOUGH_ROWS = 20
MOST_OF_PICTURES = 64_000_000
"""Maximum bytes read of a line with pictures. They have few tokens per byte and cannot be counted in part."""
SAMPLE_ROWS = 16
SAMPLE_BYTES = 200_000
"""Maximum total bytes of a sample. Counting its tokens takes a tenth of a second."""

_COUNTED: WeakKeyDictionary[Store, dict[tuple[JobId, str], float]] = WeakKeyDictionary()
"""Token densities by job and task. A job's lines never change, so each density is computed once per open store."""


def density(store: Store, home: Home, job: Job, runs: Sequence[JobId], task: str, prompt_version: str) -> float:
    """Return the prompt tokens per byte of a task's lines.

    The density comes from the tokens billed in earlier runs of the job file, if there are enough. Otherwise a sample
    is counted with o200k: exact for OpenAI's newer models, an estimate for others.
    """
    rows, billed, size = store.sizes.prompt_sizes(runs, task, prompt_version)
    if rows >= ENOUGH_ROWS:
        return billed / size
    counted = _COUNTED.setdefault(store, {})
    if (job.id, task) not in counted:
        counted[job.id, task] = _counted(store, home, job.id, task)
    return counted[job.id, task]


_PICTURE = re.compile(rb"data:image/[a-z]+;base64,([A-Za-z0-9+/]{16,4096})[A-Za-z0-9+/=]*")


class _Body(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    input: Any = None
    prompt: Any = None
    system: Any = None
    instructions: Any = None


class _Line(msgspec.Struct):
    body: _Body
    url: str = ""


_decode_line = json_decoder(_Line).decode


def _counted(store: Store, home: Home, job_id: JobId, task: str) -> float:
    found = size = 0
    try:
        with home.requests(job_id).open("rb") as file:
            for span in store.sizes.sample(job_id, task, SAMPLE_ROWS):
                if size + span.length > SAMPLE_BYTES and size:
                    break
                file.seek(span.offset)
                line = file.read(min(span.length, SAMPLE_BYTES))
                if _PICTURE.search(line):
                    line += file.read(min(span.length, MOST_OF_PICTURES) - len(line))
                size += len(line)
                found += sum(map(tokens.of_picture, _pictures(line)))
                found += _tokens_of(_PICTURE.sub(b"", line))
    except OSError:
        size = 0  # if the lines cannot be read, nothing can be sent either; that is reported elsewhere
    return found / size if size else 1 / tokens.BYTES_PER_TOKEN


def _tokens_of(line: bytes) -> int:
    try:
        parsed = _decode_line(line)
    except JSON_ERRORS:
        return tokens.count([line.decode(errors="replace")])
    body = parsed.body
    parts = [body.messages, body.input, body.prompt, body.system, body.instructions]
    texts = [text for part in parts for text in _strings(part)]
    return tokens.count_plain(texts) if parsed.url in WITHOUT_OUTPUT else tokens.count(texts)


def _pictures(line: bytes) -> Iterator[bytes]:
    for found in _PICTURE.finditer(line):
        with suppress(ValueError):
            yield b64decode(found[1][: len(found[1]) // 4 * 4])


def _strings(value: Any) -> list[str]:
    """Return the strings in a value. Of a message, the content is included but not the role."""
    match value:
        case str():
            return [value]
        case list():
            return [text for one in value for text in _strings(one)]
        case dict():
            return [text for name in ("content", "text") for text in _strings(value.get(name))]
        case _:
            return []
