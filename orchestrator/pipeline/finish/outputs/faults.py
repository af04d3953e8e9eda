"""Classification of write errors by error number, SQLSTATE or type, never by message text."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping

from orchestrator.core.atomic import NO_ROOM
from orchestrator.core.errors import OutputError, OutputFault
from orchestrator.core.storages import is_refusal

_ERRNO: Mapping[int, OutputFault] = {
    **dict.fromkeys(
        (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO),
        OutputFault.NOT_A_FILE,
    ),
    **dict.fromkeys((errno.ENOENT,), OutputFault.NOT_FOUND),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), OutputFault.NO_PERMISSION),
    **dict.fromkeys(NO_ROOM, OutputFault.NO_ROOM),
    **dict.fromkeys(
        (
            errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTUNREACH,
            errno.ENETUNREACH, errno.EPIPE, errno.EBUSY, errno.EAGAIN,
        ),
        OutputFault.UNREACHABLE,
    ),
}  # fmt: skip
_TYPES: Mapping[str, OutputFault] = {
    # botocore's, by name: it is only installed with s3fs.
    "EndpointConnectionError": OutputFault.UNREACHABLE,
    "ConnectTimeoutError": OutputFault.UNREACHABLE,
    "ReadTimeoutError": OutputFault.UNREACHABLE,
    "ConnectionClosedError": OutputFault.UNREACHABLE,
    "NoCredentialsError": OutputFault.NO_PERMISSION,
    "PartialCredentialsError": OutputFault.NO_PERMISSION,
    "TokenRetrievalError": OutputFault.NO_PERMISSION,
    # aiohttp's and fsspec's.
    "ClientConnectorError": OutputFault.UNREACHABLE,
    "FSTimeoutError": OutputFault.UNREACHABLE,
    # azure-core's.
    "ResourceNotFoundError": OutputFault.NOT_FOUND,
    "ServiceRequestError": OutputFault.UNREACHABLE,
    "ServiceResponseError": OutputFault.UNREACHABLE,
    # paramiko's.
    "NoValidConnectionsError": OutputFault.UNREACHABLE,
    "SSHException": OutputFault.UNREACHABLE,
    # SQLAlchemy's, for an unreadable address.
    "NoSuchModuleError": OutputFault.NOT_INSTALLED,
}
_SQLITE: Mapping[str, OutputFault] = {
    "FULL": OutputFault.NO_ROOM,
    "READONLY": OutputFault.NO_PERMISSION,
    "PERM": OutputFault.NO_PERMISSION,
    "AUTH": OutputFault.NO_PERMISSION,
    "CANTOPEN": OutputFault.NOT_FOUND,
    "BUSY": OutputFault.UNREACHABLE,
    "LOCKED": OutputFault.UNREACHABLE,
    "NOTADB": OutputFault.NOT_A_FILE,
    "CORRUPT": OutputFault.NOT_A_FILE,
}
_SQLSTATES: Mapping[str, OutputFault] = {
    "3D000": OutputFault.NOT_FOUND,  # no such database
    "3F000": OutputFault.NOT_FOUND,  # no such schema
    "42501": OutputFault.NO_PERMISSION,
    "25006": OutputFault.NO_PERMISSION,  # a read-only transaction: a replica
    "28": OutputFault.NO_PERMISSION,  # authentication failed
    "53100": OutputFault.NO_ROOM,
    "53": OutputFault.UNREACHABLE,  # too many connections, out of memory
    "08": OutputFault.UNREACHABLE,
    "57": OutputFault.UNREACHABLE,  # starting or shutting down
    "55": OutputFault.UNREACHABLE,  # locked by another session
    "40": OutputFault.UNREACHABLE,
    "22": OutputFault.DIFFERS,  # a value that does not fit its column
    "23": OutputFault.DIFFERS,  # violates a constraint of the table
    "42": OutputFault.DIFFERS,
}


def fault_of(error: BaseException) -> OutputFault:
    """Return the fault that a failed write's error, or one of its causes, stands for."""
    for one in _chain(error):
        if (found := _known(one)) is not None:
            return found
    return OutputFault.FAILED


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        yield here
        original = getattr(here, "orig", None)  # a driver's error inside SQLAlchemy's
        if isinstance(original, BaseException):
            yield original
        here = here.__cause__ or here.__context__


def _known(error: BaseException) -> OutputFault | None:
    if isinstance(error, OutputError):
        return OutputFault(error.code)
    if isinstance(error, ModuleNotFoundError):
        return OutputFault.NOT_INSTALLED
    if isinstance(error, OSError) and error.errno is not None and error.errno in _ERRNO:
        return _ERRNO[error.errno]
    if (name := getattr(error, "sqlite_errorname", None)) is not None:
        return _SQLITE.get(str(name).removeprefix("SQLITE_").partition("_")[0])
    if hasattr(error, "sqlstate"):
        state = error.sqlstate
        if state is not None:
            return _SQLSTATES.get(state) or _SQLSTATES.get(state[:2])
        # A failed connection has no SQLSTATE.
        return OutputFault.UNREACHABLE if _is_a(error, "OperationalError") else None
    # Storage services raise these two without an error number.
    if isinstance(error, PermissionError) or is_refusal(error):
        return OutputFault.NO_PERMISSION
    if isinstance(error, FileNotFoundError):
        return OutputFault.NOT_FOUND
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        return OutputFault.NOT_A_FILE
    if isinstance(error, TimeoutError | ConnectionError):
        return OutputFault.UNREACHABLE
    return next((_TYPES[one.__name__] for one in type(error).__mro__ if one.__name__ in _TYPES), None)


def _is_a(error: BaseException, name: str) -> bool:
    return any(one.__name__ == name for one in type(error).__mro__)
