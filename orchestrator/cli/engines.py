"""`orch engines`: shows a home's engines, and starts or stops them on request."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core import durations
from orchestrator.core.clock import now
from orchestrator.core.engines import EngineState
from orchestrator.core.errors import UsageError
from orchestrator.library.context import Context, opened
from orchestrator.settings.backends import EnginesBackend, FleetBackend

GIB = 1024**3
backend_option = click.option("--backend", metavar="NAME", help="The backend, if several have the model.")
VERBS = {
    "start": "Start an engine of MODEL without rows.\n\n"
    "It ends once it has been idle, like any engine; `start` also undoes `stop` and `sleep`.",
    "stop": "Drain and stop the engines of MODEL.\n\nIts rows wait until `orch engines start MODEL`.",
    "sleep": "Drain the engines of MODEL and free their memory.\n\nIts rows wait until `orch engines start MODEL`.",
}


@click.group(invoke_without_command=True)
@click.option("--backend", metavar="NAME", help="Of this backend only.")
@json_option
@click.pass_context
def engines(ctx: click.Context, backend: str | None, as_json: bool) -> int:
    """Show the engines of this home; start and stop the engines of a model.

    \b
    orch engines
    orch engines stop small     # its rows wait until `start small`
    """
    if ctx.invoked_subcommand is not None:
        if backend is not None or as_json:
            raise UsageError(f"write --backend and --json after `{ctx.invoked_subcommand}`")
        return 0
    with opened() as context:
        found = [one for name in _fleets(context, backend) for one in _engines_of(context, name)]
    if as_json:
        print_json(found)
    elif not found:
        say("orch: no engines; add a backend of kind `engines` or `ray` to orch.toml (`orch help engines`)")
    for one in () if as_json else found:
        show(_line(one))
    return 0


def _command(verb: str, text: str) -> click.Command:
    @click.command(verb, help=text)
    @click.argument("model")
    @backend_option
    @json_option
    def wished(model: str, backend: str | None, as_json: bool) -> int:
        return _wish(verb, model, backend, as_json)

    return wished


for _verb, _text in VERBS.items():
    engines.add_command(_command(_verb, _text))


def _fleets(context: Context, backend: str | None) -> dict[str, FleetBackend]:
    backends = context.config.backends.items()
    found: dict[str, FleetBackend] = {name: one for name, one in backends if isinstance(one, FleetBackend)}
    if backend is None:
        return found
    if backend not in found:
        known = ", ".join(found) or "none"
        raise UsageError(f"{backend} is not a backend of kind `engines` or `ray`", hint=f"known: {known}")
    return {backend: found[backend]}


def _wish(verb: str, model: str, backend: str | None, as_json: bool) -> int:
    from orchestrator.daemon.drivers import require_open
    from orchestrator.daemon.engine_wishes import Wished, read_wishes, write_wishes
    from orchestrator.daemon.loop import running_daemon
    from orchestrator.policy.engine_switches import EngineWish

    with opened() as context:
        fleets = _fleets(context, backend)
        names = [name for name, one in fleets.items() if model in one.model_names]
        if not names:
            known = sorted({one for each in fleets.values() for one in each.model_names})
            raise UsageError(f"no engine runs the model {model}", hint=f"known: {', '.join(known) or 'none'}")
        if len(names) > 1:
            raise UsageError(f"{', '.join(names)} have a model {model}", hint="name one of them with --backend")
        (name,) = names
        wish, fleet = EngineWish(verb), fleets[name]
        sleeps = isinstance(fleet, EnginesBackend) and fleet.models[model].swap == "sleep"
        if wish is EngineWish.SLEEP and not sleeps:
            raise UsageError(f'model {model} does not sleep: swap = "sleep" is not set in orch.toml')
        if wish is EngineWish.START:
            require_open(name, fleet)
        folder = context.home.server(name)
        write_wishes(folder, {**read_wishes(folder), model: Wished(wish, now())})
        is_running = running_daemon(context.home) is not None
    if as_json:
        runs = {"daemon_running": is_running, "engine_running": is_running}  # the old name is kept for one release
        print_json({"backend": name, "model": model, "wish": verb, **runs})
    else:
        late = "" if is_running else "; it applies as soon as `orch up` or `orch run` runs"
        say(f"orch: {verb} {model} of {name}{late}")
    return 0


def _engines_of(context: Context, name: str) -> list[dict[str, Any]]:
    from orchestrator.daemon.health import fetch_health

    health = fetch_health(context.home, name)
    if health is not None and health["engines"]:
        return [{"backend": name, **one} for one in health["engines"]]
    cold = {"name": None, "url": None, "state": EngineState.COLD.value, "seconds": 0.0, "starts": 0}
    rest = {"memory_bytes": None, "host_memory_bytes": 0, "problem": None}
    fleet = context.config.backends[name]
    assert isinstance(fleet, FleetBackend)
    return [{"backend": name, "model": model, **cold, **rest} for model in fleet.model_names]


def _line(one: dict[str, Any]) -> str:
    where = "" if one["name"] is None else f" on {one['name']}"
    since = f" for {durations.duration(one['seconds'])}" if one["name"] is not None else ""
    memory = "" if one["memory_bytes"] is None else f", {one['memory_bytes'] / GIB:.1f} GiB"
    starts = f", {one['starts']} starts" if one["starts"] > 1 else ""
    problem = "" if one["problem"] is None else f": {one['problem']}"
    state = one["state"].replace("_", " ")
    return f"{one['backend']} {one['model']}{where}: {state}{since}{memory}{starts}{problem}"
