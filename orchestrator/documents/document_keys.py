"""Document keys that databases can store, whatever the file's name."""

from __future__ import annotations

import hashlib
import re

MOST_KEY = 2000
"""Maximum bytes of a key, to leave room for a row's id."""
# Backslashes before an invalid byte, or before text that looks like an escaped one.
_BACKSLASHES = re.compile(r"\\+(?=udc[89a-f][0-9a-f]|[\udc80-\udcff])")


def printable(name: str) -> str:
    """Return a file name with non-UTF-8 bytes as `\\udcXX`, because databases must be able to store keys.

    Two names never give the same result, even if one contains such an escape literally.
    """
    if name.isascii() and "\\ud" not in name:
        return name
    doubled = _BACKSLASHES.sub(lambda found: 2 * found[0], name)
    return doubled.encode("utf-8", "backslashreplace").decode("utf-8")


def shortened(key: str) -> str:
    """Return a key, shortened if it is too long for a database's index. A hash keeps shortened keys distinct."""
    whole = key.encode()
    if len(whole) <= MOST_KEY:
        return key
    mark = hashlib.blake2b(whole, digest_size=16).hexdigest()
    return f"{whole[: MOST_KEY - 40].decode('utf-8', 'ignore')}…{mark}"


class DistinctKeys:
    """Makes the keys of one file's parts distinct. A repeated key gets one apostrophe per repetition.

    The result is the same as adding one apostrophe at a time until the key is free. Each taken key links to a later
    candidate, so that many equal names take no longer than different names.
    """

    def __init__(self) -> None:
        self._next: dict[bytes, str | None] = {}
        """For the digest of each taken key, a later candidate; None means the key with one more apostrophe."""

    def distinct(self, key: str) -> str:
        passed: list[bytes] = []
        while (mark := _digest(key)) in self._next:
            passed.append(mark)
            key = self._next[mark] or _following(key)
        self._next[mark] = None
        if passed:  # later searches skip this path
            self._next.update(dict.fromkeys(passed, _following(key)))
        return key


def _following(key: str) -> str:
    return shortened(f"{key}'")


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
