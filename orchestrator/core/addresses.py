"""Addresses of storage systems that fsspec supports, such as s3://bucket/folder."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from orchestrator.core.errors import UsageError
from orchestrator.core.extras import install_line
from orchestrator.core.storages import KEYS

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
USUAL = ("https", "http", "s3", "gs", "az", "sftp")
"""Schemes of the most common storage systems."""
_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
    "sftp": "sftp", "ssh": "sftp",
}  # fmt: skip


def is_http_url(text: str) -> bool:
    """True for an http:// or https:// URL with a host and without whitespace.

    A port is optional, and must be from 1 to 65535.
    """
    if any(map(str.isspace, text)):
        return False  # urlsplit accepts spaces, and removes tabs and line ends
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_address(text: str) -> bool:
    """True if the text is a URL rather than a path. `file://` counts as a path."""
    return bool(_ADDRESS.match(text)) and not text.startswith("file://")


class AddressProblem(NamedTuple):
    """A reason why orch cannot use an address, and what to do about it."""

    message: str
    hint: str | None = None


def address_problem(address: str) -> AddressProblem | None:
    """Return why orch cannot use an address, or None if it can. Needs no network."""
    parts = urlsplit(address)
    if parts.password or parts.query:
        return AddressProblem(
            "an address may carry no password and no query",
            KEYS,
        )
    from fsspec import get_filesystem_class

    try:
        get_filesystem_class(parts.scheme)
    except ValueError:
        near = get_close_matches(parts.scheme, USUAL, 1)
        cure = f"did you mean {near[0]}://?" if near else f"such as {', '.join(f'{one}://' for one in USUAL)}"
        return AddressProblem(f"{parts.scheme}:// is not a storage that fsspec supports", cure)
    except ImportError as error:
        extra = _EXTRAS.get(parts.scheme)
        hint = install_line(extra) if extra else str(error)
        return AddressProblem(f"the library for {parts.scheme}:// is not installed", hint)
    return None


def check_address(address: str, field: str) -> None:
    """Raise UsageError, naming the field, if orch cannot use an address."""
    if (problem := address_problem(address)) is not None:
        raise UsageError(f"{field}: {problem.message}", hint=problem.hint)


def database_url(url: str, folder: Path) -> str:
    """Return a database URL that names the installed driver. A relative SQLite path starts at `folder`."""
    if url.startswith("sqlite:///"):
        return f"sqlite:///{folder / url.removeprefix('sqlite:///')}"
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
