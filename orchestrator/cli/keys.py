"""`orch keys`: API keys of `orch serve` and their limits. Imports only a small part of the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.reports.text_tables import Column, table
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import Key, KeyLimits, KeyRight, Keys
from orchestrator.settings.discovery import locate, serve_folder

UNITS = {"": 1} | {
    f"{letter}{i}": base**power for power, letter in enumerate("kmgt", 1) for i, base in (("", 1000), ("i", 1024))
}
MOST = 10**15
_COLUMNS = (
    Column("id"),
    Column("name"),
    Column("key", rank=3),
    Column("created", rank=2),
    Column("state", rank=1),
    Column("right", rank=1),
    Column("limits", prose=True),
)

Command = TypeVar("Command", bound=Callable[..., Any])


class Amount(click.ParamType[int]):
    """A whole number from 1. With `in_bytes`, a size such as `500MB` or `1.5GiB` is also accepted."""

    name = "amount"

    def __init__(self, *, in_bytes: bool = False) -> None:
        self._in_bytes = in_bytes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d{1,15}|\d{1,15}\.\d{1,6}(?=[kmgt]))(?:([kmgt]i?)b|b|)", str(value).strip().lower())
        if found is None or not (self._in_bytes or str(value).isdecimal()):
            units = ", or a number with kB, MB, GB, TB, KiB, MiB, GiB, TiB" if self._in_bytes else ""
            self.fail(f"{value!r}: write a whole number{units}")
        amount = int(Decimal(found[1]) * UNITS[found[2] or ""])
        if not 1 <= amount <= MOST:
            self.fail(f"{value!r}: must be 1 to {MOST:,}")
        return amount


def dir_option(function: Command) -> Command:
    return click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="The folder of `orch serve`; default: `serve` in the home.",
    )(function)


@click.group()
def keys() -> None:
    """Manage API keys of `orch serve`, and their limits."""


@keys.command()
@click.argument("name")
@click.option("--max-rows", type=Amount(), metavar="N", help="Rows in one batch.")
@click.option("--max-bytes", type=Amount(in_bytes=True), metavar="SIZE", help="Bytes of all stored files, e.g. 20GB.")
@click.option("--max-batches", type=Amount(), metavar="N", help="Unfinished batches.")
@click.option("--max-queued-rows", type=Amount(), metavar="N", help="Rows waiting in all of them.")
@click.option("--max-calls", type=Amount(), metavar="N", help="Concurrent requests with this key.")
@click.option(
    "--right",
    type=click.Choice([right.value for right in KeyRight]),
    default=KeyRight.BATCH.value,
    show_default=True,
    help="What the key opens. batch: `orch serve`. view: the pages of `orch view` and `orch up --web`. operate: the "
    "pages and their actions.",
)
@dir_option
@json_option
def add(
    name: str,
    max_rows: int | None,
    max_bytes: int | None,
    max_batches: int | None,
    max_queued_rows: int | None,
    max_calls: int | None,
    right: str,
    folder: Path | None,
    as_json: bool,
) -> int:
    """Create a key for the tenant NAME. Its secret is printed to stdout once and never shown again.

    Only a tenant's own keys see its files and batches. A second key for the same NAME sees the same files and
    batches.
    """
    limits = KeyLimits(
        max_rows=max_rows,
        max_bytes=max_bytes,
        max_batches=max_batches,
        max_queued_rows=max_queued_rows,
        max_calls=max_calls,
    )
    root = _root(folder)
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"{root} cannot be created: {error.strerror}") from error
    with _opened(root) as found:
        key, secret = found.add(name, limits, KeyRight(right))
    if as_json:
        print_json({**_as_json(key), "secret": secret})
        return 0
    say(f"orch: {key.id} of {key.tenant} is valid from now on; its secret is shown only once:")
    show(secret)
    return 0


@keys.command("list")
@json_option
@dir_option
def list_keys(as_json: bool, folder: Path | None) -> int:
    """Show all keys without their secrets."""
    root = _root(folder)
    found: list[Key] = []
    if (root / FILE_NAME).exists():
        with _opened(root) as opened:
            found = opened.all()
    if as_json:
        print_json([_as_json(key) for key in found])
    elif not found:
        say(f"orch: no keys in {root}; create one with `orch keys add NAME`")
    else:
        from orchestrator.cli.console import out

        out().print(table(_COLUMNS, list(map(_cells, found)), out().width))
    return 0


@keys.command()
@click.argument("key_id", metavar="ID")
@dir_option
@json_option
def revoke(key_id: str, folder: Path | None, as_json: bool) -> int:
    """Revoke a key. A running server refuses its next request; batches created with it continue."""
    root = _root(folder)
    if not (root / FILE_NAME).exists():
        raise UsageError(f"there is no server's database in {root}", hint="--dir names the folder of `orch serve`")
    with _opened(root) as found:
        key = found.revoke(key_id)
    if as_json:
        print_json(_as_json(key))
    else:
        say(f"orch: {key.id} of {key.tenant} is revoked")
    return 0


def _root(folder: Path | None) -> Path:
    return serve_folder(locate()) if folder is None else folder


@contextmanager
def _opened(root: Path) -> Iterator[Keys]:
    database = ServerDatabase(root / FILE_NAME)
    try:
        yield Keys(database)
    finally:
        database.close()


def _as_json(key: Key) -> dict[str, Any]:
    """Return the stable form of a key, documented in docs/reference/json.md."""
    return {
        **msgspec.structs.asdict(key),
        "created_at": _at(key.created_at).isoformat(),
        "revoked_at": None if key.revoked_at is None else _at(key.revoked_at).isoformat(),
        "limits": msgspec.structs.asdict(key.limits),
    }


def _cells(key: Key) -> tuple[str, ...]:
    limits = ", ".join(f"{name} {most:,}" for name, most in msgspec.to_builtins(key.limits).items())
    state = "valid" if key.revoked_at is None else f"revoked {_time(key.revoked_at)}"
    return key.id, key.tenant, f"…{key.hint}", _time(key.created_at), state, key.right, limits or "none"


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _time(seconds: int) -> str:
    return f"{_at(seconds):%Y-%m-%d %H:%MZ}"
