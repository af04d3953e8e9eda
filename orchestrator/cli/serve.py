"""`orch serve`: OpenAI's Batch API in front of running upstreams, or of vLLM engines that orch starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from orchestrator.cli.keys import Amount, dir_option
from orchestrator.cli.options import Address, Url, VariableName
from orchestrator.core.errors import UsageError
from orchestrator.core.listening import url_host
from orchestrator.settings.amounts import engine_counts, length
from orchestrator.settings.discovery import locate, serve_folder

if TYPE_CHECKING:
    import socket

    from orchestrator.cli.serve_on_ray import RayEngines
    from orchestrator.core.replica.takeover import Replica
    from orchestrator.server.engines.supervisor import Supervisor
    from orchestrator.server.service import Service
    from orchestrator.server.settings import Settings

HOST = "127.0.0.1"
PORT = 8080
SECRET_VARIABLE = "ORCH_WEBHOOK_SECRET"
STOP_SECONDS = 10.0
LEFTOVER_SECONDS = 60.0
PAUSE_SECONDS = 0.2
FIRST_LOOK_SECONDS = 5.0

Tell = Callable[[str], None]


class Where(Struct, frozen=True):
    """Addresses to listen on: TCP if `port` is set, and a Unix socket if `uds` is set."""

    host: str
    port: int | None
    uds: Path | None


class _Endpoint(click.ParamType[str]):
    name = "endpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from orchestrator.server.endpoints import checked

        try:
            return checked(str(value))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class _Amount(click.ParamType[Any]):
    """An option with the syntax of a setting in orch.toml. `read` parses the value, or raises ValueError."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _alias(text: str) -> tuple[str, str]:
    from orchestrator.server.dispatch.aliases import read_alias

    return read_alias(text)


class _Gpus(click.ParamType[tuple[int, ...]]):
    name = "gpus"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        names = [name.strip() for name in str(value).split(",")]
        if not all(name.isdecimal() and len(name) < 6 for name in names):
            self.fail(f"{value!r} is not a list of GPUs such as 0,1", param, ctx)
        return tuple(map(int, names))


SECONDS = click.FloatRange(min=0, min_open=True)
SOCKET = click.Path(path_type=Path, dir_okay=False)
PROGRAM = click.Path(path_type=Path, exists=True, dir_okay=False)
OPTIONS = (
    click.option("--upstream", "upstreams", type=Url(), multiple=True, metavar="URL",
                 help="An OpenAI-compatible endpoint; may be given several times."),
    click.option("--host", default=HOST, show_default=True, help="Listen here."),
    click.option("--port", type=click.IntRange(0, 65535), help=f"Port; 0: any free one.  [default: {PORT}]"),
    click.option("--uds", type=SOCKET, metavar="PATH", help="A Unix socket; add --port to listen on both."),
    dir_option,
    click.option("--replica", metavar="URL",
                 help="Replicate all state to s3://BUCKET/FOLDER or a folder; take over from a server that does."),
    click.option("--api-key-env", type=VariableName(), metavar="NAME",
                 help="Environment variable with the upstreams' key."),
    click.option("--allow-endpoint", "allow_endpoints", type=_Endpoint(), multiple=True, metavar="PATH",
                 help="Also pass this path through to the upstreams; may be given several times."),
    click.option("--alias", "aliases", type=_Amount("alias", _alias), multiple=True, metavar="NAME=MODEL",
                 help="Another name for a model of the upstreams; *: any name, if a single model is served."),
    click.option("--require-keys/--no-require-keys", default=None,
                 help="Require API keys (`orch keys add`).  [default: unless on loopback]"),
    click.option("--webhook", metavar="URL", help=f"URL to notify when a batch ends; signed with {SECRET_VARIABLE}."),
    click.option("--request-timeout", type=SECONDS, default=600.0, metavar="S", help="For one row.  [default: 600]"),
    click.option("--max-rows", type=Amount(), default=50_000, metavar="N", help="In a batch.  [default: 50,000]"),
    click.option("--max-file-size", type=Amount(in_bytes=True), default="512MiB", show_default=True, metavar="SIZE"),
    click.option("--body-memory", type=Amount(in_bytes=True), default="192MiB", show_default=True, metavar="SIZE",
                 help="Memory for the bodies of rows and answers in flight."),
    click.option("--cost-per-hour", type=click.FloatRange(min=0), metavar="USD",
                 help="What all upstreams together cost an hour; /metrics then shows the cost of a token."),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
    click.option("--log-prompts", is_flag=True, help="Allow prompts and answers in the log."),
    click.option("--vllm", "model", metavar="MODEL", help="Start vLLM with this model: a folder, or a Hub name."),
    click.option("--gpus", type=_Gpus(), metavar="0,1", help="GPUs to use, one engine each.  [default: all]"),
    click.option("--tensor-parallel", type=click.IntRange(1, 64), metavar="N", help="GPUs per engine."),
    click.option("--vllm-python", type=PROGRAM, metavar="PATH", help="Python executable that has vLLM."),
    click.option("--ray", "cluster", metavar="ADDRESS",
                 help="Start the engines on this Ray cluster, as batches need them; auto: the one of this machine."),
    click.option("--engines", type=_Amount("engines", engine_counts), metavar="0..8",
                 help="How many, with --ray.  [default: 0..1]"),
    click.option("--idle", type=_Amount("time", length), metavar="TIME",
                 help="Time after which an idle engine on Ray ends.  [default: 10m]"),
    click.option("--ray-python", type=PROGRAM, metavar="PATH",
                 help="The cluster's own Python.  [default: the one beside `ray`]"),
    click.argument("vllm_options", nargs=-1, type=click.UNPROCESSED, metavar="[HOST:PORT] [-- VLLM OPTIONS]"),
)  # fmt: skip


def _options(function: Any) -> Any:
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@click.command()
@_options
def serve(
    host: str, port: int | None, uds: Path | None, folder: Path | None, log_format: str, model: str | None,
    gpus: tuple[int, ...] | None, tensor_parallel: int | None, vllm_python: Path | None, cluster: str | None,
    engines: tuple[int, int] | None, idle: float | None, ray_python: Path | None, vllm_options: tuple[str, ...],
    upstreams: tuple[str, ...], replica: str | None, **given: Any,
) -> int:  # fmt: skip
    """Serve OpenAI's Batch API in front of OpenAI-compatible endpoints, above all vLLM.

    \b
    orch serve --upstream http://127.0.0.1:8000/v1
    orch serve 0.0.0.0:8090 --vllm /models/qwen --gpus 0,1 -- --max-model-len 8192
    orch serve --vllm /models/llama --ray auto --engines 0..8

    Accepted work survives every stop and kill: it continues when the server starts again.
    """
    # Import the server only when the command line is valid.
    from orchestrator.server.listen import Stop

    if vllm_options and not vllm_options[0].startswith("-"):
        if port is not None:
            raise UsageError("the port is given twice: as HOST:PORT and with --port")
        host, port = Address().convert(vllm_options[0], None, None)
        vllm_options = vllm_options[1:]
    engine_options = (gpus, tensor_parallel, vllm_python, vllm_options or None)
    if model is None and any(option is not None for option in engine_options):
        raise UsageError("--gpus, --tensor-parallel, --vllm-python and options after -- go with --vllm MODEL")
    if model is None and not upstreams:
        raise UsageError("name an endpoint with --upstream URL, or start one with --vllm MODEL")
    if cluster is None and (engines or idle or ray_python):
        raise UsageError("--engines, --idle and --ray-python go with --ray ADDRESS")
    apart = (gpus, upstreams, given["aliases"], given["cost_per_hour"] is not None)
    if cluster is not None and (model is None or any(apart)):
        raise UsageError("--ray goes with --vllm MODEL, and without --gpus, --upstream, --alias and --cost-per-hour")
    where = Where(host, PORT if port is None and uds is None else port, uds)
    root = (serve_folder(locate()) if folder is None else folder).absolute()
    settings = _settings(tuple(dict.fromkeys(upstreams)), where, given)
    tell = _teller(log_format)
    stop = Stop()
    with stop.on_signals(), ExitStack() as stack:
        sockets = _claim_addresses(stack, root, where)
        if replica is None:
            _require_keys(root, where, settings, folder)
        supervisor = fleet = None
        if model is not None and cluster is not None:
            from orchestrator.cli.serve_on_ray import RayEngines, RayWish

            wanted = RayWish(
                cluster, model, engines, idle, tensor_parallel or 1, ray_python, vllm_python, vllm_options or ()
            )
            fleet = stack.enter_context(RayEngines(wanted, root, tell))
        elif model is not None:
            from orchestrator.server.engines.launch import Wish

            wish = Wish(model, gpus, tensor_parallel or 1, vllm_python, vllm_options)
            supervisor = stack.enter_context(_engines(wish, root, lambda: stop.asked, tell))
        if supervisor is None or supervisor.wait_ready(lambda: stop.asked):
            turn = None if replica is None else _turn(replica, root, lambda: stop.asked, tell)
            if turn is not None:
                _require_keys(root, where, settings, folder)
            if turn is not None or replica is None:
                _serve(root, settings, sockets, supervisor, fleet, where, lambda: stop.asked, tell, turn)
    tell("stopped; nothing is lost")
    return 0


def _settings(upstreams: tuple[str, ...], where: Where, given: dict[str, Any]) -> Settings:
    from orchestrator.server.listen import is_loopback
    from orchestrator.server.settings import Settings
    from orchestrator.server.webhooks import target_of

    secret = os.environ.get(SECRET_VARIABLE)
    target_of(given["webhook"], secret)
    required = given["require_keys"]
    if required is None:
        required = where.port is not None and not is_loopback(where.host)
    api_key = _api_key(given["api_key_env"])
    return Settings(
        upstreams=upstreams,
        api_key=api_key,
        request_timeout=given["request_timeout"],
        max_rows=given["max_rows"],
        max_file_bytes=given["max_file_size"],
        body_memory=given["body_memory"],
        require_keys=required,
        webhook_url=given["webhook"],
        webhook_secret=secret,
        log_prompts=given["log_prompts"],
        cost_per_hour=given["cost_per_hour"],
        # If the upstream requires a key, it may bill answers, so a stop waits for them.
        stop_seconds=STOP_SECONDS if api_key is None else given["request_timeout"],
        allow_endpoints=given["allow_endpoints"],
        aliases=given["aliases"],
    )


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"--api-key-env: {variable} is not set")
    return key


def _teller(log_format: str) -> Tell:
    import logging

    from orchestrator.server.logs import configure

    configure(log_format)
    if log_format == "json":
        return logging.getLogger("orchestrator.serve").info
    return lambda text: click.echo(f"orch: {text}", err=True)


def _turn(replica: str, root: Path, is_over: Callable[[], bool], tell: Tell) -> Replica | None:
    from orchestrator.core.replica.takeover import take_turn
    from orchestrator.server.replicated_folder import LAYOUT

    return take_turn(replica, root, LAYOUT, is_over, tell)


def _claim_addresses(stack: ExitStack, root: Path, where: Where) -> list[socket.socket]:
    """Claim the folder and addresses before any slow start-up work, so that no second server can use them."""
    from orchestrator.server.listen import bind_tcp, bind_unix, only_server

    stack.enter_context(only_server(root))
    sockets = []
    if where.port is not None:
        sockets.append(stack.enter_context(closing(bind_tcp(where.host, where.port))))
    if where.uds is not None:
        sockets.append(stack.enter_context(closing(bind_unix(where.uds))))
        stack.callback(where.uds.unlink, missing_ok=True)
    return sockets


def _require_keys(root: Path, where: Where, settings: Settings, folder: Path | None) -> None:
    from orchestrator.server.database import FILE_NAME, ServerDatabase
    from orchestrator.server.keys import Keys

    if not settings.require_keys:
        return
    with closing(ServerDatabase(root / FILE_NAME)) as database:
        if any(key.revoked_at is None for key in Keys(database).all()):
            return
    option = "" if folder is None else f" --dir {folder}"
    raise UsageError(
        f"serving on {where.host} requires keys, and there are none yet",
        hint=f"orch keys add NAME{option}    (or --no-require-keys: anyone who reaches this address may use it)",
    )


@contextmanager
def _engines(wish: Any, root: Path, is_over: Callable[[], bool], tell: Tell) -> Iterator[Supervisor]:
    from orchestrator.server.engines.launch import plan_engines
    from orchestrator.server.engines.supervisor import Supervisor
    from orchestrator.server.listen import outlived
    from orchestrator.server.open_files import allow_many_files

    deadline, told = time.monotonic() + LEFTOVER_SECONDS, False

    def pause() -> bool:
        nonlocal told
        if not told:
            tell("waiting for the engines of a killed server to end")
        told = True
        time.sleep(PAUSE_SECONDS)
        return not is_over() and time.monotonic() < deadline

    allow_many_files()
    # Each engine's guard holds the lock until the engine's last process has ended and its memory is free.
    with outlived(root, "engines.lock", pause) as held:
        fleet = plan_engines(wish, root, os.environ)
        for note in fleet.notes:
            tell(note)
        for engine in fleet.engines:
            tell(f"starting vLLM on {engine.name}: {wish.model} (log: {engine.log})")
        with Supervisor(fleet.engines, tell=tell, held=(held,)) as supervisor:
            yield supervisor
            tell("stopping the engines")


def _serve(
    root: Path,
    settings: Settings,
    sockets: list[socket.socket],
    supervisor: Supervisor | None,
    fleet: RayEngines | None,
    where: Where,
    is_stopped: Callable[[], bool],
    tell: Tell,
    replica: Replica | None,
) -> None:
    from msgspec.structs import replace

    from orchestrator.server import listen

    if supervisor is not None:
        settings = replace(settings, upstreams=(*settings.upstreams, *supervisor.urls))
    if fleet is not None:
        settings = fleet.added(settings)

    def is_over() -> bool:
        return is_stopped() or (supervisor is not None and supervisor.hopeless is not None)

    async def greet(service: Service) -> None:
        if supervisor is not None:
            service.engines = supervisor.report
        async with nullcontext() if fleet is None else fleet.steered(service):
            await _greet(service, sockets, where, tell)
            await service.ending.wait()  # cancelled when the server ends

    listen.serve(root, settings, sockets, is_over=is_over, greet=greet, replica=replica)
    if supervisor is not None and not is_stopped() and (error := supervisor.hopeless) is not None:
        raise error


async def _greet(service: Service, sockets: list[socket.socket], where: Where, tell: Tell) -> None:
    import asyncio

    keys = "with keys" if service.settings.require_keys else "without keys"
    if where.uds is not None:
        tell(f"serving {service.root} at the Unix socket {where.uds}, {keys}")
    if where.port is not None:
        url = _client_url(where.host, sockets[0].getsockname()[1])
        secret = "...    # the secret that `orch keys add` showed" if service.settings.require_keys else "none-needed"
        tell(
            f"serving {service.root} at {url}, {keys}\n"
            f"  export OPENAI_BASE_URL={url}/v1\n"
            f"  export OPENAI_API_KEY={secret}"
        )
    deadline = time.monotonic() + FIRST_LOOK_SECONDS
    while any(upstream.problem for upstream in service.upstreams) and time.monotonic() < deadline:
        await asyncio.sleep(PAUSE_SECONDS)
    for upstream in service.upstreams:
        models = f" ({', '.join(upstream.models[:5])})" if upstream.models else ""
        state = f"{upstream.problem}; it gets rows once it works" if upstream.problem else f"ready{models}"
        tell(f"upstream {upstream.shown}: {state}")


def _client_url(host: str, port: int) -> str:
    shown = HOST if host in ("", "0.0.0.0") else "::1" if host == "::" else host
    return f"http://{url_host(shown)}:{port}"
