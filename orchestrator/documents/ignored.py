"""Counts the read and unread contents of a source, so that reports show what was never read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from orchestrator.core.counts import number_of
from orchestrator.documents.kinds import IMAGES, LEGACY, split_name
from orchestrator.documents.types import DocumentProblem

MOST_KINDS = 30
"""Maximum number of endings that are counted separately."""
MOST_NAMES = 20
OTHER = "other"


class IgnoredReason(StrEnum):
    KIND = "kind"  # a kind of file that is not read here
    LOCK = "lock"  # the lock file of an office program, beside an open document
    LINK = "link"  # leads out of the source's folder, or into the system's folders
    SPECIAL = "special"  # a pipe, socket or device
    SECRET = "secret"  # a key or certificate, which is never sent to a model
    SYSTEM = "system"  # the system's data about a folder; not counted because no user misses it


IN_PART = "in_part"
"""Code for a document that was read only in part."""


class NotRead(NamedTuple):
    """A file or other entry that was not read, or was read only in part.

    `key` is formed as for a document; `why` is the code of the reason. `notes` describe what a partly read document
    lost.
    """

    key: str
    why: str
    notes: str = ""


class Ignored:
    """Counts of a source's contents.

    Documents are counted as `read`, as read only `in_part`, or as unreadable by code. Files that are not documents
    are counted by ending, other entries by reason.

    `kinds` are lower-case endings, "" for none. `names` are the first links and special files, as document keys. If
    `lists` is set, `listed` has everything that was not read in full.
    """

    def __init__(self, *, lists: bool = False) -> None:
        self.kinds: Counter[str] = Counter()
        self.counts: Counter[IgnoredReason] = Counter()
        self.names: list[str] = []
        self.read = 0
        self.in_part = 0
        self.unreadable: Counter[str] = Counter()
        self.listed: list[NotRead] | None = [] if lists else None

    def add(self, reason: IgnoredReason, key: str, ending: str) -> None:
        if reason is IgnoredReason.SYSTEM:
            return
        self.counts[reason] += 1
        self._list(key, reason.value)
        if reason is IgnoredReason.KIND:
            ending = ending.lower()
            self.kinds[ending if ending in self.kinds or len(self.kinds) < MOST_KINDS else OTHER] += 1
        elif reason not in (IgnoredReason.LOCK, IgnoredReason.SECRET) and len(self.names) < MOST_NAMES:
            self.names.append(key)

    def document(self, key: str, problem: str | None, notes: str | None = "") -> None:
        """Count a document.

        `problem` is the code of an unreadable document. `notes` name what a readable document lost.
        """
        if problem is not None:
            self.unreadable[problem] += 1
            self._list(key, problem)
            return
        self.read += 1
        if notes:
            self.in_part += 1
            self._list(key, IN_PART, notes)

    def _list(self, key: str, why: str, notes: str = "") -> None:
        if self.listed is not None:
            self.listed.append(NotRead(key, why, notes))

    def to_json(self) -> dict[str, Any]:
        """Return the counts in the stable JSON form documented in docs/reference/json.md."""
        return {
            "read": self.read,
            "in_part": self.in_part,
            "unreadable": _most_first(self.unreadable),
            "total": self.counts.total(),
            "kinds": _most_first(self.kinds),
            "lock_files": self.counts[IgnoredReason.LOCK],
            "links": self.counts[IgnoredReason.LINK],
            "special_files": self.counts[IgnoredReason.SPECIAL],
            "secrets": self.counts[IgnoredReason.SECRET],
            "first": list(self.names),
        }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def told(found: Mapping[str, Any] | None) -> str:
    """Return a sentence that describes the JSON form of the counts; empty if everything was read."""
    if found is None or not (parts := list(_parts(found))):
        return ""
    # Jobs built by older versions have no counts of read documents.
    read = f"read {found['read']:,}; " if found.get("read") or found.get("unreadable") else ""
    return read + ", ".join(parts)


_WORDS = {
    "encoding": "in no known encoding",
    "encrypted": "locked",
    "too_large": "too large",
    "unreadable": "damaged or out of reach",
    "vanished": "gone meanwhile",
    "unsupported": "in a format that is not read",
    "no_text_column": "a table; set `text_column` of its source to the column with the text",
    "bad_row": "without a usable row",
    "changing": "being written to",
    "time_limit": "too slow to read",
    "memory_limit": "too large for the memory",
    "reader_crashed": "crashed their reader",
}
"""Descriptions of the codes of unreadable documents. Other codes are shown as they are."""
_REASONS: dict[str, str] = {
    IgnoredReason.KIND: "a kind of file that is read only if `include` chooses it",
    IgnoredReason.LOCK: "the lock file of an office program",
    IgnoredReason.LINK: "a link out of the source's folder, which `follow_links: true` follows",
    IgnoredReason.SPECIAL: "a pipe, socket or device",
    IgnoredReason.SECRET: "a key or certificate, which is never sent",
}


def reason_words(found: NotRead) -> str:
    """Describe why something was not read, or only in part."""
    if found.notes:
        return found.notes
    if found.why == IgnoredReason.KIND:
        ending = split_name(found.key)[1].lower()
        if ending in LEGACY:
            return "an older format, which LibreOffice reads (`converter` in orch.toml)"
        if ending in IMAGES:
            return "a picture, which `render` sends"
    return _REASONS.get(found.why) or _WORDS.get(found.why, found.why.replace("_", " "))


def _parts(found: Mapping[str, Any]) -> Iterable[str]:
    kinds = dict(found["kinds"])
    if number := found.get("in_part"):
        yield f"{number:,} of them in part"
    for helper, endings in (("LibreOffice", LEGACY), ("`render`", IMAGES)):
        several = {ending: kinds.pop(ending) for ending in list(kinds) if ending in endings}
        if several:
            yield f"{_counted(several)} not read ({helper} would)"
    for code, number in found.get("unreadable", {}).items():
        if code == DocumentProblem.NO_TEXT_COLUMN:
            yield f"{number_of(number, 'table')} without `text_column`"
            continue
        yield f"{number:,} {_WORDS.get(code, code.replace('_', ' '))}"
    if kinds:
        yield f"{sum(kinds.values()):,} of other kinds ({_counted(kinds, number_last=True)})"
    for name, one, many in (
        ("lock_files", "lock file", "lock files"),
        ("links", "link out of the folder", "links out of the folder"),
        ("special_files", "pipe, socket or device", "pipes, sockets or devices"),
        ("secrets", "key or certificate", "keys or certificates"),
    ):
        if number := found.get(name, 0):
            yield f"{number:,} {one if number == 1 else many}"


def _counted(kinds: Mapping[str, int], *, number_last: bool = False) -> str:
    named = {ending or "no ending": number for ending, number in kinds.items()}
    return ", ".join(f"{name} {n:,}" if number_last else f"{n:,} {name}" for name, n in named.items())


_SECRETS = frozenset(
    ".cer .crt .csr .der .jks .kdbx .key .keystore .p12 .p7b .p7c .p8 .pem .pfx .pk8 .ppk .pvk".split()
)
_SYSTEM_NAMES = frozenset("thumbs.db ehthumbs.db ehthumbs_vista.db desktop.ini .ds_store .localized".split())
_SECRET_NAMES = frozenset("id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk id_rsa".split())


def never_document(name: str) -> IgnoredReason | None:
    """Return the reason why a file of this name is never a document; None if it may be a document.

    The reason holds even if a pattern chooses the file. Lock files are called `~$a.docx` (Word) and `.~lock.a.odt#`
    (LibreOffice). On foreign file systems, macOS keeps extra data about `a.txt` in `._a.txt`.
    """
    if name.startswith("~$") or (name.startswith(".~lock.") and name.endswith("#")):
        return IgnoredReason.LOCK
    if name.lower() in _SYSTEM_NAMES or name.startswith("._"):
        return IgnoredReason.SYSTEM
    if name in _SECRET_NAMES or name[name.rfind(".") :].lower() in _SECRETS:
        return IgnoredReason.SECRET
    return None
