"""The local translation of an input file, whose requests go out inline: the request's body, and the unsent rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from orchestrator.backends.anthropic.messages import translate
from orchestrator.backends.anthropic.results import refused_line
from orchestrator.backends.cache_marks import marks_for, write_marks
from orchestrator.backends.chat_rows import CHAT, ChatLine, decode_line
from orchestrator.backends.inline_rows import ANYWHERE, INLINE, opened, path_of, row_id, shard_tag, tag_within
from orchestrator.core import batch_api, request_lines
from orchestrator.core.atomic import durable
from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.policy.prompt_cache import marked

_HEAD = b'{"requests":['


def translate_file(path: Path, shard: str, max_tokens: int) -> Counter[str]:
    """Write the request's body and the unsent rows beside the input file; return dropped fields with their rows.

    Raises InputError for a line that is not a request, and JobFilesError.
    """
    tag = shard_tag(shard)
    left_out: Counter[str] = Counter()
    try:
        with path.open("rb") as source, durable(requests(path)) as sent, durable(_refusals(path)) as refused:
            sent.write(_HEAD)
            between, marks = b"", marks_for(path)
            for number, (_, _, raw) in enumerate(request_lines.lines(source), 1):
                line = _request_line(raw, path, number)
                line.body = dict(marked(line.custom_id, line.body, marks))
                try:
                    request, dropped = _request(line, row_id(tag, number, raw), max_tokens)
                except InputError as error:
                    refused.write(refused_line(line.custom_id, number, error) + b"\n")
                    continue
                left_out.update(dropped)
                sent.write(between + request)
                between = b",\n"
            sent.write(b"]}")
    except OSError as error:
        raise JobFilesError(
            f"cannot translate {path}: {error.strerror}", hint="free disk space, then run it again"
        ) from error
    return left_out


def _request(line: ChatLine, theirs: str, max_tokens: int) -> tuple[bytes, tuple[str, ...]]:
    if line.url != CHAT:
        raise InputError(f"only {CHAT} has a counterpart", field="url")
    params, left_out = translate(line.body, max_tokens)
    return msgspec.json.encode({"custom_id": theirs, "params": params}), left_out


def _request_line(raw: bytes, path: Path, number: int) -> ChatLine:
    try:
        return decode_line(raw)
    except batch_api.JSON_ERRORS as error:
        raise InputError(f"is not a request: {error}", file=path, line=number) from None


def forget(file_id: str, root: Path = ANYWHERE) -> None:
    """Delete the files beside an input file; ignore other ids."""
    if file_id.startswith(INLINE):
        path = path_of(file_id, root)
        requests(path).unlink(missing_ok=True)
        _refusals(path).unlink(missing_ok=True)
        write_marks(path, ())


def requests(path: Path) -> Path:
    """Return the file with the request's body for an input file."""
    return path.with_name(path.name + ".messages.json")


def _refusals(path: Path) -> Path:
    return path.with_name(path.name + ".refused.jsonl")


def refusals(path: Path) -> Iterator[bytes]:
    """Yield the error lines of an input file's unsent rows."""
    try:
        with _refusals(path).open("rb") as file:
            yield from file
    except FileNotFoundError:
        return


def refused_rows(path: Path) -> int:
    """Count an input file's unsent rows."""
    return sum(1 for _ in refusals(path))


def tag_sent(path: Path) -> str:
    """Return the tag in the first id that was sent."""
    with opened(requests(path)) as file:
        head = file.read(len(_HEAD) + 64).decode(errors="replace")
    tag = tag_within(head)
    if tag is None:
        raise JobFilesError(f"{requests(path)} holds no requests")
    return tag
