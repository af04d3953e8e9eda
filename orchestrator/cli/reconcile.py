"""`orch reconcile`: differences between providers' batches and this home's records."""

from __future__ import annotations

from collections.abc import Iterator

import click

from orchestrator.backends import BATCH_GONE, Backend, RemoteBatch
from orchestrator.backends.open import open_backend
from orchestrator.backends.reconcile import Comparison, FindingKind, compare, is_open
from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core.counts import number_of
from orchestrator.core.errors import UsageError
from orchestrator.core.shards import Shard
from orchestrator.library.context import Context, opened, say_keys
from orchestrator.reports.removed_backends import of_home
from orchestrator.settings.backends import HostedBackend


@click.command()
@click.argument("backends", metavar="[BACKEND]...", nargs=-1)
@click.option("--delete-files", is_flag=True, help="Delete uploaded input files whose shard is over.")
@json_option
def reconcile(backends: tuple[str, ...], delete_files: bool, as_json: bool) -> int:
    """Compare hosted backends with this home's records. Changes nothing unless you request deletion of files.

    Exits with 1 if a difference needs attention.
    """
    found = []
    with opened() as context:
        say_keys(context.config)
        removed = of_home(context.store, context.home.identity(), context.config.backends)
        for name, shards in removed.items():
            told = number_of(len(shards), "batch")
            say(f"orch: {name} is no longer in {context.config.path}: {told} there not compared; put it back")
        for name, settings in _chosen(context, backends):
            api = open_backend(name, settings)
            try:
                comparison = _compare(context, name, api)
                found.append(comparison)
                if not as_json:
                    _show(comparison)
                if delete_files:
                    for file in comparison.files:
                        api.forget_file(file.id)
                    say(f"orch: {name}: {len(comparison.files):,} input files deleted")
            finally:
                api.close()
    if as_json:
        print_json([comparison.to_json() for comparison in found])
    return 0 if not removed and all(comparison.is_well for comparison in found) else 1


def _chosen(context: Context, names: tuple[str, ...]) -> list[tuple[str, HostedBackend]]:
    all_of_them = context.config.backends
    hosted = {n: s for n, s in all_of_them.items() if isinstance(s, HostedBackend)}
    if not hosted:
        raise UsageError("no hosted backend is configured: there is nothing to compare")
    for name in names:
        if name not in all_of_them:
            raise UsageError(f"there is no backend {name!r}", hint=f"known: {', '.join(hosted)}")
        if name not in hosted:
            raise UsageError(f"backend {name} is our own server: there is nothing to compare")
    return [(name, settings) for name, settings in hosted.items() if not names or name in names]


def _compare(context: Context, name: str, api: Backend) -> Comparison:
    account = api.account()
    before = {shard.id: shard for shard in context.store.shards.of_backend(name)}
    batches = list(api.batches())
    # Shards are read after the list, because a daemon may create a batch during the listing.
    shards = list(context.store.shards.of_backend(name))
    moved = {shard.id for shard in shards if before.get(shard.id) != shard}
    batches += _left_out(api, account, shards, {batch.id for batch in batches})
    return compare(name, account, shards, batches, api.files(), moved)


def _left_out(api: Backend, account: str, shards: list[Shard], listed: set[str]) -> Iterator[RemoteBatch]:
    """Yield existing batches that the backend's list omits. Query each batch before counting it as gone."""
    for shard in shards:
        if shard.batch_id is None or not is_open(shard) or shard.batch_id in listed:
            continue
        if shard.account in (None, account):
            batch = api.retrieve(shard.batch_id)
            if batch is not None and all(problem.code != BATCH_GONE for problem in batch.problems):
                yield batch


def _show(comparison: Comparison) -> None:
    known = "" if comparison.known == comparison.batches else f"{comparison.known:,} of them "
    there = number_of(comparison.batches, "batch")
    show(f"{comparison.backend} ({comparison.account}): {there} there, {known}known here and the same")
    foreign = 0
    for finding in comparison.findings:
        if finding.kind is FindingKind.FOREIGN:
            foreign += 1
            continue
        show(f"  {finding.kind}: {finding.id}: {finding.text}")
    if foreign:
        show(f"  created by something else: {number_of(foreign, 'batch')} (--json lists them)")
