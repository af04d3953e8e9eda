"""Searches an account's list of batches, and reads list pages of any shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TypeVar

from orchestrator.backends import RemoteBatch, RemoteFile, lenient

PAGE = 100
FIND_PAGES = 50
FURTHEST_OFF = timedelta(hours=26)
"""Largest assumed error in a provider's times, such as a wrong hour, time zone or day."""
ORDER_SLACK = timedelta(minutes=1)
Ours = TypeVar("Ours", RemoteBatch, RemoteFile)
ListAnswer = tuple[object, str | None]
"""A page of a list, and the token of the next page. If the token is None, the last entry's id is the token."""


class Listing:
    """The order of a paged listing. If the newest entries come first, a search can stop at an entry that is too old.

    No provider promises an order. A list counts as newest first if its times fell by more than a minute. They must
    never have risen by that much.
    """

    def __init__(self) -> None:
        self._first: datetime | None = None
        self._lowest: datetime | None = None
        self._rose = False
        self.is_blank = True

    def see(self, at: datetime | None) -> None:
        """Note the creation time of the next entry, None if unknown."""
        self.is_blank = False
        if at is None:
            return
        if self._first is None or self._lowest is None:
            self._first = self._lowest = at
        self._rose |= at > self._lowest + ORDER_SLACK
        self._lowest = min(self._lowest, at)

    @property
    def newest_first(self) -> bool:
        """True if all entries so far were newest first."""
        if self._first is None or self._lowest is None or self._rose:
            return False
        return self._first - self._lowest > ORDER_SLACK


class ListedBatches(ABC):
    """Operations on the list of an account's batches."""

    @abstractmethod
    def _translated(
        self, what: str, pace: AbstractContextManager[None] | None = None, *, creating: bool = False
    ) -> AbstractContextManager[None]:
        """Convert errors of calls in this context to ours. `what` names the failed action."""

    @abstractmethod
    def _batch_pages(self, unread: list[object] | None = None) -> Iterator[list[RemoteBatch]]:
        """Yield the batches page by page. Adds unreadable entries to `unread`."""

    def _identity(self, one: RemoteBatch | RemoteFile) -> Hashable:
        """Return a key that identifies a list entry; see `lenient.unseen`."""
        return (one.id, one.shard) if isinstance(one, RemoteBatch) else one.id

    def _search(
        self,
        is_wanted: Callable[[RemoteBatch], bool],
        since: datetime,
        unread: list[object] | None = None,
        *,
        is_one: bool = True,
    ) -> tuple[list[RemoteBatch], str | None, bool]:
        """Return the wanted batches, why some may be missing (or None), and whether the list is empty.

        Adds unreadable entries to `unread`. With `is_one`, the search ends at the first page with a match.
        """
        earliest, found, read = since - FURTHEST_OFF, list[RemoteBatch](), 0
        listing = Listing()
        for number, page in enumerate(self._batch_pages(unread)):
            if number >= FIND_PAGES and not listing.newest_first:
                told = (
                    f"the first {read:,} batches of the account are not listed newest first, and "
                    "the batch that orch looks for is not among them: it may come later"
                )
                return found, told, False
            read += len(page)
            found += [batch for batch in page if is_wanted(batch)]
            for batch in page:
                listing.see(batch.created_at)
            if (found and is_one) or (listing.newest_first and _all_before(page, earliest)):
                break
        return found, None, listing.is_blank

    def batches(self) -> Iterator[RemoteBatch]:
        for page in self._batch_pages():
            yield from page

    def _pages(
        self,
        what: str,
        fetch: Callable[[str | None], ListAnswer],
        convert: Callable[[object], Ours],
        unread: list[object] | None = None,
    ) -> Iterator[list[Ours]]:
        after: str | None = None
        seen: set[Hashable] = set()
        more = True
        while more:
            with self._translated(what):
                told, next_page = fetch(after)
                listed = lenient.readable(lenient.entries(told, is_first=not seen), convert, unread)
            found = lenient.unseen(listed, self._identity, seen)
            if not found:
                return
            yield found
            after = next_page or found[-1].id
            # A list without `has_more` ends with an empty page, or a page of known entries.
            more = lenient.mapping(told).get("has_more") is not False


def _all_before(page: Sequence[RemoteBatch], earliest: datetime) -> bool:
    return all(batch.created_at is not None and batch.created_at < earliest for batch in page)
