"""Backends that may take a job's rows by orch.toml and the job file, and their names for its models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from orchestrator.backends.open import profile_for
from orchestrator.core.clock import now
from orchestrator.core.errors import InputError, OrchError, RefusedError, RequestRefused, UsageError
from orchestrator.core.model import Job
from orchestrator.core.money import per_hour
from orchestrator.core.near_names import meant
from orchestrator.core.shards import Shard
from orchestrator.pipeline.dialects import Refused, losses, nothing_refused, recipient_of
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.plan.synchronous_backends import AT_ONCE
from orchestrator.pipeline.selection import Scope
from orchestrator.policy.eligibility import Candidate, Eligibility, eligibility
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.planner import Option
from orchestrator.policy.request_bodies import url_of
from orchestrator.settings.backends import (
    Backend,
    EnginesBackend,
    HostedBackend,
    LocalBackend,
    RayBackend,
    SyncBackend,
)
from orchestrator.settings.config import Config
from orchestrator.settings.job_file import lines_of
from orchestrator.settings.model_lists import Names, RungStanding, above, expand, rung_of, standing
from orchestrator.settings.source_lines import line_of, spell
from orchestrator.settings.stored_spec import refused_rows, spec_of, tasks_of
from orchestrator.settings.task_spec import Task
from orchestrator.store import Store
from orchestrator.store.records import RefusalHold

Aliases = frozenset[str]
_NO_MODEL = "model_not_found"
ANY_ENDPOINT: frozenset[str] | None = None
_CURE = ": take it out, or let it go with `unsupported: drop`"


def models_of(config: Config, job: Job) -> dict[str, Names]:
    """Return the models of aliases and rungs. The job file wins over orch.toml, and orch.toml over fleets."""
    return expand(_declared(config, job), config.backends)


def _declared(config: Config, job: Job) -> dict[str, Names | Sequence[Names]]:
    spec = spec_of(job)
    # A fleet's own model names are no aliases in a batch file: its rows may name the same model for another backend.
    return dict(config.models) if spec is None else {**config.fleet_models, **config.models, **spec.models}


def standing_of(config: Config, job: Job, shard: Shard) -> RungStanding:
    """Return the position of a shard's model in its alias's list. Only backends that may take rows now count."""
    usable = config.backends.keys() - objections(config, job).keys()
    return standing(shard.model, shard.backend, models_of(config, job), usable)


def _names_at(backend: str, aliases: Iterable[str], models: Mapping[str, Names]) -> dict[str, str | None]:
    names = {alias: resolve_model(alias, backend, models) for alias in aliases}
    higher = {rung: resolve_model(rung, backend, models) for alias in aliases for rung in above(alias, models)}
    return names | {rung: name for rung, name in higher.items() if name is not None}


def _check_rungs(config: Config, job: Job) -> None:
    """Raise an error for a listed model that no backend has, because it would be skipped silently.

    A list of models for a task with vectors is an error too, because vectors of different models cannot be compared.
    """
    declared = _declared(config, job)
    for task in tasks_of(job):
        if task.kind == "embedding" and not isinstance(declared[task.model], (str, Mapping)):
            told = f"the task {task.id!r} makes vectors, and vectors of several models cannot be compared"
            raise _wrong_model(config, job, task.model, told, "name one model for it")
    for alias in sorted({alias for task in tasks_of(job) for alias in task.aliases.values()}):
        ladder = declared[alias]
        for number, rung in enumerate(() if isinstance(ladder, (str, dict)) else ladder, 1):
            if isinstance(rung, dict) and not rung.keys() & config.backends.keys():
                known = ", ".join(config.backends) or "none"
                raise _wrong_model(
                    config,
                    job,
                    alias,
                    f"model {number} of the list is for {', '.join(rung) or 'no backend'}, "
                    f"and {config.path or 'orch.toml'} has no such backend",
                    f"known: {known}; name one of them, or take the model out of the list",
                )


def _wrong_model(
    config: Config, job: Job, alias: str, message: str, hint: str | None, *inside: str | int
) -> InputError:
    file, line, place = Path(job.source), None, ("models", alias, *inside)
    if not _is_in_job_file(job, alias):
        return config.mistake(place, message, hint)
    with suppress(OrchError, OSError):  # a job outlives its file, so the file may be missing
        line = line_of(place, lines_of(file))
    return InputError(message, file=file, line=line, field=spell(place), hint=hint)


def _is_in_job_file(job: Job, alias: str) -> bool:
    spec = spec_of(job)
    return spec is not None and alias in spec.models


def _spelled(job: Job, alias: str, backend: str, model: str) -> str:
    base = rung_of(alias)[0]
    pair = f"{base}: {{{backend}: {model}}}" if _is_in_job_file(job, base) else f'{base} = {{{backend} = "{model}"}}'
    return f"write  {pair}"


def eligibility_of(
    config: Config, job: Job, refused: Refused = nothing_refused, only: Aliases | None = None
) -> Eligibility:
    """Return the backends that may take a job's rows, and objections to the others.

    `refused` returns the fields that a backend has refused. With `only`, only rows of these aliases count.
    """
    models = models_of(config, job)
    aliases, uses, asked = set[str](), set[tuple[str, str]](), list[Task]()
    allowed, local_only = None, False
    if (spec := spec_of(job)) is not None:
        asked = asked_tasks(job)
        uses = {(alias, url_of(task)) for task in asked for alias in task.aliases.values()}
        if only is not None:
            uses = {(alias, url) for alias, url in uses if alias in only}
            asked = [task for task in asked if not only.isdisjoint(task.aliases.values())]
        aliases = {alias for alias, _ in uses}
        allowed, local_only = spec.allow.backends, spec.allow.location == "local"
    named = {name: _names_at(name, aliases, models) for name in config.backends}
    return eligibility(
        [
            _candidate(
                config,
                name,
                _used(uses, named[name], models),
                lambda name=name: _lost_settings(config, name, asked, named[name], models, refused),  # type: ignore[misc]
            )
            for name in config.backends
        ],
        allowed=allowed,
        local_only=local_only,
        wanted=job.options.get("backend"),
        models=named,
        at_once=job.options.get(AT_ONCE),
    )


def lots_of(config: Config, job: Job) -> tuple[Aliases, ...]:
    """Return a job's aliases, grouped by the backends that have their models.

    The result is empty if one backend may take all rows, or if an alias has no backend.
    """
    models, lots = models_of(config, job), dict[frozenset[str], set[str]]()
    for alias in {alias for task in asked_tasks(job) for alias in task.aliases.values()}:
        places = frozenset(name for name in config.backends if resolve_model(alias, name, models) is not None)
        lots.setdefault(places, set()).add(alias)
    if len(lots) < 2 or eligibility_of(config, job).eligible:
        return ()
    found = sorted(map(frozenset, lots.values()), key=sorted)
    return tuple(found) if all(eligibility_of(config, job, only=lot).eligible for lot in found) else ()


def asked_tasks(job: Job) -> list[Task]:
    """Return the tasks that a job asks; empty for a batch file."""
    only = Scope.of(job).tasks
    return [task for task in tasks_of(job) if not only or task.id in only]


def named_models(config: Config, backend: str) -> list[str]:
    """Return a backend's names for all models that have an alias in orch.toml."""
    models = expand(config.models, config.backends)
    found = {resolve_model(alias, backend, models) for alias in models}
    return sorted(model for model in found if model is not None)


def asked_models(config: Config, job: Job, backend: str) -> list[str]:
    """Return a backend's names for the models that a job's tasks use; empty for a batch file."""
    aliases = {alias for task in asked_tasks(job) for alias in task.aliases.values()}
    names = _names_at(backend, aliases, models_of(config, job))
    return sorted({name for name in names.values() if name is not None})


def objections(
    config: Config, job: Job, refused: Refused = nothing_refused, only: Aliases | None = None
) -> Mapping[str, str]:
    """Return objections to backends that may take none of a job's rows; with `only`, of these aliases' rows."""
    whole = eligibility_of(config, job, refused, only)
    lots = () if only is not None or whole.eligible else lots_of(config, job)
    if not lots:
        return whole.objections
    first, *others = (eligibility_of(config, job, refused, lot).objections for lot in lots)
    return {name: why for name, why in first.items() if all(name in other for other in others)}


def lost_settings(config: Config, job: Job) -> Mapping[str, str]:
    """Return messages about task settings that a backend's models reject, by backend."""
    models, tasks = models_of(config, job), asked_tasks(job)
    found = {}
    for name in config.backends:
        names = _names_at(name, {alias for task in tasks for alias in task.aliases.values()}, models)
        refusing = [task for task in tasks if task.unsupported == "refuse"]
        if (lost := _lost_settings(config, name, refusing, names, models, nothing_refused)) is not None:
            found[name] = f"no row goes there: {lost}"
            continue
        dropping = [task.model_copy(update={"unsupported": "refuse"}) for task in tasks if task not in refusing]
        if (lost := _lost_settings(config, name, dropping, names, models, nothing_refused)) is not None:
            found[name] = f"left out: {lost.removesuffix(_CURE)}"
    return found


def unpriced(config: Config, job: Job, found: Eligibility) -> dict[str, str]:
    """Return objections to backends without a price for a model. Each states where the model's name is written."""
    aliases = {alias for task in asked_tasks(job) for alias in task.aliases.values()}
    declared, models, told = _declared(config, job), models_of(config, job), dict[str, str]()
    for backend, model in found.unpriced.items():
        rung = next(rung for rung, name in _names_at(backend, aliases, models).items() if name == model)
        alias, number = rung_of(rung)
        listed = () if isinstance(declared[alias], (str, Mapping)) else (number - 1,)
        inside = listed if isinstance(models[rung], str) else (*listed, backend)
        mistake = _wrong_model(config, job, alias, found.objections[backend], None, *inside)
        mistake.file = mistake.file and Path(mistake.file).name  # a path is too long for an objection
        told[backend] = mistake.told
    return told


def check_eligible(config: Config, job: Job) -> None:
    """Raise RefusedError with the objections if no backend is eligible.

    Raises InputError if orch.toml has no backend or a list names a model that no backend has.
    """
    _check_rungs(config, job)
    _check_names_of_backends(config, job)
    found = eligibility_of(config, job)
    if found.eligible or lots_of(config, job):
        return
    if not config.backends:
        where = config.path or "orch.toml"
        raise InputError(
            f"no backend is configured ({where})",
            hint='write into orch.toml:\n  [backends.local]\n  upstreams = ["http://127.0.0.1:8000/v1"]\n'
            '  location = "local"\n  idle = true',
        )
    _check_backends_of_models(config, job)
    objections = {**found.objections, **unpriced(config, job, found)}
    reasons = "".join(f"\n  {backend}: {told}" for backend, told in objections.items())
    raise RefusedError(f"no backend may run this job:{reasons}")


def _check_names_of_backends(config: Config, job: Job) -> None:
    """Raise InputError if a task's alias has a setting or a misspelled backend in place of a backend's name.

    Other unknown names are accepted: they may be backends of another machine.
    """
    models, known = models_of(config, job), config.backends
    aliases = {alias for task in asked_tasks(job) for alias in task.aliases.values()}
    for alias in sorted({rung for first in aliases for rung in (first, *above(first, models))}):
        names = models.get(alias)
        if not isinstance(names, Mapping) or not known:
            continue
        for name in sorted(names.keys() - known.keys()):
            said = f"has a name for {name!r}, and orch.toml has no such backend"
            if name in ("backend", "model", "provider"):
                cure = _spelled(job, alias, names.get("backend", next(iter(known))), names.get("model", "NAME"))
                raise _wrong_model(config, job, rung_of(alias)[0], said, cure)
            if names.keys() & known and (near := meant(name, known)) is not None:
                raise _wrong_model(config, job, rung_of(alias)[0], said, near)


def _check_backends_of_models(config: Config, job: Job) -> None:
    models = models_of(config, job)
    for alias in sorted({alias for task in asked_tasks(job) for alias in task.aliases.values()}):
        names = models.get(alias)
        if isinstance(names, Mapping) and names and not names.keys() & config.backends.keys():
            known = next(iter(config.backends))
            raise _wrong_model(
                config,
                job,
                alias,
                f"has names for {', '.join(sorted(names))}, and orch.toml has no such backend",
                f"{_spelled(job, alias, known, 'NAME')}  (backends of orch.toml: {', '.join(config.backends)})",
            )


def _used(
    uses: Iterable[tuple[str, str]], names: Mapping[str, str | None], models: Mapping[str, Names]
) -> list[tuple[str | None, str]]:
    return sorted(
        {(names.get(rung), url) for alias, url in uses for rung in (alias, *above(alias, models)) if rung in names},
        key=str,
    )


def _lost_settings(
    config: Config,
    backend: str,
    tasks: Iterable[Task],
    names: Mapping[str, str | None],
    models: Mapping[str, Names],
    refused: Refused,
) -> str | None:
    recipient = recipient_of(config.backends[backend])
    found: dict[str, list[str]] = {}
    is_curable = False
    for task in tasks:
        url = url_of(task)
        rungs = [rung for alias in task.aliases.values() for rung in (alias, *above(alias, models))]
        for model in dict.fromkeys(name for rung in rungs if (name := names.get(rung)) is not None):
            for loss in losses(recipient, model, task, refused(backend, model, url)):
                found.setdefault(loss.reason, []).append(task.id)
                is_curable |= loss.may_be_taken_out
    if not found:
        return None
    told = "; ".join(f"{reason} (task {', '.join(dict.fromkeys(ids))})" for reason, ids in found.items())
    return told + _CURE if is_curable else told


def _candidate(
    config: Config, name: str, uses: Sequence[tuple[str | None, str]], lost: Callable[[], str | None]
) -> Candidate:
    backend, unpriced = config.backends[name], None
    urls = ANY_ENDPOINT
    match backend:
        case LocalBackend() | EnginesBackend():
            price = per_hour(backend.cost_per_hour)
        case RayBackend():
            price = "each engine by the hour"
        case SyncBackend():
            price = f"{backend.service_tier or 'realtime'} price"
        case HostedBackend():
            price = "batch price"
            urls = profile_for(backend).endpoints
        case _:
            assert_never(backend)
    if urls is not None and (others := [url for _, url in uses if url not in urls]):
        objection: str | None = f"its batches do not support {others[0]}, only {', '.join(sorted(urls))}"
    elif (found := _first_unpriced(config, backend, uses)) is not None:
        unpriced, objection = found
    else:
        objection = lost()
    return Candidate(name, backend.kind, backend.location, price, objection, _example(backend), unpriced)


def _first_unpriced(
    config: Config, backend: Backend, uses: Iterable[tuple[str | None, str]]
) -> tuple[str, str] | None:
    for model, url in uses:
        if model is not None:
            try:
                prices_of(backend, config, now).known(model, url)
            except UsageError as error:
                return model, error.reason
    return None


def _example(backend: Backend) -> str:
    match backend:
        case LocalBackend():
            return "default"  # the model that its upstream serves
        case EnginesBackend() | RayBackend():
            return next(iter(backend.models))
        case SyncBackend() | HostedBackend():
            return "NAME"
        case _:
            assert_never(backend)


def why_not(
    store: Store, config: Config, job: Job, avoid: tuple[str, ...], options: Sequence[Option]
) -> RefusedError | RequestRefused:
    """Return the error for rows that no backend takes: they avoid some backends, and the others have objections."""
    holds = [hold for hold in store.holds.of(job.id) if hold.backend in avoid]
    if not holds:
        objections = "; ".join(f"{option.backend}: {option.objection}" for option in options)
        gave_up = " and ".join(avoid)
        return RefusedError(f"job {job.id}: no other backend takes rows that {gave_up} gave up: {objections}")
    return request_refused(config, job, holds)


def all_held(store: Store, job: Job) -> list[RefusalHold]:
    """Return a job's holds if they cover all of its remaining rows and no batch is open; otherwise empty."""
    holds = store.holds.of(job.id)
    if not holds or any(not shard.state.is_final for shard in store.shards.of_job(job.id)):
        return []
    waiting, held = store.sizes.open_work(job.id), {(hold.model, hold.task) for hold in holds}
    is_held = waiting and all(rows.avoid and (rows.model, rows.task) in held for rows in waiting)
    return holds if is_held else []


def request_refused(config: Config, job: Job, holds: Sequence[RefusalHold]) -> RequestRefused:
    first = holds[0]
    alike = list(dict.fromkeys(refused_rows(job, hold.model, hold.task) for hold in holds if hold.code == first.code))
    return RequestRefused(
        f"job {job.id}: {first.backend} refuses {' and '.join(alike)}: {first.message}",
        hint=f"all of them wait, and none has failed. Correct {_refused_place(config, job, first)}, then run the "
        f"same command again, or `orch retry {job.id}`",
        code=first.code,
        job_id=job.id,
        holds=[hold.to_json() for hold in holds],
    )


def _refused_place(config: Config, job: Job, hold: RefusalHold) -> str:
    """Return the file and line of a model's name if the backend does not know the model.

    For other refusals, return what to correct.
    """
    alias = rung_of(hold.model)[0]
    names = _declared(config, job).get(alias)
    if hold.code != _NO_MODEL or names is None or alias in config.fleet_models:
        return "the model, the field or the backend"
    inside = (hold.backend,) if isinstance(names, Mapping) and hold.backend in names else ()
    return f"the model at {_wrong_model(config, job, alias, '', None, *inside).where}"
