"""Checks a call's arguments before anything is read or written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.core.clock import now
from orchestrator.core.errors import UsageError
from orchestrator.core.near_names import meant
from orchestrator.settings.corrections import LONGEST_NAME, NAME

if TYPE_CHECKING:
    from orchestrator.settings.task_spec import JobFilePart

OWN_FIELDS = ("name", "documents", "tasks")
"""Fields of the job file that the call itself writes."""
TERMS = ("deadline", "budget", "backend")
"""Arguments of plan, run and submit, which a question does not take."""


def of_type(what: str, value: Any, wanted: Any, cure: str) -> None:
    if not isinstance(value, wanted):
        raise UsageError(f"{what}: {type(value).__name__} is not {cure}")


def job_name(name: Any) -> None:
    """Raise UsageError for an invalid job name. The name becomes a folder in the home."""
    of_type("name", name, str, "a text")
    if not re.fullmatch(NAME.strip("^$"), name) or len(name) > LONGEST_NAME:
        raise UsageError(
            f"name: {name!r:.60} is not a name of a job",
            hint=f"at most {LONGEST_NAME} letters, digits, - and _, such as notice-period",
        )


def job_fields(job: Any) -> dict[str, Any]:
    """Return the additional job file fields that the caller gave. Raises UsageError for a field that the call itself
    writes.
    """
    of_type("job", job, Mapping, "a dict of fields of the job file")
    if taken := [name for name in OWN_FIELDS if name in job]:
        raise UsageError(
            f"job: {taken[0]!r} comes from the call",
            hint="name= names the job; prompt, schema and further arguments are its task; the rows are its documents",
        )
    return dict(job)


def known_fields(
    given: Mapping[str, Any], part: type[JobFilePart], what: str, own: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments as fields of a job file's task or source (`part`).

    Raises UsageError for a name that neither the part nor the call (`own`) has.
    """
    known = {field.alias or name for name, field in part.model_fields.items()}
    for name in given.keys() - known:
        if name in TERMS and name in own:
            hint: str | None = f"give {name} to plan(), run() or submit()"
        else:
            hint = meant(name, known | {*own}) or f"fields of a {what}: {', '.join(sorted(known))}"
        raise UsageError(f"{name}: neither an argument of this call nor a field of a {what}", hint=hint)
    return dict(given)


def deadline_text(deadline: Any) -> str | None:
    """Return a deadline in a job file's form. Raises UsageError."""
    try:
        if isinstance(deadline, timedelta):
            deadline = now() + deadline
        if isinstance(deadline, datetime):
            return deadline.isoformat()
    except OverflowError:
        raise UsageError(f"deadline: {deadline} is too far away") from None
    of_type("deadline", deadline, str | None, "one; write '8h', '06:00', a datetime or a timedelta")
    return deadline  # type: ignore[no-any-return]
