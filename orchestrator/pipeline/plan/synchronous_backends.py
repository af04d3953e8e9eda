"""Synchronous backends that can answer a row immediately."""

from __future__ import annotations

from msgspec import Struct

from orchestrator.backends.open import ask_models, key_cure, profile_for
from orchestrator.core.errors import UsageError
from orchestrator.pipeline.plan.prices import provider_at
from orchestrator.settings.backends import FleetBackend, HostedBackend, LocalBackend, SyncBackend
from orchestrator.settings.config import Config

AT_ONCE = "at_once"
"""Job option: the only backends that may be asked, for a job that a person waits for."""
PROBE_SECONDS = 3.0


class AtOnce(Struct, frozen=True):
    """Backends that can answer while a person waits, and the reason against each other backend.

    `may_pass` is true if a reason may be temporary. `starts` names the backends whose engines may have to start
    first. `hint` says what to add to orch.toml if it has no suitable backend.
    """

    names: tuple[str, ...]
    others: dict[str, str]
    may_pass: bool
    hint: str | None
    starts: tuple[str, ...] = ()


def at_once(config: Config, wanted: str | None = None) -> AtOnce:
    """Probe every synchronous backend of orch.toml. This costs nothing.

    Engines that orch starts are used only if no other backend answers, or if `wanted` names their backend.
    """
    names, others, may_pass, fleets = list[str](), dict[str, str](), False, list[str]()
    for name, backend in config.backends.items():
        if isinstance(backend, FleetBackend):
            fleets.append(name)
            continue
        if not isinstance(backend, LocalBackend | SyncBackend):
            others[name] = "its batches take minutes to hours"
            continue
        urls = backend.upstreams if isinstance(backend, LocalBackend) else (backend.base_url,)
        problems = [_problem(name, url, backend.api_key_env) for url in urls]
        if None in problems:
            names.append(name)
        else:
            may_pass = True
            others[name] = "; ".join(filter(None, problems))
    starts = tuple(name for name in fleets if name == wanted or not names)
    used = (*names, *starts)
    return AtOnce(used, others, may_pass, None if used or may_pass else _hint(config), starts)


def _problem(name: str, url: str, key_env: str | None) -> str | None:
    import httpx2

    try:
        answer = ask_models(name, url, key_env, PROBE_SECONDS)
    except UsageError as error:
        return error.reason
    except httpx2.HTTPError as error:
        return f"{url} does not answer: {error}"
    if answer.status_code in (401, 403):
        return f"{url} refuses the key ({answer.status_code}): {key_cure(name, key_env)}"
    if answer.status_code >= 500:
        return f"{url} answers with status {answer.status_code}"
    return None


def _hint(config: Config) -> str | None:
    for backend in config.backends.values():
        if isinstance(backend, HostedBackend) and backend.has_sync_api:
            provider = profile_for(backend).provider
            is_told = provider is None or provider_at(backend.base_url) is not None
            prices = "" if is_told else f'\n  provider = "{provider}"'
            return (
                'give the job\'s models a name at `now`, and add to orch.toml:\n  [backends.now]\n  kind = "sync"\n'
                f'  base_url = "{backend.base_url}"\n  api_key_env = "{backend.api_key_env}"{prices}'
            )
    return 'add a backend of kind "local" or "sync" to orch.toml (`orch help configuration`)'
