"""Every error that orch raises on purpose.

  OrchError                exit code 1
  ├── InputError           2  a file, line or field that the user can correct
  ├── UsageError           2  a command that makes no sense as given
  ├── RefusedError         3  a valid request that would break a promise (budget, deadline, location)
  ├── BackendError         4  a backend or upstream is down, or answers incorrectly
  │   ├── NotSent          4  nothing reached the backend: the same call may be made again
  │   ├── BackendRefused   4  the backend refused: nothing was created
  │   │   ├── BackendBusy  4  ... for now: a rate limit, a quota or an overload
  │   │   ├── AccountError 4  ... this account: a bad key, no credit, no permission
  │   │   └── RequestRefused 4  ... all rows of a kind: a wrong model, field or address; the rows wait
  │   └── Uncertain        4  the call was sent without an answer: it may have been carried out
  ├── StorageError         4  the disk is full, the database is locked, read-only or of another version
  │   └── JobFilesError    4  the same for one job's own files: other jobs are not affected
  │       ├── OutputError  4  the rows cannot be written where the job file wants them
  │       └── NoRoom       4  there is no room for the job's requests; existing requests continue
  ├── RowError             1  a row without an answer; the library returns it as a value
  ├── JobFailed            1  a job as a whole cannot continue; its finished rows are kept
  ├── DataRefused          4  the database cannot store a value: its owner fails, the home is fine
  └── StateConflict        1  a compare-and-set move found a state that it did not expect

Libraries' own exceptions are translated at the boundary: nothing above `store`, `backends` or `server` sees
SQLAlchemy, openai or aiohttp errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self


class OrchError(Exception):
    """Base of all errors. `message` is for the user, `hint` says what to do, `kind` names the error for programs.

    `file`, `line` (from 1) and `field` locate the error, if known. `others` are mistakes found in the same check.
    """

    kind: str = "error"
    exit_code: int = 1
    file: str | Path | None = None
    line: int | None = None
    field: str | None = None
    others: Sequence[OrchError] = ()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def at(self, place: OrchError) -> Self:
        """Give this error the location of `place`, and return it."""
        self.file, self.line, self.field = place.file, place.line, place.field
        return self

    @property
    def where(self) -> str:
        """Location as `file:line: field`, with the parts that are known; may be empty."""
        place = "" if self.file is None else str(self.file)
        if self.line is not None:
            place += f":{self.line}" if place else f"line {self.line}"
        return ": ".join(part for part in (place, self.field) if part)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        text = f"{text}\n  hint: {self.hint}" if self.hint else text
        return "\n".join([text, *map(str, self.others)])

    @property
    def reason(self) -> str:
        """Message and hint on one line, for use as the reason of a decision."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    @property
    def told(self) -> str:
        """Location, message and hint on one line, for storing with a state."""
        return ": ".join(filter(None, (self.where, self.reason)))

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException would rebuild the error from its message only, without keyword arguments.
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(kind: type[OrchError], args: tuple[Any, ...]) -> OrchError:
    return kind.__new__(kind, *args)


class InputError(OrchError):
    """Bad input, with its location if known."""

    kind = "bad_input"
    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.line = line
        self.field = field


class UsageError(OrchError):
    """The command line cannot be carried out as given."""

    kind = "bad_usage"
    exit_code = 2


class RefusedError(OrchError):
    """The request is valid, but carrying it out would break the budget, the deadline or the location rule."""

    kind = "refused"
    exit_code = 3


class BackendError(OrchError):
    """A backend, an upstream or an engine cannot be reached or answers incorrectly."""

    kind = "backend"
    exit_code = 4


class BackendRemoved(BackendError):
    """orch.toml no longer has this backend."""

    kind = "backend_removed"


class NotSent(BackendError):
    """The call did not reach the backend, so nothing was created there."""

    kind = "not_sent"


class BackendRefused(BackendError):
    """The backend refused the call, so nothing was created there.

    `status` is the HTTP status, `code` the provider's error code, `retry_after` is in seconds. Each is optional.
    """

    kind = "backend_refused"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class BackendBusy(BackendRefused):
    """The backend refuses for now: a rate limit, a quota or an overload. The request is not at fault."""

    kind = "backend_busy"


class AccountError(BackendRefused):
    """The backend refuses this account: the key is bad, the credit is spent, or a permission is missing."""

    kind = "account"


class RequestRefused(BackendRefused):
    """The backend refuses all rows of a kind: the request, the model or the backend is at fault. The rows wait.

    `holds` has the reason for each kind of row, in its stable JSON form.
    """

    kind = "request_refused"

    def __init__(
        self, message: str, *, hint: str, code: str, job_id: str, holds: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.job_id = job_id
        self.holds = holds


class Uncertain(BackendError):
    """The call was sent without an answer. Only a request to the backend can tell whether it was carried out."""

    kind = "uncertain"


class StrayUpload(BackendError):
    """The answer to an upload describes another file, with a different name and size.

    `file_id` is the id in the answer. `created_at` is that file's creation time, None if the answer states none.
    """

    kind = "stray_upload"

    def __init__(self, message: str, file_id: str, created_at: datetime | None) -> None:
        super().__init__(message)
        self.file_id = file_id
        self.created_at = created_at


class StorageError(OrchError):
    """The database or the disk refuses: full, locked, read-only, or migrated by another version."""

    kind = "storage"
    exit_code = 4


class NotReplicated(StorageError):
    """The recorded state has not reached the replica yet."""

    kind = "not_replicated"


class JobFilesError(StorageError):
    """One job's own files are missing, or cannot be written."""

    kind = "job_files"


class OutputFault(StrEnum):
    """A reason why rows cannot be written where a job file wants them."""

    NOT_A_FILE = "output_not_a_file"  # a folder, a device, a loop of links, an invalid database file
    NOT_FOUND = "output_not_found"  # the bucket, the folder above, or the database does not exist
    NO_PERMISSION = "output_no_permission"
    NO_ROOM = "output_no_room"  # a full disk, a quota
    UNREACHABLE = "output_unreachable"  # the storage does not answer or is busy
    DIFFERS = "output_table_differs"  # the table has columns of other types, or is not a table of rows
    EXISTS = "output_exists"  # a file that orch did not write
    NOT_SET = "output_not_set"  # the variable for the address is not set
    NOT_INSTALLED = "output_not_installed"  # the library for this kind of address is missing
    FAILED = "output_failed"  # anything else

    @property
    def may_pass(self) -> bool:
        """True if the fault may disappear without anyone's action."""
        return self in (OutputFault.NO_ROOM, OutputFault.UNREACHABLE, OutputFault.FAILED)


class OutputError(JobFilesError):
    """A job's rows cannot be written where its job file wants them; the rows are kept in the home.

    The exit code is 2 (bad input) if a person must correct the fault, 4 (storage) if it may pass by itself.
    """

    kind = "output"

    def __init__(self, code: OutputFault, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.kind = code.value
        self.exit_code = 4 if code.may_pass else 2


class NoRoom(JobFilesError):
    """A job's requests need more room than `[retention]`, the disk, the database or its server has. Other jobs
    continue.
    """

    kind = "no_room"


class RowError(OrchError):
    """A row has no answer. `code` is a code in docs/reference/row-errors.md, `cancelled` or `expired`."""

    kind = "row"

    def __init__(self, message: str, *, code: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class JobFailed(OrchError):
    """A job as a whole cannot continue. Its finished rows are kept; `code` is the job's `error_code`."""

    kind = "job_failed"

    def __init__(self, message: str, *, job_id: str, code: str | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id
        self.code = code


class DataRefused(OrchError):
    """No database can store a value, such as invalid text or too large a number. The database itself works."""

    kind = "data_refused"
    exit_code = 4


class StateConflict(OrchError):
    """A state change `from -> to` found the record in another state: another process changed it first."""

    kind = "conflict"


class StorageRefused(PermissionError):
    """A storage location cannot be used, or refuses this user. `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
