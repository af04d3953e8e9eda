"""Refusal of a row that was asked first, applied to all tasks that ask its model with the same fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.core.model import Job
from orchestrator.pipeline.collect.common_refusals import OF_REQUEST, CommonRefusal
from orchestrator.pipeline.collect.unanswered import EndedShard
from orchestrator.pipeline.dialects import line_writer
from orchestrator.policy.preflight import fields_of
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import rung_of
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.store import Store
from orchestrator.store.records import InShard


def refused_tasks(store: Store, home: Home, ended: EndedShard, rows: Iterable[InShard]) -> dict[str, CommonRefusal]:
    """Return the refusal of a row asked first, for each task that it holds back; empty if it was not refused."""
    shard = ended.shard
    if shard.refusal_code is None:
        return {}
    rule = min(OF_REQUEST)
    common = CommonRefusal(shard.refusal_code, shard.refusal or "", rule, 1)
    tasks = {row.task for row in rows} | set(_alike(store, home, ended))
    return dict.fromkeys(sorted(tasks), common)


def _alike(store: Store, home: Home, ended: EndedShard) -> Iterator[str]:
    """Yield the tasks whose requests to the shard's model have the fields of its row."""
    job, shard = ended.job, ended.shard
    refused = store.refused_fields.of(shard.backend, ended.model, shard.endpoint, shard.intended_at or ended.now)
    writer = line_writer(job, ended.handle.recipient, ended.model, shard.endpoint, refused)
    for task in _asking(job, shard.model):
        for span in store.sizes.sample(job.id, task, 1):
            try:
                with home.requests(job.id).open("rb") as source:
                    source.seek(span.offset)
                    fields = fields_of(writer.line(task, source.read(span.length)))
            except (OSError, ValueError):
                continue
            if fields == shard.preflight:
                yield task


def _asking(job: Job, alias: str) -> list[str]:
    name, _ = rung_of(alias)
    return [task.id for task in tasks_of(job) if name in task.aliases.values()]
