"""The backends that may take a job's rows: a filter before the planner, which chooses among them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

NOT_AT_ONCE = "it does not answer at once"
NOT_LOCAL = 'the job is local only, and this backend does not have location = "local"'


class Candidate(Struct, frozen=True):
    """A backend before the filter. `objection` is the reason not to use it for this job, or None.

    `example` is a model name to show in messages. `unpriced` is the model whose missing price is the objection.
    """

    name: str
    kind: str
    location: str
    price: str
    objection: str | None = None
    example: str = "NAME"
    unpriced: str | None = None


class Eligibility(Struct, frozen=True):
    """The backends that may take a job's rows, in the order of orch.toml, and the objections to the others.

    `wanted` is the backend that was requested by name, or None. `unpriced` maps a backend to the model whose missing
    price rules the backend out.
    """

    eligible: Mapping[str, Candidate]
    objections: Mapping[str, str]
    wanted: str | None = None
    unpriced: Mapping[str, str] = {}

    def reason(self, backend: str) -> str:
        """Return why the rows go to `backend`, the only eligible backend."""
        why = "asked for" if self.wanted else "the only one that fits"
        return f"{why}; {self.eligible[backend].location}, {self.eligible[backend].price}"


def eligibility(
    candidates: Sequence[Candidate],
    *,
    allowed: Sequence[str] | None,
    local_only: bool,
    wanted: str | None,
    models: Mapping[str, Mapping[str, str | None]],
    at_once: Collection[str] | None = None,
) -> Eligibility:
    """Return the backends that the job allows and that know all of its models.

    `models` maps each backend to its model name for each alias, or to None if it has no such model. `at_once` names
    the backends that answer at once, and rules out all others. None rules out no backend.
    """
    ruled_out = {
        candidate.name: _objection(candidate, allowed, local_only, wanted, models.get(candidate.name, {}))
        for candidate in candidates
    }
    objections = {
        candidate.name: ruled_out[candidate.name]
        or candidate.objection
        or (NOT_AT_ONCE if at_once is not None and candidate.name not in at_once else None)
        for candidate in candidates
    }
    return Eligibility(
        {candidate.name: candidate for candidate in candidates if objections[candidate.name] is None},
        {name: objection for name, objection in objections.items() if objection is not None},
        wanted,
        {one.name: one.unpriced for one in candidates if one.unpriced is not None and ruled_out[one.name] is None},
    )


def _objection(
    candidate: Candidate,
    allowed: Sequence[str] | None,
    local_only: bool,
    wanted: str | None,
    names: Mapping[str, str | None],
) -> str | None:
    if local_only and candidate.location != "local":
        return NOT_LOCAL
    if allowed is not None and candidate.name not in allowed:
        return f"the job allows {', '.join(allowed) or 'none'}"
    if wanted is not None and candidate.name != wanted:
        return f"the job is for {wanted} alone"
    unknown = sorted(alias for alias, name in names.items() if name is None)
    if unknown:
        told = f"the model {', '.join(unknown)} has no name there"
        return f"{told}; give it one:  models: {{{unknown[0]}: {{{candidate.name}: {candidate.example}}}}}"
    return None
