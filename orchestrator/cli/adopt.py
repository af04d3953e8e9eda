"""`orch adopt`: continue a home that lost its id or was copied."""

from __future__ import annotations

import click

from orchestrator.cli.output import json_option, print_json, show
from orchestrator.core.counts import number_of
from orchestrator.core.errors import RefusedError
from orchestrator.daemon.lock import daemon_lock
from orchestrator.settings.discovery import locate
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.home_identity import adopt as go_on


@click.command()
@click.argument("home_id", metavar="[HOME_ID]", required=False)
@json_option
def adopt(home_id: str | None, as_json: bool) -> int:
    """Continue a home whose home.id is lost, or that is a copy of another home.

    If home.id is lost, the home gets the id HOME_ID. A copy replaces the home it was copied from. The other home then
    sends no more rows; stop its daemon first.
    """
    place = locate()
    home = Home(place.home)
    with Store.open(place.database_url, timeout=place.database_timeout) as store, daemon_lock(home) as holder:
        if holder is not None:
            raise RefusedError(f"{holder} works in this home", hint="stop it first")
        identity = go_on(home, store, home_id)
        jobs = len(store.jobs.unfinished(identity))
    if as_json:
        print_json({"home": identity, "root": str(home.root), "unfinished": jobs})
    else:
        show(f"this home is {identity} now; {number_of(jobs, 'unfinished job')}")
    return 0
