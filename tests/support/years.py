"""A home with years of nightly runs behind it: built, answered and finished by the pipeline's own stages."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

from orchestrator.backends.received_files import store as write_file
from orchestrator.core.model import Job, Span
from orchestrator.core.shards import ShardState
from orchestrator.pipeline.build import builder, reused_answers, submission
from orchestrator.pipeline.finish import finisher
from orchestrator.settings.config import Config, load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.stored import NOW, ranges, shard, succeeded

TOML = """
[models]
small = "mini"

[backends.gpu]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true
"""


class Years:
    """`run` makes a finished run of a job file over documents of these texts, so many days before `NOW`."""

    def __init__(self, folder: Path, store: Store, database_url: str) -> None:
        self.folder = folder
        self.store = store
        self.home = Home(folder / "home")
        (folder / "orch.toml").write_text(TOML)
        self.place = Place(folder / "orch.toml", self.home.root, database_url, 10.0)

    @property
    def config(self) -> Config:
        return load(self.place)

    def build(self, days: float, *texts: str, name: str = "a", built: bool = True) -> Job:
        """A job that is built, or being built, and not run."""
        docs = self.folder / f"docs-{name}"
        docs.mkdir(exist_ok=True)
        for path in docs.iterdir():
            path.unlink()
        for text in texts:
            (docs / f"{text}.txt").write_text(text)
        file = self.folder / f"{name}.yaml"
        task = {"id": "t", "prompt": "Who signs", "model": "small"}
        file.write_text(json.dumps({"name": name, "documents": docs.name, "tasks": [task]}))
        now = NOW - timedelta(days=days)
        job = submission.draft(file, self.config, self.home, submission.Options(), now)
        self.store.jobs.add(job, {})
        builder.build(self.store, self.home, job, now, asked=reused_answers.asked_of(self.config, job))
        if built:
            self.store.jobs.mark_built(job.id, now)
        return self.store.jobs.get(job.id)

    def answer(self, job: Job) -> None:
        """Every row that waits is answered, with a result line in a collected file."""
        for number, found in enumerate(ranges(self.store, job), 1):
            new = shard(job, number, model=found.model, rows=found.rows, bytes=found.bytes)
            self.store.shards.add(new, found)
            lines, settled, offset = [], [], 0
            for row in self.store.rows.of_shard(new.id):
                message = {"role": "assistant", "content": f"{job.id} says {row.custom_id}"}
                body = {"choices": [{"message": message, "finish_reason": "stop"}]}
                line = json.dumps(
                    {"custom_id": row.custom_id, "response": {"status_code": 200, "body": body}}
                ).encode()
                lines.append(line + b"\n")
                settled.append(Settled(*succeeded(row.seq, "0.5", span=Span(offset, len(line)))))
                offset += len(line) + 1
            write_file(lines, self.home.results(new.id, "output"))
            self.store.rows.settle(new.id, job.id, "gpu", settled, job.created_at, "mini")
            for state in (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED, ShardState.COLLECTED):
                self.store.shards.move(self.store.shards.get(new.id), state)

    def run(self, days: float, *texts: str, name: str = "a") -> Job:
        """A run that is finished."""
        job = self.build(days, *texts, name=name)
        self.answer(job)
        finisher.Finisher(self.store, self.home, lambda: job.created_at).step(job)
        return self.store.jobs.get(job.id)

    def outputs(self, job: Job) -> dict[str, str]:
        """Each document's answer, read from the result files anew. Raises StorageError where one is gone."""
        lines = finisher.merged_lines(self.store, self.home, job, style="jsonl")
        rows = [json.loads(line) for line in lines]
        return {Path(row["document"]).stem: row["output"] for row in rows}

    def folders(self) -> set[str]:
        """What lies in the home's folder of jobs."""
        return {path.name for path in (self.home.root / "jobs").iterdir()}


def day(days: float) -> datetime:
    """So many days before `NOW`."""
    return NOW - timedelta(days=days)
