"""Long documents: once all parts are answered, orch combines their answers into the request for the whole document.

The request's line is appended to the job's file before the row refers to it. A process killed in between leaves an
unused line, and the request is made again. If a part fails, the row of the document fails too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from orchestrator.core import batch_api
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import FinishedRow, Job, RequestState
from orchestrator.pipeline.collect.appended_requests import append_requests
from orchestrator.pipeline.finish.merge import ResultLines
from orchestrator.policy.answer_text import text_of
from orchestrator.policy.coded_lines import bare_text
from orchestrator.policy.requests import reduce_line
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.settings.task_spec import Task
from orchestrator.store import Store
from orchestrator.store.reduce_rows import UnaskedRow, Unmade

CHUNK = 100
_decode_result = json_decoder(batch_api.ResultLine).decode


def reduce(store: Store, home: Home, job: Job, now: datetime) -> bool:
    """Make the requests of documents whose parts are all answered. True if a row moved.

    Raises JobFilesError, StorageError; requests made before an error are kept.
    """
    tasks = {task.id: task for task in tasks_of(job) if task.long is not None}
    if not tasks:
        return False
    moved = 0
    while complete := store.stages.complete(job.id, CHUNK):
        made = {of.seq: _request_of(store, home, job, of, tasks[of.task]) for of in complete}
        faults = [fault for fault in made.values() if isinstance(fault, UnaskedRow)]
        lines = [(seq, line) for seq, line in made.items() if isinstance(line, bytes)]
        spans = append_requests(home.requests(job.id), lines) if lines else {}
        moved += store.stages.made(job.id, spans, faults, now)
    return bool(moved)


def _request_of(store: Store, home: Home, job: Job, of: Unmade, task: Task) -> bytes | UnaskedRow:
    parts = list(store.stages.parts(job.id, of))
    for part in parts:
        if part.state is not RequestState.SUCCEEDED:
            why = f"part {part.part} of {of.parts} is {part.state}: {part.error_code}: {part.error_message}"
            return UnaskedRow(of.seq, part.state, "part_failed", why)
    assert of.max_output is not None, "a task's rows have a bound"
    line = reduce_line(task, of.custom_id, of.max_output, list(_answers(home, parts, task)))
    return line if isinstance(line, bytes) else UnaskedRow(of.seq, RequestState.FAILED, *line)


def _answers(home: Home, parts: Sequence[FinishedRow], task: Task) -> Iterator[str]:
    lines = ResultLines(home.results)
    try:
        for part in parts:
            line = lines.read(part)
            assert line is not None, "what succeeded has a line"
            yield bare_text(text_of(_decode_result(line)) or "", task.output_schema)
    finally:
        lines.close()
