"""Context of `orch up` for a single home, or for a replicated home with no other active daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.output import say
from orchestrator.core.errors import UsageError
from orchestrator.daemon.replica.status_file import read_status
from orchestrator.library.context import Context
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.home_identity import recognise

if TYPE_CHECKING:
    from orchestrator.core.replica.takeover import Replica
    from orchestrator.daemon.replica.home_replica import HomeReplica
    from orchestrator.store.daemon_fence import DaemonFence


class DaemonContext(Context):
    """Context of a daemon, with its home's `replica`. It has a `fence` if other machines can reach the database."""

    def __init__(
        self, place: Place, store: Store, replica: HomeReplica | None, fence: DaemonFence | None = None
    ) -> None:
        super().__init__(place, store)
        self.replica = replica
        self.fence = fence


def active_home(
    place: Place, replica: str | None, is_over: Callable[[], bool]
) -> AbstractContextManager[DaemonContext] | None:
    """Return the context of a home's daemon. The caller holds the home's lock and enters the context.

    With a replica, wait on standby until no other daemon is active. Returns None if `is_over` becomes true first.
    Raises UsageError, InputError or StorageError.
    """
    home = Home(place.home)
    if replica is None:
        if home.has_replica:
            raise UsageError(
                f"{home.root} has a replica, and another machine may have taken it over",
                hint=f"start `orch up --replica URL`; or, to use this home alone from now on, remove {home.mark}",
            )
        return _alone(place)
    status = read_status(home)
    turn = _turn(place, home, replica, is_over)
    return None if turn is None else _replicated(place, home, turn, 0.0 if status is None else status.as_of)


@contextmanager
def _alone(place: Place) -> Iterator[DaemonContext]:
    with Store.open(place.database_url, timeout=place.database_timeout) as store:
        recognise(Home(place.home), store)
        if store.is_shared:
            store.daemon_fences.leave(Home(place.home).identity())
        yield DaemonContext(place, store, None)


def _turn(place: Place, home: Home, replica: str, is_over: Callable[[], bool]) -> Replica | None:
    # Load orch.toml and rarely used libraries now, so that mistakes show before the take-over.
    from orchestrator.core.replica.takeover import take_turn
    from orchestrator.daemon.replica.home_contents import LAYOUT
    from orchestrator.settings.config import load

    load(place)
    if _is_file(place) and place.database_url != f"sqlite:///{home.database}":
        raise UsageError(
            f"the database {place.database_url} is not in {home.root}, and would not be on the replica",
            hint="leave database_url out, or use Postgres, which both machines reach",
        )
    home.replica.unlink(missing_ok=True)
    return take_turn(replica, home.root, LAYOUT, is_over, lambda text: say(f"orch: {text}"))


@contextmanager
def _replicated(place: Place, home: Home, turn: Replica, as_of: float) -> Iterator[DaemonContext]:
    from orchestrator.daemon.replica.home_replica import HomeReplica
    from orchestrator.store.daemon_fence import DaemonFence

    is_shared = not _is_file(place)
    with HomeReplica(home, turn, is_shared=is_shared, as_of=as_of) as sent:
        fence = DaemonFence(home.identity(), sent.replica_id, sent.generation) if is_shared else None
        with Store.open(place.database_url, timeout=place.database_timeout, fence=fence) as store:
            if is_shared:
                store.before_naming_files(sent.settled)
            yield DaemonContext(place, store, sent, fence)


def _is_file(place: Place) -> bool:
    return place.database_url.startswith("sqlite")
