"""The right of a home's daemon to write to a shared database: only the newest generation may write.

Used on Postgres, for a home with a replica (`daemon/replica`). Every transaction of the daemon checks that its
generation is still the newest. A lock keeps the next generation from starting before the transaction ends.
"""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import Connection, delete, select, text

from orchestrator.core.errors import StorageError
from orchestrator.store.database import Database
from orchestrator.store.tables import daemon_fences


class FencedOff(StorageError):
    """Refusal to write: another daemon of the home has taken over, or the home has left or changed its replica."""

    kind = "superseded"


class DaemonFence(Struct, frozen=True):
    """The right to write as a home's daemon, until another daemon has a newer generation."""

    home: str
    replica: str
    generation: int

    @property
    def name(self) -> str:
        """Application name of this daemon's connections."""
        return f"{_name(self.home)}{self.generation}"

    def require(self, tx: Connection) -> None:
        """Raise FencedOff if this daemon has lost the right. Until `tx` ends, no other daemon can take over."""
        table = daemon_fences
        query = select(table.c.replica, table.c.generation).where(table.c.home == self.home)
        found = tx.execute(query.with_for_update(read=True)).first()
        if found is None or found.replica != self.replica:
            raise FencedOff(
                "this home has left its replica, or has another one by now; nothing more is written here",
                hint="use the daemon that is active, or start this one with the replica in use now",
            )
        if found.generation != self.generation:
            raise FencedOff(
                f"another daemon of this home has taken over as generation {found.generation}; nothing more is"
                " written here",
                hint="start it again: it stands by",
            )


class DaemonFences:
    def __init__(self, database: Database) -> None:
        self._db = database

    def take(self, fence: DaemonFence) -> None:
        """Stop older daemons from writing, and end their connections. Raises FencedOff if a newer daemon exists."""
        table, add = daemon_fences, self._db.upsert(daemon_fences)
        told = add.excluded
        row = {"home": fence.home, "replica": fence.replica, "generation": fence.generation}
        # A home with a new replica restarts at that replica's first generation.
        is_newer = (table.c.replica != told.replica) | (table.c.generation <= told.generation)
        begin = add.values(row).on_conflict_do_update(
            index_elements=["home"], set_={"replica": told.replica, "generation": told.generation}, where=is_newer
        )
        is_older = (table.c.home == fence.home) & (table.c.replica == fence.replica)
        is_older &= table.c.generation > fence.generation
        with self._db.read() as tx:
            is_refused = tx.execute(select(table.c.home).where(is_older)).first() is not None
        if not is_refused:  # a newer daemon keeps its connections and its transaction
            self._end_others(fence)
        with self._db.write() as tx:
            if not is_refused:
                tx.execute(begin)
            fence.require(tx)

    def leave(self, home: str) -> None:
        """Record that the home has no replica. Daemons that started with a replica can no longer write."""
        with self._db.write() as tx:
            tx.execute(delete(daemon_fences).where(daemon_fences.c.home == home))

    def _end_others(self, fence: DaemonFence) -> None:
        """End connections of the home's other daemons. A paused transaction would block this daemon forever."""
        if self._db.is_sqlite:
            return
        end = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE starts_with(application_name, :mine) AND application_name <> :this AND pid <> pg_backend_pid()"
        )
        with self._db.read() as tx:
            tx.execute(end, {"mine": _name(fence.home), "this": fence.name}).all()


def _name(home: str) -> str:
    # Unchanged since earlier versions, so that old and new daemons can end each other's connections.
    return f"orch engine {home} "
