"""Runs of a job file as a home has them after some nights: rows, result files, costs; no daemon is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from orchestrator.core.model import Job, Outcome, Price, RequestState, Span, Usage
from orchestrator.core.shards import ShardState
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.stored import job, row, settle, sharded

SCHEMA = {"type": "object", "properties": {"party": {"type": "string"}, "end": {}}, "required": ["party"]}
SPEC: dict[str, Any] = {
    "name": "contracts",
    "documents": [{"path": "docs"}],
    "tasks": [{"id": "t", "prompt": "Who?", "model": "m", "output_schema": SCHEMA}],
}


@dataclass(frozen=True)
class Bad:
    """A row that fails; without a request where its document cannot be read."""

    code: str
    message: str
    unreadable: bool = False


Answer = dict[str, Any] | str | Bad


@dataclass
class Nights:
    """Runs of one job file, one after the other."""

    store: Store
    home: Home
    number: int = 0

    def run(self, answers: Mapping[str, Answer], *, at: datetime, cost: str = "0.5", **facts: Any) -> Job:
        """A finished run: each document's answer to the `task`. Facts: the job's, and `asked` (the documents'
        words, by name: those that the earlier run had with the same words carry over)."""
        self.number += 1
        asked, task = facts.pop("asked", {}), facts.pop("task", "t")
        given = {"spec": SPEC, "created_at": at, "home": self.home.identity(), "kind": facts.pop("kind", "documents")}
        new = job(facts.pop("id", f"contracts-{self.number}"), **{**given, **facts})
        self.store.jobs.add(new, {})
        rows = []
        for seq, (name, answer) in enumerate(answers.items()):
            problem = (answer.code, answer.message) if isinstance(answer, Bad) and answer.unreadable else None
            words = asked.get(name, json.dumps(str(answer)))
            made = row(
                seq, span=Span(seq * 100, 0 if problem else 99), document=name, custom_id=f"c-{name}",
                task=task, fingerprint=words, problem=problem,
            )  # fmt: skip
            rows.append(made)
        runs = [run.id for run in reversed(self.store.jobs.of_series(new.series)) if run.id != new.id]
        known = self.store.known.earlier(runs, {one.custom_id: one.fingerprint for one, _ in rows})
        self.store.rows.add(new.id, rows, known, at)
        self.store.jobs.mark_built(new.id, at)
        if self.store.rows.has_waiting(new.id):
            self._answer(new, answers, cost, at)
        return self.store.jobs.get(new.id)

    def _answer(self, new: Job, answers: Mapping[str, Answer], cost: str, at: datetime) -> None:
        found = sharded(self.store, new, state=ShardState.SUBMITTED)
        path = self.home.results(found.id, "output")
        path.parent.mkdir(parents=True, exist_ok=True)
        outcomes: list[Any] = []
        with path.open("wb") as file:
            for seq, answer in enumerate(answers.values()):
                if isinstance(answer, Bad):
                    outcomes.append(
                        (
                            Outcome(seq, RequestState.FAILED, error_code=answer.code, error_message=answer.message),
                            None,
                        )
                    )
                    continue
                line = result_line(f"c-{seq}", answer)
                span = Span(file.tell(), len(line))
                file.write(line + b"\n")
                done = Outcome(
                    seq, RequestState.SUCCEEDED, kind="output", span=span, usage=Usage(100, 0, 10), model="m"
                )
                outcomes.append((done, Price(Decimal(cost), "list")))
        mine = {one.seq for one in self.store.rows.of_shard(found.id)}
        settle(self.store, found, *(one for one in outcomes if one[0].seq in mine), now=at)

    def finish(self, of: Job, at: datetime) -> Job:
        """The end of a run."""
        self.store.jobs.finish(of.id, "/out.jsonl", at)
        return self.store.jobs.get(of.id)


def result_line(custom_id: str, answer: dict[str, Any] | str) -> bytes:
    """A result line with an answer."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    message = {"role": "assistant", "content": text}
    body = {
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    return json.dumps(
        {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}
    ).encode()
