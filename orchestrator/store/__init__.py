"""Storage of orch's state: every query as a domain verb, with the same code for SQLite and Postgres.

`Store` lists the verbs. No connection, row or driver error leaves this package.
"""

from __future__ import annotations

from orchestrator.store.store import Store

__all__ = ["Store"]
