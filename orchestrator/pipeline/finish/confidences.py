"""Checks for merging a job's rows: the checks of its tasks, plus confidence in labels from known answers.

A labelling task with log probabilities gets a calibration curve. Each merge recomputes the curve from the rows and
the current file of known answers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from orchestrator.core.errors import InputError, StorageError
from orchestrator.core.model import Job, RequestState
from orchestrator.pipeline.finish import merge
from orchestrator.policy import confidence
from orchestrator.policy.answer_check import AnswerCheck, check_of
from orchestrator.policy.confidence import ConfidenceCurve
from orchestrator.policy.requests import custom_id
from orchestrator.settings import known_answers
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import spec_of, tasks_of
from orchestrator.store import Store

log = logging.getLogger(__name__)
CHUNK = 500


class _Of:
    """A job's tasks as a cache key, so that schemas are compiled once per job."""

    __slots__ = ("id", "name", "tasks")

    def __init__(self, job: Job) -> None:
        self.id, self.name, self.tasks = job.id, job.name, tasks_of(job)

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Of) and other.id == self.id and other.tasks == self.tasks


def checks_of(job: Job) -> Mapping[str, AnswerCheck]:
    """Return the checks of a job's answers, by task; empty for a batch file."""
    return _checks(_Of(job))


@lru_cache(maxsize=64)
def _checks(of: _Of) -> Mapping[str, AnswerCheck]:
    return {task.id: check_of(task, job_name=of.name) for task in of.tasks}


def merging_checks(store: Store, home: Home, job: Job) -> Mapping[str, AnswerCheck]:
    """Return the checks by task. If there are known answers, they also give the confidence of labels."""
    checks = checks_of(job)
    wanted = {task.id: task for task in tasks_of(job) if task.logprobs}
    spec = spec_of(job)
    if not wanted or spec is None or spec.gold is None:
        return checks
    try:
        known = known_answers.read(Path(job.source).parent / spec.gold, known_answers.tasks_of(spec))
    except InputError as error:
        log.warning("%s: labels have no confidence: %s", job.id, error)
        return checks
    expected = {custom_id(one.document, one.task): one for one in known if one.task in wanted}
    seen: dict[str, list[tuple[float, bool]]] = {}
    names = sorted(expected)
    for start in range(0, len(names), CHUNK):
        for name, probability, label in _labels(store, home, job, names[start : start + CHUNK]):
            if (right := confidence.is_right(expected[name].expect, label)) is not None:
                seen.setdefault(expected[name].task, []).append((probability, right))
    curves: dict[str, ConfidenceCurve | None] = {task: confidence.fitted_curve(known) for task, known in seen.items()}
    return {**checks, **{task: check_of(wanted[task], curve, job_name=job.name) for task, curve in curves.items()}}


def _labels(store: Store, home: Home, job: Job, names: list[str]) -> list[tuple[str, float, str]]:
    rows = [row for row in store.rows.finished(job.id, names) if row.state is RequestState.SUCCEEDED]
    found = []
    try:
        for row, line in zip(rows, merge.lines(home.results, rows, checks_of(job), style="jsonl"), strict=True):
            output = msgspec.json.decode(line)["output"]
            if isinstance(output, dict) and isinstance(output.get("probability"), float | int):
                found.append((row.custom_id, float(output["probability"]), str(output["label"])))
    except StorageError as error:
        log.warning("%s: labels have no confidence: %s", job.id, error)
        return []
    return found
