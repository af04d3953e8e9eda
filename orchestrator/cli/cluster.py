"""`orch cluster`: the Ray cluster of a backend of kind `ray`, and this machine as a node of it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core.counts import number_of
from orchestrator.core.errors import UsageError
from orchestrator.library.context import opened
from orchestrator.settings.backends import RayBackend
from orchestrator.settings.config import Config

GIB = 1024**3
FOLDER = "cluster"
backend_option = click.option("--backend", metavar="NAME", help="The backend, if several are of kind `ray`.")


@click.group()
def cluster() -> None:
    """Show the Ray cluster that engines run on; make this machine a node of it.

    \b
    orch cluster status
    orch cluster up                          # the head of a new cluster
    orch cluster up --join 10.0.0.5:6379     # a node of an existing cluster
    """


@cluster.command()
@backend_option
@json_option
def status(backend: str | None, as_json: bool) -> int:
    """Show the nodes of the cluster and its free resources."""
    from orchestrator.ray.local_node import node_of
    from orchestrator.ray.process import cluster_status

    with opened() as context:
        name, settings = _chosen(context.config, backend)
        node = node_of(context.home.root / FOLDER)
    found = cluster_status(_python(settings), settings.address, os.environ)
    free = {"cpus": found.free.get("CPU", 0.0), "gpus": found.free.get("GPU", 0.0)}
    if as_json:
        started = None if node is None else node.pid
        print_json({"backend": name, "ray": found.ray, "nodes": found.nodes, "free": free, "node_process": started})
        return 0
    alive = [one for one in found.nodes if one["alive"]]
    nodes = f"{number_of(len(alive), 'node')}, {free['gpus']:g} GPUs and {free['cpus']:g} CPUs free"
    show(f"{name}: Ray {found.ray}, {nodes}")
    for one in alive:
        has = f"{one['gpus']:g} GPUs, {one['cpus']:g} CPUs, {one['memory_bytes'] / GIB:.0f} GiB"
        show(f"  {one['id'][:8]} {one['address']}: {has}")
    return 0


@cluster.command()
@backend_option
@click.option("--join", metavar="HOST:PORT", help="Join the cluster whose head is at this address.")
@json_option
@click.argument("ray_options", nargs=-1, type=click.UNPROCESSED)
def up(backend: str | None, join: str | None, as_json: bool, ray_options: tuple[str, ...]) -> int:
    """Make this machine a Ray node, which runs until `orch cluster down`.

    Arguments after `--` go to `ray start` unchanged. Anyone who reaches an open Ray cluster can run code on it. Keep
    the cluster in a closed network, or set RAY_AUTH_MODE=token (`orch help ray`).
    """
    from orchestrator.ray.local_node import LOG, start_node

    with opened() as context:
        _, settings = _chosen(context.config, backend)
        folder = context.home.root / FOLDER
    node = start_node(folder, _python(settings), join, ray_options, os.environ)
    if as_json:
        print_json({"node_process": node.pid, "joined": join, "log": str(folder / LOG)})
    else:
        what = "the head of a new cluster" if join is None else f"a node of the cluster at {join}"
        say(f"orch: this machine is {what} (process {node.pid}, log: {folder / LOG})")
    return 0


@cluster.command()
@json_option
def down(as_json: bool) -> int:
    """Stop the Ray node that `orch cluster up` started, with its engines and tasks."""
    from orchestrator.ray.local_node import end_node

    with opened() as context:
        was_there = end_node(context.home.root / FOLDER)
    if as_json:
        print_json({"ended": was_there})
    else:
        say("orch: the Ray node has ended" if was_there else "orch: no Ray node of this home runs")
    return 0


def _chosen(config: Config, backend: str | None) -> tuple[str, RayBackend]:
    found = {name: one for name, one in config.backends.items() if isinstance(one, RayBackend)}
    known = ", ".join(found) or "none"
    if backend is not None:
        if backend not in found:
            raise UsageError(f"{backend} is not a backend of kind `ray`", hint=f"known: {known}")
        return backend, found[backend]
    if len(found) != 1:
        told = "add one to orch.toml (`orch help ray`)" if not found else f"name one with --backend: {known}"
        raise UsageError(
            "there is no backend of kind `ray`" if not found else f"{known} are of kind `ray`", hint=told
        )
    return next(iter(found.items()))


def _python(settings: RayBackend) -> Path:
    return Path(settings.ray_python).expanduser()
