"""Aliases that list models from cheap to strong: each model of a list is a rung with its own alias. Pure.

`analyst` is the first rung, `analyst@2` the second. A row is on one rung, so a shard, a price and a limit still
concern one model. A backend without a model for a rung uses its model of the next higher rung: no row gets a weaker
model than its rung asks for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

MOST = 9
"""Maximum number of rungs of an alias, which limits the bad answers paid for one row."""
Names = str | dict[str, str]
"""Name of a model: the same name at every backend, or names by backend."""
_RUNG = re.compile(r"(.+)@([2-9])")


class Step(Struct, frozen=True):
    """The next rung of rows whose answers failed their check.

    `models` are the rung's models at the backends where the rows may go; `avoid` are the backends to avoid.
    """

    alias: str
    models: tuple[str, ...]
    avoid: tuple[str, ...]


class RungStanding(Struct, frozen=True):
    """Position of a shard's rows on the model list of their alias.

    `lacks` are the job's allowed backends without a model as strong as the rung requires. With `is_alone`, only the
    rows' own backend has a model this strong. `step` is None if no stronger model is left.
    """

    lacks: frozenset[str] = frozenset()
    is_alone: bool = False
    step: Step | None = None


def rung_of(alias: str) -> tuple[str, int]:
    """Split a rung's alias into the declared alias and the number of the rung, from 1."""
    found = _RUNG.fullmatch(alias)
    return (found[1], int(found[2])) if found else (alias, 1)


def is_of(model: str, aliases: Collection[str] | None) -> bool:
    """True if a row's model is on the list of one of these aliases, or if `aliases` is None."""
    return aliases is None or rung_of(model)[0] in aliases


def alias_words(alias: str) -> str:
    """Format an alias for display, without the `@` of rungs."""
    name, rung = rung_of(alias)
    return name if rung == 1 else f"{name} (model {rung} of its list)"


def expand(models: Mapping[str, Names | Sequence[Names]], backends: Iterable[str]) -> dict[str, Names]:
    """Split each alias's list into rungs, each with the names of its models at these backends."""
    known, found = tuple(backends), dict[str, Names]()
    for alias, ladder in models.items():
        if isinstance(ladder, (str, dict)):
            found[alias] = ladder
            continue
        for index in range(len(ladder)):
            found[alias if index == 0 else f"{alias}@{index + 1}"] = _upward(ladder[index:], known)
    return found


def _upward(rungs: Sequence[Names], backends: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for rung in rungs:
        names = {**(dict.fromkeys(backends, rung) if isinstance(rung, str) else rung), **names}
    return names


def above(alias: str, models: Mapping[str, Names]) -> list[str]:
    """Return the aliases of higher rungs, in order."""
    base, number = rung_of(alias)
    return [name for higher in range(number + 1, MOST + 1) if (name := f"{base}@{higher}") in models]


def standing(alias: str, backend: str, models: Mapping[str, Names], usable: Collection[str]) -> RungStanding:
    """Return the position of rows sent to `backend` on the model list of an expanded alias.

    The job may use the `usable` backends.
    """
    if alias not in models:
        return RungStanding()  # a model's own name, in a ready batch file
    having = _places(models[alias], usable)
    return RungStanding(
        frozenset(usable) - having.keys(), not having.keys() - {backend}, _step(alias, backend, models, usable)
    )


def _step(alias: str, backend: str, models: Mapping[str, Names], usable: Collection[str]) -> Step | None:
    answered = _places(models[alias], (backend,)).get(backend)
    for higher in above(alias, models):
        if _places(models[higher], (backend,)).get(backend) == answered:
            continue  # this backend's model for the rung is the one that just failed
        places = _places(models[higher], usable)
        if not places:
            return None
        return Step(higher, tuple(sorted(set(places.values()))), tuple(sorted(set(usable) - places.keys())))
    return None


def _places(names: Names, backends: Iterable[str]) -> dict[str, str]:
    if isinstance(names, str):
        return dict.fromkeys(backends, names)
    return {backend: names[backend] for backend in backends if backend in names}
