"""Names that documents go by: such as fit into databases, whatever a file is called."""

from __future__ import annotations

import hashlib
import re

MOST_KEY = 2000
"""Bytes; what a row's id adds has room besides."""
# In front of an odd byte, or of what reads like one.
_BACKSLASHES = re.compile(r"\\+(?=udc[89a-f][0-9a-f]|[\udc80-\udcff])")


def printable(name: str) -> str:
    """A file name that is not valid UTF-8 with its odd bytes as `\\udcXX`: keys must go into databases.

    No two names give the same, also where one holds such a text itself.
    """
    if name.isascii() and "\\ud" not in name:
        return name
    doubled = _BACKSLASHES.sub(lambda found: 2 * found[0], name)
    return doubled.encode("utf-8", "backslashreplace").decode("utf-8")


def shortened(key: str) -> str:
    """A key that fits into a database's index, where a file lies very deep."""
    whole = key.encode()
    if len(whole) <= MOST_KEY:
        return key
    mark = hashlib.blake2b(whole, digest_size=16).hexdigest()
    return f"{whole[: MOST_KEY - 40].decode('utf-8', 'ignore')}…{mark}"


class DistinctKeys:
    """Keys of one file's parts. A key that an earlier part has gets an apostrophe, one more for each further part.

    The names are those that trying one apostrophe after the other gives, but each key that is taken leads to the next
    that may be free: many equal names take no longer than as many different ones.
    """

    def __init__(self) -> None:
        self._next: dict[bytes, str | None] = {}
        """By the digest of each key that is taken: a later candidate, None for the one after it."""

    def distinct(self, key: str) -> str:
        """A key that was not given before."""
        passed: list[bytes] = []
        while (mark := _digest(key)) in self._next:
            passed.append(mark)
            key = self._next[mark] or _following(key)
        self._next[mark] = None
        if passed:  # so that nobody goes the same way again
            self._next.update(dict.fromkeys(passed, _following(key)))
        return key


def _following(key: str) -> str:
    return shortened(f"{key}'")


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
