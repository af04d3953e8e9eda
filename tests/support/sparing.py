"""Nothing is forced to the disk: tests kill processes, never the kernel, and a forced write takes milliseconds.

Programs that a test starts afresh force their writes, as they do for a user.
"""

from __future__ import annotations

import os
import sqlite3
from functools import partial
from typing import Any

FORCED, SPARED = "PRAGMA synchronous=FULL", "PRAGMA synchronous=OFF"


def spare_the_disk() -> None:
    """Let this process, and those forked from it, leave every write to the kernel."""
    os.fsync = os.fdatasync = lambda fd: None
    connect = partial(sqlite3.connect, factory=_Connection)
    sqlite3.connect = sqlite3.dbapi2.connect = connect


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute(SPARED if sql == FORCED else sql, *parameters)


class _Connection(sqlite3.Connection):
    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute(SPARED if sql == FORCED else sql, *parameters)

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)
