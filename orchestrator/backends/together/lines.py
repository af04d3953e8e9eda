"""Lines of Together's input and result files. Pure.

Sources: together 3.1.1 (lib/resources/files.py), docs.together.ai (batch tutorial: an id has at most 64 characters).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from orchestrator.backends import body_lines
from orchestrator.backends.received_files import request_lines

LONGEST_ID = 64
_SHORT_ID = re.compile(rb'("custom_id"\s*:\s*)("[0-9a-f]{48}")')


def sent_lines(lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield lines in Together's format, for a file called `name`. Raises InputError for an invalid line.

    Batches have no metadata, so only a batch's file shows its owner. Together gives files with equal bytes the same
    id. Therefore spaces between the first line's tokens encode the file's name, and shards never share a file.
    """
    number = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
    blanks = f"{number:064b}".replace("0", " ").replace("1", "\t").encode()
    return body_lines.body_lines(lines, _short, blanks)


def with_own_ids(results: Iterable[bytes], source: Iterable[bytes]) -> Iterator[bytes]:
    """Yield result lines with our own custom_ids, even if these were too long to send.

    `source` holds our input lines.
    """
    ids = (bytes(line.custom_id) for line in request_lines(source, body_lines.decode_line))
    own = {short: long for long in ids if (short := _short(msgspec.Raw(long))) != long}
    for line in results:
        yield _SHORT_ID.sub(lambda found: found[1] + own.get(found[2], found[2]), line) if own else line


def _short(custom_id: msgspec.Raw) -> bytes:
    """Replace an id that is too long by a digest."""
    if len(bytes(custom_id)) <= LONGEST_ID or len(msgspec.json.decode(custom_id, type=str)) <= LONGEST_ID:
        return bytes(custom_id)
    return b'"%b"' % blake2b(bytes(custom_id), digest_size=24).hexdigest().encode()
