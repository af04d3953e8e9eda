"""Commands that check: validate, doctor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from orchestrator import config as settings
from orchestrator import jobspec
from orchestrator.cli.context import json_option, print_json
from orchestrator.errors import InputError, OrchError
from orchestrator.home import Home
from orchestrator.model import JobKind


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of job files, for editors.")
@json_option
def validate(file: Path | None, schema: bool, as_json: bool) -> int:
    """Check a job or batch file, and every document and template, without running it."""
    from orchestrator.pipeline.check import check_file

    if schema:
        print_json(jobspec.json_schema())
        return 0
    if file is None:
        raise click.UsageError("give a job file or a batch file, or --schema")
    found = check_file(file, settings.load())
    if as_json:
        print_json(
            {
                "file": str(file),
                "kind": found.kind,
                "documents": found.documents,
                "requests": found.requests,
                "warnings": list(found.warnings),
                "problems": [{"document": key, "code": code, "message": text} for key, code, text in found.problems],
            }
        )
        return 0
    source = f" of {found.documents:,} documents" if found.kind is JobKind.DOCUMENTS else ""
    click.echo(f"{file}: {found.requests:,} requests{source}, nothing wrong with the file")
    for warning in found.warnings:
        click.echo(f"  warning: {warning}")
    for key, code, text in found.problems:
        click.echo(f"  {key}: {code}: {text}")
    return 0


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check configuration, home, database and upstreams; nothing is sent that costs anything."""
    checks = list(_examine())
    if as_json:
        print_json([{"check": name, "ok": ok, "found": text} for name, ok, text, _ in checks])
    else:
        for name, ok, text, _ in checks:
            click.echo(f"{'ok  ' if ok else 'BAD '} {name}: {text}")
    return max((code for _, ok, _, code in checks if not ok), default=0)


def _examine() -> Iterator[tuple[str, bool, str, int]]:
    """`(what, ok, found, exit code)` for each thing that must be well."""
    try:
        config = settings.load()
    except InputError as error:
        yield "config", False, str(error), error.exit_code
        return
    yield "config", True, str(config.path or "no orch.toml; the defaults hold"), 0
    yield from _examine_home(config)
    if not config.backends:
        yield "backends", False, "none is configured; add [backends.local] to orch.toml", 2
    for name, backend in config.backends.items():
        price = "idle, free" if backend.idle else f"${backend.cost_per_hour} per upstream hour"
        yield f"backend {name}", True, f"{backend.kind}, location {backend.location}, {price}", 0
        for url in backend.upstreams:
            yield _examine_upstream(name, url, backend.api_key_env)


def _examine_home(config: settings.Config) -> Iterator[tuple[str, bool, str, int]]:
    from orchestrator.engine import running_engine
    from orchestrator.store import Store

    home = Home(config.home)
    try:
        identity = home.identity()
        holder = running_engine(home)
        yield "home", True, f"{home.root} ({identity}); engine: {holder or 'none runs'}", 0
        with Store.open(config.place.database_url, timeout=config.place.database_timeout) as store:
            yield "database", True, f"{len(store.jobs.newest())} jobs", 0
    except OrchError as error:
        yield "home", False, str(error), error.exit_code


def _examine_upstream(name: str, url: str, key_env: str | None) -> tuple[str, bool, str, int]:
    import os

    import httpx2

    what = f"upstream {url}"
    key = os.environ.get(key_env or "")
    if key_env and not key:
        return what, False, f"the environment variable {key_env} of backend {name} is not set", 2
    try:
        answer = httpx2.get(f"{url}/models", headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=5.0)
        if answer.status_code != 200:
            return what, False, f"answers with status {answer.status_code}", 4
        names = ", ".join(str(model.get("id")) for model in answer.json()["data"])
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        return what, False, f"does not answer as an OpenAI-compatible server does: {error}", 4
    return what, True, f"serves {names}", 0
