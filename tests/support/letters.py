"""A chat server that a test may break and mend, and a job of letters in front of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cli import Orch
from tests.support.scripted import Answer, Asked, scripted

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: t, model: small, max_tokens: 20, prompt: "What is it?", temperature: 0%(task)s}
models: {small: %(model)s}
"""


class Gateway:
    """What it refuses is looked up at each request; `bodies` are all that it was asked."""

    def __init__(self) -> None:
        self.refuses: Callable[[dict[str, Any]], Answer | None] = lambda body: None
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    def answer(self, asked: Asked) -> Answer:
        if asked.path == "/v1/models":
            return Answer({"object": "list", "data": [{"id": "some-model", "object": "model"}]})
        if asked.path != "/v1/chat/completions":
            return Answer({"detail": "Not Found"}, 404)
        body = json.loads(asked.body)
        self.bodies.append(body)
        return self.refuses(body) or _answered(body)


def _answered(body: dict[str, Any]) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", "content": '{"a": "b"}'}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return Answer({"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage})


@contextmanager
def gateway() -> Iterator[Gateway]:
    """A server that answers every chat completion."""
    found = Gateway()
    with scripted(found.answer) as at:
        found.url = at.base_url
        yield found


def refusing(status: int, message: str, **words: Any) -> Answer:
    return Answer({"error": {"message": message, **words}}, status)


def documents(folder: Path, rows: int) -> None:
    (folder / "documents").mkdir(exist_ok=True)
    for number in range(rows):
        (folder / "documents" / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")


def job_file(folder: Path, task: str = "", model: str = "some-model") -> None:
    """Write job.yaml; `task` is more of its task."""
    (folder / "job.yaml").write_text(JOB % {"task": task, "model": model}, encoding="utf-8")


def run(orch: Orch, folder: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    """What `orch run` says: its exit code, its JSON, and what stands on stderr."""
    done = orch("run", "job.yaml", "--json", *more, cwd=folder)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def counts(orch: Orch, folder: Path) -> dict[str, int]:
    """How many rows of the job are in which state."""
    told = orch("status", "letters", "--json", cwd=folder)
    rows = json.loads(told.stdout)["requests"]
    return {name: rows[name] for name in ("pending", "succeeded", "failed")}
