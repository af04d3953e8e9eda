"""Which backend runs a job's rows, and why. Pure: values in, a route with its reason out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend as routing sees it; `objection` is what speaks against it for this job, if anything does."""

    name: str
    kind: str
    location: str
    price: str
    objection: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A backend that will take the rows, and why it is this one."""

    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A backend that will not, and why."""

    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The route taken, None where there is none, and every route that was not."""

    route: Route | None
    refused: Sequence[Refusal]


def choose(
    candidates: Sequence[Candidate],
    *,
    allowed: Sequence[str] | None,
    local_only: bool,
    wanted: str | None,
    models: Mapping[str, Mapping[str, str | None]],
) -> Plan:
    """The first backend, in the order of orch.toml, that the job allows and that knows every model of it.

    `models` gives for each backend what each alias is called there, None where it has no name.
    """
    refused: list[Refusal] = []
    fit: list[Candidate] = []
    for candidate in candidates:
        reason = _objection(candidate, allowed, local_only, wanted, models.get(candidate.name, {}))
        if reason is None:
            fit.append(candidate)
        else:
            refused.append(Refusal(candidate.name, reason))
    if not fit:
        return Plan(None, refused)
    best, *others = fit
    refused += [Refusal(other.name, f"{best.name} stands before it in orch.toml") for other in others]
    why = "asked for" if wanted else "the only one that fits" if not others else "the first that fits"
    return Plan(Route(best.name, f"{why}; {best.location}, {best.price}"), refused)


def _objection(
    candidate: Candidate,
    allowed: Sequence[str] | None,
    local_only: bool,
    wanted: str | None,
    names: Mapping[str, str | None],
) -> str | None:
    if local_only and candidate.location != "local":
        return 'the job is local only, and this backend is not declared location = "local"'
    if allowed is not None and candidate.name not in allowed:
        return f"the job allows {', '.join(allowed) or 'none'}"
    if wanted is not None and candidate.name != wanted:
        return f"--backend {wanted} was given"
    unknown = [alias for alias, name in names.items() if name is None]
    return f"the model {', '.join(unknown)} has no name there" if unknown else candidate.objection
