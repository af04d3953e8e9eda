"""Storage of orch's state. Each query is a method in domain terms, with the same code for SQLite and Postgres.

`Store` lists the groups of methods. No connection, row or driver error leaves this package.
"""

from __future__ import annotations

from orchestrator.store.store import Store

__all__ = ["Store"]
