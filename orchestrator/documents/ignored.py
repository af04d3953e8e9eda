"""What a source's folder holds that is not a document: counted, so that nobody believes it was asked about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

MOST_KINDS = 30
"""Endings that are counted apart; the others are counted together."""
MOST_NAMES = 20
OTHER = "other"


class IgnoredReason(StrEnum):
    """Why something is not a document."""

    KIND = "kind"  # a kind of file that is not read here
    LOCK = "lock"  # what an office program leaves beside a document that is open
    LINK = "link"  # it leads out of the source's folder, or into the system's own
    SPECIAL = "special"  # a pipe, socket or device
    SECRET = "secret"  # a key or certificate, which is never sent to a model


class Ignored:
    """How much of a source is not documents: files by their ending, and the rest by reason.

    `kinds` are counted by ending, in small letters, "" for none. `names` are the first links and special files, as a
    document's key would be.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.counts: Counter[IgnoredReason] = Counter()
        self.names: list[str] = []

    def add(self, reason: IgnoredReason, key: str, ending: str) -> None:
        """Count one."""
        self.counts[reason] += 1
        if reason is IgnoredReason.KIND:
            ending = ending.lower()
            self.kinds[ending if ending in self.kinds or len(self.kinds) < MOST_KINDS else OTHER] += 1
        elif reason not in (IgnoredReason.LOCK, IgnoredReason.SECRET) and len(self.names) < MOST_NAMES:
            self.names.append(key)

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/reference/json.md."""
        return {
            "total": self.counts.total(),
            "kinds": dict(sorted(self.kinds.items(), key=lambda item: (-item[1], item[0]))),
            "lock_files": self.counts[IgnoredReason.LOCK],
            "links": self.counts[IgnoredReason.LINK],
            "special_files": self.counts[IgnoredReason.SPECIAL],
            "secrets": self.counts[IgnoredReason.SECRET],
            "first": list(self.names),
        }


def told(ignored: Mapping[str, Any] | None) -> str:
    """The JSON form in words; empty where nothing was ignored."""
    return "" if ignored is None else ", ".join(_parts(ignored))


def _parts(ignored: Mapping[str, Any]) -> Iterable[str]:
    for ending, number in ignored["kinds"].items():
        yield f"{number:,} {ending}" if ending else f"{number:,} without an ending"
    for name, one, many in (
        ("lock_files", "lock file", "lock files"),
        ("links", "link out of the folder", "links out of the folder"),
        ("special_files", "pipe, socket or device", "pipes, sockets or devices"),
        ("secrets", "key or certificate", "keys or certificates"),
    ):
        if number := ignored.get(name, 0):
            yield f"{number:,} {one if number == 1 else many}"


_SECRETS = frozenset(
    ".cer .crt .csr .der .jks .kdbx .key .keystore .p12 .p7b .p7c .p8 .pem .pfx .pk8 .ppk .pvk".split()
)
_SECRET_NAMES = frozenset("id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk id_rsa".split())


def never_document(name: str) -> IgnoredReason | None:
    """Why a file of this name is no document, whatever pattern chooses it; None where it may be one.

    Locks of office programs are called `~$a.docx` (Word) and `.~lock.a.odt#` (LibreOffice).
    """
    if name.startswith("~$") or (name.startswith(".~lock.") and name.endswith("#")):
        return IgnoredReason.LOCK
    if name in _SECRET_NAMES or name[name.rfind(".") :].lower() in _SECRETS:
        return IgnoredReason.SECRET
    return None
