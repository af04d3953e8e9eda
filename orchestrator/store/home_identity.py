"""The identity of a home: recovered from its jobs if its id is gone, and kept apart from that of a copy."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.core.atomic import durable
from orchestrator.core.errors import RefusedError, StorageError
from orchestrator.settings.home import Home, new_identity
from orchestrator.store.store import Store

ADOPT = "orch adopt"


def owners(home: Home, store: Store) -> frozenset[str]:
    """Return the ids of the homes whose jobs have folders here. In a home's own database, every job counts."""
    if store.removals.has_file and home.database.exists():
        return store.jobs.homes()
    return store.jobs.homes(home.job_folders())


def recognise(home: Home, store: Store) -> str | None:
    """Give a home without an id the id recorded in its jobs, and return the id.

    Returns None if the home has an id already, or no jobs. Raises RefusedError if its jobs belong to several homes.
    """
    if home.has_identity:
        return None
    found = owners(home, store)
    if len(found) > 1:
        ids = " or ".join(f"`{ADOPT} {one}`" for one in sorted(found))
        raise RefusedError(f"{home.root}/home.id is gone, and jobs of {len(found)} homes are here", hint=ids)
    home.forget_identity()
    if not found:
        return None
    identity = next(iter(found))
    home.adopt(identity)
    return identity


def adopt(home: Home, store: Store, identity: str | None) -> str:
    """Continue a home in this folder, with the id `identity` or its present id, and return the id.

    If this home is a copy, mark the original, so that its daemon does not start again. Raises RefusedError if no job
    here belongs to `identity`, or if a home without an id has jobs of several homes.
    """
    if identity is None and recognise(home, store) is None and not home.has_identity:
        # No job here belongs to a home, so a new id orphans no job.
        home.adopt(new_identity())
    known = owners(home, store)
    if identity is not None and identity not in known:
        hint = f"known: {', '.join(sorted(known))}" if known else "submit a job instead"
        raise RefusedError(f"no job in this home belongs to home {identity}", hint=hint)
    if identity is not None and not (home.has_identity and home.identity() == identity):
        home.forget_identity(is_blank=False)
        home.adopt(identity)
    other = _other_place(home)
    _write_place(home, home.root)
    if other is not None:
        _write_place(Home(other), home.root)
    return home.identity()


def require_own_place(home: Home) -> None:
    """Raise RefusedError if this home is a copy of an existing home, because both would pay for the same rows.

    A home that was moved is not a copy.
    """
    other = _other_place(home)
    if other is not None:
        raise RefusedError(
            f"{home.root} is a copy of the home {other}: both would send the same rows",
            hint=f"work in {other}; or stop its daemon, and run `{ADOPT}` here: then only {home.root} sends rows",
        )
    if _place(home) != home.root:
        _write_place(home, home.root)


def _other_place(home: Home) -> Path | None:
    place = _place(home)
    if place is None or not place.is_absolute() or place == home.root:
        return None
    other = Home(place)
    try:
        if not other.has_identity or place.samefile(home.root) or other.identity() != home.identity():
            return None
    except OSError:
        return None
    return place


def _place(home: Home) -> Path | None:
    try:
        found = json.loads(home.place.read_text("utf-8"))
        return Path(found["root"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_place(home: Home, root: Path) -> None:
    try:
        with durable(home.place) as file:
            file.write(json.dumps({"root": str(root)}).encode())
    except OSError as error:
        raise StorageError(f"cannot write {home.place}: {error.strerror}", hint="free some space") from error
