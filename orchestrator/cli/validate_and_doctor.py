"""Commands that check without running a job: validate, doctor."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import click

from orchestrator.backends.open import ask_models, key_cure, limits_of, open_backend, profile_for
from orchestrator.backends.profiles import BatchLimits
from orchestrator.cli.console_progress import progress
from orchestrator.cli.options import scope_options
from orchestrator.cli.output import json_option, print_json, quiet_option, show
from orchestrator.core.batch_api import CHAT, EMBEDDINGS
from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError, OrchError, UsageError
from orchestrator.core.extras import require
from orchestrator.core.model import Job, JobId, JobKind, scope_words
from orchestrator.core.money import per_hour
from orchestrator.core.near_names import near_words
from orchestrator.core.permissions import readable_by_others
from orchestrator.core.sanitize import one_line
from orchestrator.core.shards import Shard
from orchestrator.core.unreachable import CURES, unreached
from orchestrator.daemon.running_settings import differences
from orchestrator.documents.ignored import reason_words
from orchestrator.documents.ignored import told as told_ignored
from orchestrator.library.context import is_current, say_keys
from orchestrator.pipeline.backend_handles import Prices
from orchestrator.pipeline.build.submission import Options, draft
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.pipeline.plan.prices import ByToken, prices_of
from orchestrator.pipeline.plan.routes import asked_models, named_models, objections
from orchestrator.pipeline.selection import Scope
from orchestrator.policy.dialect import describe
from orchestrator.reports.removed_backends import of_home, removed_words
from orchestrator.settings import config as settings
from orchestrator.settings import job_spec
from orchestrator.settings.backends import (
    Backend,
    EnginesBackend,
    HostedBackend,
    LocalBackend,
    RayBackend,
    SyncBackend,
)
from orchestrator.settings.home import Home
from orchestrator.settings.telemetry import Telemetry

if TYPE_CHECKING:
    from orchestrator.store import Store

MOST_NAMES = 12
MOST_PROBLEMS = 20
DEFAULT_MODEL = "default"
"""Model name that orch's own server replaces by its upstream's model."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of job files, for editors.")
@click.option("--list", "lists", is_flag=True, help="Name every file that was not read, and why.")
@scope_options
@quiet_option
@json_option
def validate(file: Path | None, schema: bool, lists: bool, scope: Scope, quiet: bool, as_json: bool) -> int:
    """Check a job or batch file, and every document and template, without running it."""
    from orchestrator.pipeline.build.validate import check_file

    if schema:
        print_json(job_spec.json_schema())
        return 0
    if file is None:
        raise click.UsageError("give a job file or a batch file, or --schema")
    config = settings.load()
    with progress(quiet=quiet or as_json) as view:
        found = check_file(file, config, now, lambda: _known(config), scope=scope, progress=view.reading, lists=lists)
    if as_json:
        print_json(
            {
                "file": str(file),
                "kind": found.kind,
                "limited_to": scope_words(scope.to_options()),
                "documents": found.documents,
                "requests": found.requests,
                "ignored": found.ignored,
                "not_read": None if found.not_read is None else [one._asdict() for one in found.not_read],
                "warnings": list(found.warnings),
                "problems": [
                    {
                        "document": one.first[0],
                        "code": one.code,
                        "message": one.message,
                        "documents": one.documents,
                        "first": one.first,
                    }
                    for one in found.problems
                ],
            }
        )
        return 0
    source = f" of {number_of(found.documents, 'document')}" if found.kind is JobKind.DOCUMENTS else ""
    part = f"; checked: {told}" if (told := scope_words(scope.to_options())) else ""
    show(f"{file}: {number_of(found.requests, 'request')}{source}, nothing wrong with the file{part}")
    if ignored := told_ignored(found.ignored):
        show(f"  {ignored}")
    for one in found.not_read or ():
        show(f"  {'not all read' if one.notes else 'not read'}: {one_line(f'{one.key}: {reason_words(one)}')}")
    for warning in found.warnings:
        show(f"  warning: {warning}")
    for problem in found.problems[:MOST_PROBLEMS]:
        show(f"  {one_line(str(problem))}")
    if (more := len(found.problems) - MOST_PROBLEMS) > 0:
        show(f"  and {number_of(more, 'more kind')} of problems; --json has them all")
    return 0


@contextmanager
def _known(config: settings.Config) -> Iterator[Store | None]:
    """Yield the store, or None if the home or its database is missing: `validate` must not create them."""
    from orchestrator.store import Store

    place = config.place
    file = place.database_url.removeprefix("sqlite:///")
    is_there = file == place.database_url or Path(file).exists()
    if not is_there or not Home(place.home).has_identity:
        yield None
        return
    with Store.open(place.database_url, timeout=place.database_timeout) as store:
        yield store


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check configuration, home, database, upstreams and hosted backends. Sends no request that costs money."""
    checks = list(_examine())
    if as_json:
        print_json([{"check": name, "ok": ok, "found": text} for name, ok, text, _ in checks])
    else:
        for name, ok, text, _ in checks:
            show(f"{'ok  ' if ok else 'BAD '} {name}: {text}")
    return max((code for _, ok, _, code in checks if not ok), default=0)


Found = tuple[str, bool, str, int]
"""A check's name, True if it passed, its finding, and the exit code for a failure."""


def _examine() -> Iterator[Found]:
    try:
        config = settings.load()
    except InputError as error:
        yield "config", False, str(error), error.exit_code
        return
    yield "config", True, str(config.path or "no orch.toml; using the defaults"), 0
    yield from _examine_home(config)
    say_keys(config)  # must come before the checks that send keys
    if config.telemetry is not None:
        yield from _examine_telemetry(config.telemetry, config.home)
    yield from _examine_reports(config)
    removed = _removed(config)
    for name, told in zip(removed, removed_words(removed), strict=True):
        yield f"backend {name}", False, told, 2
    if not config.backends:
        cure = "add [backends.local] for a server of yours, or a provider's, to orch.toml; `orch init` writes one"
        yield "backends", False, f"none configured; {cure}", 2
        return
    for mistake in config.unknown_backends:
        yield str(mistake.field), False, f"{mistake.where}: {mistake.reason}", 2
    jobs, unfit = _examine_jobs(config, {shard.job_id for shards in removed.values() for shard in shards})
    yield from unfit
    asked = {name: _models(config, name, jobs) for name in config.backends}
    if not any(asked.values()):
        cure = "`orch plan JOB.yaml` checks those of a job file"
        yield "models", True, f"none checked: orch.toml, open jobs and schedules name none; {cure}", 0
    for name, backend in config.backends.items():
        models = asked[name]
        match backend:
            case LocalBackend():
                yield from _examine_local(name, backend, models)
            case EnginesBackend():
                yield from _examine_engines(name, backend)
            case RayBackend():
                yield from _examine_ray(name, backend)
            case SyncBackend():
                yield from _examine_sync(name, backend, models)
                yield from _examine_prices(name, prices_of(backend, config, now), models)
                yield from _examine_dialects(name, backend, models)
            case HostedBackend():
                yield from _examine_hosted(name, backend, config, models)
            case _:
                assert_never(backend)


def _removed(config: settings.Config) -> dict[str, list[Shard]]:
    """Return the home's batches at backends that orch.toml no longer has; empty if the home is unreadable."""
    with suppress(OrchError), _known(config) as store:
        if store is not None:
            return of_home(store, Home(config.home).identity(), config.backends)
    return {}


def _examine_telemetry(telemetry: Telemetry, home: Path) -> Iterator[Found]:
    what = f"telemetry {telemetry.endpoint}"
    try:
        require("otel", "[telemetry]")
        from orchestrator.daemon.telemetry.otlp import Receiver

        with closing(Receiver(telemetry, Home(home).identity())) as receiver:
            receiver.send_spans([])
    except OrchError as error:
        yield what, False, str(error), error.exit_code
        return
    content = "with prompts and answers" if telemetry.content else "without prompts and answers"
    yield what, True, f"takes spans, location {telemetry.location}, {content}", 0


def _examine_reports(config: settings.Config) -> Iterator[Found]:
    from orchestrator.daemon.channels import channels

    for channel in channels(config):
        try:
            channel.check()
        except OrchError as error:
            yield f"reports by {channel.name}", False, str(error), error.exit_code
        else:
            yield f"reports by {channel.name}", True, "ready; nothing was sent", 0


def _models(config: settings.Config, backend: str, jobs: Mapping[str, Job]) -> dict[str, str]:
    """Return a backend's models, each with its origin: orch.toml, a job that may run there, or a schedule."""
    found = dict.fromkeys(named_models(config, backend), "in orch.toml")
    for what, job in jobs.items():
        if backend not in objections(config, job):
            found = dict.fromkeys(asked_models(config, job, backend), f"by {what}") | found
    return dict(sorted(found.items()))


def _examine_jobs(config: settings.Config, waiting: Collection[JobId]) -> tuple[dict[str, Job], list[Found]]:
    """Return the home's open jobs, the next jobs of its schedules, and a finding for each job that cannot run.

    Jobs in `waiting`, which wait for a removed backend, get no finding of their own.
    """
    home, unfit = Home(config.home), list[Found]()
    with _known(config) as store:
        if store is None:
            return {}, []
        found = {f"job {job.id}": job for job in store.jobs.unfinished(home.identity())}
        for schedule in store.schedules.all():
            if schedule.home == home.identity() and schedule.paused_at is None:
                what = f"schedule {schedule.name}"
                try:
                    found[what] = draft(Path(schedule.file), config, home, Options(), now())
                except OrchError as error:
                    unfit.append((what, False, str(error), error.exit_code))
    for what, job in found.items():
        against = objections(config, job)
        if job.id not in waiting and against.keys() >= config.backends.keys():
            unfit.append((what, False, "; ".join(f"{name}: {why}" for name, why in against.items()), 3))
    return found, unfit


def _examine_home(config: settings.Config) -> Iterator[Found]:
    from orchestrator.daemon.loop import running_daemon
    from orchestrator.store import Store

    home = Home(config.home)
    try:
        if home.has_replica:
            yield from _examine_replica(home)
            if not is_current(home):
                return
        identity = home.identity()
        holder = running_daemon(home)
        yield "home", True, f"{home.root} ({identity}); daemon: {holder or 'none runs'}", 0
        if (rights := readable_by_others(home.root)) is not None:
            told = f"warning: other users can read {home.root} ({rights}): chmod -R go-rwx {home.root}"
            yield "rights", True, told, 0
        for line in differences(home, holder, config.path):
            yield "settings of the daemon", False, line, 2
        with Store.open(config.place.database_url, timeout=config.place.database_timeout) as store:
            yield "database", True, number_of(len(store.jobs.newest()), "job"), 0
    except OrchError as error:
        yield "home", False, str(error), error.exit_code


def _examine_replica(home: Home) -> Iterator[Found]:
    from orchestrator.daemon.replica.status_file import read_status

    status = read_status(home)
    if status is None or not is_current(home):
        yield "replica", True, "another machine may be the active one; run doctor there for the rest", 0
    else:
        yield "replica", True, f"{status.url}, generation {status.generation}; this machine is the active one", 0


def _examine_hosted(
    name: str, backend: HostedBackend, config: settings.Config, models: Mapping[str, str]
) -> Iterator[Found]:
    try:
        profile = profile_for(backend)
        api = open_backend(name, backend)
    except UsageError as error:
        yield f"backend {name}", False, str(error), error.exit_code
        return
    windows = ", ".join(profile.windows) or "any window"
    limits = _words(limits_of(backend, profile))
    yield f"backend {name}", True, f"{profile.name}, location {backend.location}, {windows}, {limits}", 0
    try:
        named = {f"model {model}": f"; named {where}" for model, where in models.items()}
        for check in api.check([*models]):
            found = check.found.removeprefix(f"{name}: ") + ("" if check.ok else named.get(check.name, ""))
            yield f"{name}: {check.name}", check.ok, found, 4
    finally:
        api.close()
    yield from _examine_prices(name, prices_of(backend, config, now), models)
    yield from _examine_dialects(name, backend, models)


def _examine_dialects(name: str, backend: Backend, models: Mapping[str, str]) -> Iterator[Found]:
    for model in models:
        if (said := describe(recipient_of(backend), model)) is not None:
            yield f"{name}: requests to {model}", True, said, 0


def _examine_prices(name: str, prices: Prices, models: Mapping[str, str]) -> Iterator[Found]:
    """Report the price of each model. Without models, report a backend that has no prices at all."""
    if not models and isinstance(prices, ByToken) and prices.provider is None and not prices.overrides:
        yield f"{name}: prices", False, 'not a provider in the price table: name it (provider = "openai")', 2
    for model in models:
        what = f"{name}: price of {model}"
        try:
            yield what, True, prices.known(model, CHAT), 0
        except UsageError as error:
            if (told := _price_of_vectors(prices, model)) is None:
                yield what, False, str(error), error.exit_code
            else:
                yield what, True, told, 0


def _price_of_vectors(prices: Prices, model: str) -> str | None:
    """Return the price of a model that has only an input price; None if the model has no price."""
    try:
        return f"{prices.known(model, EMBEDDINGS)}; for embeddings: no output price is known"
    except UsageError:
        return None


def _words(limits: BatchLimits) -> str:
    least = f"{limits.min_rows:,} to " if limits.min_rows > 1 else ""
    said = [f"{least}{number_of(limits.max_rows, 'row')} and {limits.max_bytes:,} bytes a batch"]
    if limits.max_inputs is not None:
        said.append(f"{limits.max_inputs:,} embedding inputs a batch")
    if limits.batches_per_hour is not None:
        said.append(f"{number_of(limits.batches_per_hour, 'batch')} an hour")
    for model, tokens in (limits.enqueued_tokens or {}).items():
        said.append(f"{tokens:,} tokens of {model or 'a model'} enqueued")
    return ", ".join(said)


def _examine_engines(name: str, backend: EnginesBackend) -> Iterator[Found]:
    from orchestrator.server.engines.gpus import find_gpus
    from orchestrator.server.engines.launch import find_python, find_weights

    hours = f", {backend.hours}" if backend.hours else ""
    price = f"{per_hour(backend.cost_per_hour)} of a GPU"
    yield f"backend {name}", True, f"{backend.kind}, location {backend.location}, {price}{hours}", 0
    given = None if backend.vllm_python is None else Path(backend.vllm_python).expanduser()
    try:
        python, _, is_cpu_build = find_python(given, os.environ)
        gpus = [] if is_cpu_build else find_gpus(os.environ)
        told = f"GPUs {', '.join(str(gpu.index) for gpu in gpus)}" if gpus else "no GPU: on the CPU"
        yield f"engines of {name}", True, f"vLLM of {python}, {told}", 0
        for model in backend.models.values():
            find_weights(model.model)
    except OrchError as error:
        yield f"engines of {name}", False, str(error), error.exit_code


def _examine_ray(name: str, backend: RayBackend) -> Iterator[Found]:
    from orchestrator.ray.process import cluster_status

    engines = f"at most {number_of(backend.most_engines, 'engine')}"
    yield f"backend {name}", True, f"{backend.kind}, location {backend.location}, {engines}", 0
    try:
        found = cluster_status(Path(backend.ray_python).expanduser(), backend.address, os.environ)
    except OrchError as error:
        yield f"cluster of {name}", False, str(error), error.exit_code
        return
    alive = [node for node in found.nodes if node["alive"]]
    gpus = sum(node["gpus"] for node in alive)
    yield f"cluster of {name}", True, f"Ray {found.ray}, {number_of(len(alive), 'node')}, {gpus:g} GPUs", 0


def _examine_local(name: str, backend: LocalBackend, models: Mapping[str, str]) -> Iterator[Found]:
    price = per_hour(backend.cost_per_hour)
    yield f"backend {name}", True, f"{backend.kind}, location {backend.location}, {price}", 0
    served = []
    for url in backend.upstreams:
        found, names = _examine_upstream(name, url, backend.api_key_env)
        served += names
        yield found
    yield from _examine_served(name, served, models)


def _examine_served(name: str, served: list[str], models: Mapping[str, str]) -> Iterator[Found]:
    for model, named in models.items() if served else ():
        is_there = model in served or model == DEFAULT_MODEL
        found = "is there" if is_there else f"is not there{near_words(model, served)}; named {named}"
        yield f"{name}: model {model}", is_there, found, 4


def _examine_sync(name: str, backend: SyncBackend, models: Mapping[str, str]) -> Iterator[Found]:
    tier = backend.service_tier or "as the rows say"
    yield f"backend {name}", True, f"{backend.kind}, location {backend.location}, service tier {tier}", 0
    found, served = _examine_upstream(name, backend.base_url, backend.api_key_env)
    yield found
    yield from _examine_served(name, served, models)


def _examine_upstream(name: str, url: str, key_env: str | None) -> tuple[Found, list[str]]:
    """Check an upstream, and return the models that it lists."""
    import httpx2

    from orchestrator.server.dispatch.pages import models_problem, said

    what = f"upstream {url}"
    try:
        answer = ask_models(name, url, key_env, 5.0)
        if (problem := models_problem(answer.status_code, answer.content)) is not None:
            refused = answer.status_code in (401, 403)
            return (what, False, f"{problem}; {key_cure(name, key_env)}" if refused else problem, 4), []
        if answer.status_code >= 300:
            return (what, True, f"answers; it has no list of models (/models: status {answer.status_code})", 0), []
        names = [str(model.get("id")) for model in answer.json()["data"]]
    except UsageError as error:
        return (what, False, str(error), error.exit_code), []
    except httpx2.HTTPError as error:
        oddly = " like an OpenAI-compatible server" if isinstance(error, httpx2.ProtocolError) else ""
        why = unreached(error)
        cure = "start it, or correct its address in orch.toml" if why is None else CURES[why]
        return (what, False, f"does not answer{oddly}: {error}; {cure}", 4), []
    except (ValueError, KeyError, TypeError, AttributeError):
        told = said(answer.content) or ": it says nothing"
        return (what, False, f"does not answer like an OpenAI-compatible server{told}", 4), []
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (what, True, f"serves {', '.join(names[:MOST_NAMES])}{more}", 0), names
