"""Aliases that list models from cheap to strong: each model of a list is a rung with an alias of its own.

`analyst` is the first rung, `analyst@2` the second. A row stands on one of them, so a shard, a price and a bound have
one model as ever. Where a backend has no name for a rung, it takes the next one above that it has a name for: a row
is never asked of a weaker model than its rung's. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

MOST = 9
"""Rungs of an alias; a row is paid for at most so often for bad answers."""
Names = str | dict[str, str]
"""A model's name at every backend, or at each that is named."""
_RUNG = re.compile(r"(.+)@([2-9])")


@dataclass(frozen=True, slots=True)
class Step:
    """The next rung of rows whose answers failed their check.

    `models` is what it is called where they may go, `avoid` what they keep away from.
    """

    alias: str
    models: tuple[str, ...]
    avoid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RungStanding:
    """Where the rows of a shard stand on their alias's list.

    `lacks` are the backends that may take the job and have no model as strong as their rung's; `is_alone` says that
    no other than theirs has one; `step` is None where nothing stronger is left.
    """

    lacks: frozenset[str] = frozenset()
    is_alone: bool = False
    step: Step | None = None


def rung_of(alias: str) -> tuple[str, int]:
    """The alias as it was declared, and the number of its rung, from 1."""
    found = _RUNG.fullmatch(alias)
    return (found[1], int(found[2])) if found else (alias, 1)


def alias_words(alias: str) -> str:
    """An alias for people, without the sign that tells its rungs apart."""
    name, rung = rung_of(alias)
    return name if rung == 1 else f"{name} (model {rung} of its list)"


def expand(models: Mapping[str, Names | Sequence[Names]], backends: Iterable[str]) -> dict[str, Names]:
    """Aliases with their lists taken apart into rungs, each with the names that these backends have for it."""
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
    """The rungs above an alias's own, by their aliases, in order."""
    base, number = rung_of(alias)
    return [name for higher in range(number + 1, MOST + 1) if (name := f"{base}@{higher}") in models]


def standing(alias: str, backend: str, models: Mapping[str, Names], usable: Collection[str]) -> RungStanding:
    """Where rows stand that were asked of `backend` under an alias of `expand`; `usable` may take rows of the job."""
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
            continue  # there it is the very model that has just failed
        places = _places(models[higher], usable)
        if not places:
            return None
        return Step(higher, tuple(sorted(set(places.values()))), tuple(sorted(set(usable) - places.keys())))
    return None


def _places(names: Names, backends: Iterable[str]) -> dict[str, str]:
    if isinstance(names, str):
        return dict.fromkeys(backends, names)
    return {backend: names[backend] for backend in backends if backend in names}
