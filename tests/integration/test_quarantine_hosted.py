"""A row in quarantine over the nights of a job file: not asked again until it is released, or is another one."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.core.clock import now
from orchestrator.pipeline.build.submission import How, Options, submit
from orchestrator.policy.row_errors import is_passing
from tests.support.hostedjob import Desk


def job_file(desk: Desk) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for name, fault in (("a", ""), ("b", " [[fault:filtered]]")):
        (folder / f"{name}.txt").write_text(f"Letter {name}.{fault}", encoding="utf-8")
    path = desk.folder / "job.yaml"
    task = {"id": "t", "prompt": "What of it?", "model": "m", "max_tokens": 60, "schema": {"type": "object"}}
    # JSON is YAML.
    given = {"name": "night", "documents": "documents", "tasks": [task], "models": {"m": "m"}}
    path.write_text(json.dumps(given), encoding="utf-8")
    return path


def night(desk: Desk, path: Path) -> tuple[How, int]:
    """What a night makes of the file, and how many rows it sends."""
    taken = submit(desk.store, desk.home, desk.config, path, Options(), now, lambda *_: None)
    desk.finish(taken.job)
    fresh = [row for row in desk.store.rows.finished(taken.job.id) if row.carried_from is None]
    return taken.how, 0 if taken.how is How.UNCHANGED else len(fresh)


def held(desk: Desk) -> list[tuple[str, str, int]]:
    found = desk.store.quarantine.held(desk.home.identity(), is_passing)
    return [(one.document, one.code, one.runs) for one in found]


def test_a_document_stays_until_it_is_released_or_asked_something_else(desk: Desk) -> None:
    desk.backend()
    path = job_file(desk)
    assert night(desk, path) == (How.NEW, 2)
    assert held(desk) == [("documents/b.txt", "content_filter", 1)]
    assert night(desk, path) == (How.UNCHANGED, 0)

    one = list(desk.store.quarantine.held(desk.home.identity(), is_passing))
    desk.store.quarantine.release(one, now())
    assert held(desk) == []
    assert night(desk, path) == (How.NEW, 1)
    assert held(desk) == [("documents/b.txt", "content_filter", 2)]
    assert night(desk, path) == (How.UNCHANGED, 0)

    (desk.folder / "documents" / "b.txt").write_text("Another letter.", encoding="utf-8")
    path = desk.folder / "job.yaml"
    assert night(desk, path) == (How.NEW, 1)
    assert held(desk) == []
