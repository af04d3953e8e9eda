"""Current problems of backends that may take a job: no response, a missing model or a missing key.

orch requests the model lists of all backends at the same time and waits a few seconds. This costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import assert_never

from orchestrator.backends.open import ask_models, key_cure, open_backend
from orchestrator.backends.synchronous_rows import in_list
from orchestrator.core.errors import OrchError
from orchestrator.core.model import Job
from orchestrator.core.near_names import near_words
from orchestrator.core.sanitize import shortened
from orchestrator.core.unreachable import CURES, unreached
from orchestrator.pipeline.plan.routes import asked_models, objections
from orchestrator.settings.backends import (
    Backend,
    EnginesBackend,
    HostedBackend,
    LocalBackend,
    RayBackend,
    SyncBackend,
)
from orchestrator.settings.config import Config

LOOK_SECONDS = 2.0
ALL_SECONDS = 4.0
MOST_WORDS = 300
DEFAULT_MODEL = "default"


def problems_now(config: Config, job: Job) -> dict[str, str]:
    """Return the current problems of backends that may take the job, in the order of orch.toml."""
    against = objections(config, job)
    names = [name for name in config.backends if name not in against]
    found: dict[str, str | None] = {}

    def look(name: str) -> None:
        found[name] = _problem(name, config.backends[name], asked_models(config, job, name))

    _all_at_once([lambda name=name: look(name) for name in names])  # type: ignore[misc]
    slow = f"has not answered for {ALL_SECONDS:.0f} s, so it is not checked; see `orch doctor`"
    told = {name: found.get(name, slow) for name in names}
    # The caller names the backend in front of its problem.
    named = {name: problem.removeprefix(f"{name}: ") for name, problem in told.items() if problem is not None}
    return {name: shortened(problem, MOST_WORDS) for name, problem in named.items()}


def missing_keys(config: Config, job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a sentence with a hint for each backend whose key is not set in this environment.

    Only backends that may take the job are checked.
    """
    against, missing = objections(config, job), {}
    for name, backend in config.backends.items():
        variable = None if isinstance(backend, EnginesBackend | RayBackend) else backend.api_key_env
        if name not in against and variable is not None and not environ.get(variable, "").strip():
            where = f"export {variable}=… where `orch up` or `orch run` starts"
            missing[name] = f"{variable}, the key of backend {name}, is not set here: {where}"
    return missing


def _all_at_once(calls: list[Callable[[], None]]) -> None:
    # Resolving a host name has no timeout: a thread that hangs in it is left behind.
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    until = time.monotonic() + ALL_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _problem(name: str, backend: Backend, models: list[str]) -> str | None:
    match backend:
        case LocalBackend():
            return _of_upstreams(name, backend.upstreams, backend.api_key_env, models, "is vLLM running? ")
        case SyncBackend():
            return _of_upstreams(name, (backend.base_url,), backend.api_key_env, models, "")
        case HostedBackend():
            return _of_provider(name, backend, models)
        case EnginesBackend() | RayBackend():
            return None  # its engines start when there are rows
        case _:
            assert_never(backend)


def _of_upstreams(name: str, urls: tuple[str, ...], key_env: str | None, models: list[str], hint: str) -> str | None:
    problems = []
    for url in urls:
        problem = _of_upstream(name, url, key_env, models, hint)
        if problem is None:
            return None
        problems.append(problem)
    return problems[0] if problems else None


def _of_upstream(name: str, url: str, key_env: str | None, models: list[str], hint: str) -> str | None:
    import httpx2

    try:
        answer = ask_models(name, url, key_env, LOOK_SECONDS)
    except OrchError as error:
        return error.message
    except httpx2.HTTPError as error:
        cure = hint if (why := unreached(error)) is None else f"{CURES[why]}; "
        return f"nothing answers at {url} ({str(error) or type(error).__name__}); {cure}see `orch doctor`"
    if answer.status_code in (401, 403):
        return f"{url} refuses the key ({answer.status_code}): {key_cure(name, key_env)}"
    if answer.status_code >= 300:
        return None  # a server need not list its models
    try:
        listed = [str(model["id"]) for model in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return None
    return _missing(listed, models)


def _missing(listed: list[str], models: list[str]) -> str | None:
    lacking = [model for model in models if model != DEFAULT_MODEL and in_list(listed, model) is False]
    return _lacks(lacking, near_words(lacking[0], listed) if len(lacking) == 1 else "")


def _lacks(models: list[str], near: str = "") -> str | None:
    if not models:
        return None
    names, are = " and ".join(models), "models are" if len(models) > 1 else "model is"
    return f"{names}: the {are} not in its list of models{near}; see `orch doctor`"


def _of_provider(name: str, backend: HostedBackend, models: list[str]) -> str | None:
    try:
        api = open_backend(name, backend.model_copy(update={"request_timeout": LOOK_SECONDS}))
    except OrchError as error:
        return error.message
    try:
        answers = next(iter(api.check(())))
        if not answers.ok:
            return f"{answers.found}; see `orch doctor`"
        return _lacks([model for model in models if api.lists_model(model) is False])
    finally:
        api.close()
