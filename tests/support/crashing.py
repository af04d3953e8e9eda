"""Blows at a serving server, at its upstream and at its disk, and what must hold behind each of them and at the end.

All is seen from outside: HTTP, the result files that a kill leaves behind, and the upstream's own log.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.batchapi import OPEN, Ended, Sdk, create, ended, health, retrieve, row, sdk_at
from tests.support.batchserver import BatchServer
from tests.support.process import Upstream, wait_until

KILLS = ("server", "upstream", "both")
KINDS = ("output", "error")
END_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Seen:
    """After a blow: the rows whose results had been told, and how often the upstream was asked for each row."""

    blow: str
    durable: frozenset[str]
    asked: Counter[str]


@dataclass(slots=True)
class Given:
    """A batch: its rows in order, those that the upstream refuses, those it answers at the second try only."""

    ids: list[str]
    refused: set[str]
    patient: set[str]
    cancelled: bool = False


@dataclass(slots=True)
class Report:
    """What a storm did, and every broken promise, in words."""

    blows: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    sent_again: int = 0
    durable_at_blows: int = 0
    broken: list[str] = field(default_factory=list)


class Storm:
    """Batches of one server, and the blows at it: `begin` and `blow` as often as wanted, then `finish`."""

    def __init__(self, server: BatchServer, upstream: Upstream, dice: random.Random) -> None:
        self._server = server
        self._upstream = upstream
        self._dice = dice
        self._batches: dict[str, Given] = {}
        self._seen: list[Seen] = []
        self.report = Report()

    @contextmanager
    def _client(self) -> Iterator[Sdk]:
        with sdk_at(self._server.socket) as sdk:
            yield sdk

    def begin(self, rows: int) -> None:
        """A new batch: one row in ten is refused by the upstream, one in ten answered at the second try only."""
        name = f"b{len(self._batches)}"
        ids = [f"{name}-r{number}" for number in range(rows)]
        refused = set(self._dice.sample(ids, rows // 10))
        patient = set(self._dice.sample(ids, rows // 10)) - refused
        faults = {
            **dict.fromkeys(refused, "[[fault:status:400]]"),
            **dict.fromkeys(patient, "[[fault:status:500:1]]"),
        }
        lines = [row(custom_id, custom_id + faults.get(custom_id, "")) for custom_id in ids]
        with self._client() as sdk:
            batch = create(sdk, lines, metadata={"name": name})
        self._batches[batch.id] = Given(ids, refused, patient)
        self.report.rows += rows

    @property
    def has_cancelled(self) -> bool:
        return any(batch.cancelled for batch in self._batches.values())

    def cancel_one(self) -> None:
        """Cancel a batch that still runs, if there is one."""
        with self._client() as sdk:
            running = [name for name in self._batches if retrieve(sdk, name).status in OPEN]
            if running:
                chosen = self._dice.choice(running)
                # It may have come to its end by now, and then it is told so.
                answer = sdk.raw.post(f"/v1/batches/{chosen}/cancel")
                assert answer.status_code in (200, 409), answer.text
                self._batches[chosen].cancelled = answer.status_code == 200

    def blow(self, kinds: Sequence[str]) -> bool:
        """One blow, some rows after the last. False where every batch is at its end before."""
        if not self._some_rows_later():
            return False
        kind = self._dice.choice(kinds)
        blows: dict[str, Callable[[], None]] = {
            "server": self._kill_server,
            "upstream": self._kill_upstream,
            "both": self._kill_both,
            "disk": self._fill_disk,
        }
        self.report.blows[kind] += 1
        blows[kind]()
        return True

    def _some_rows_later(self) -> bool:
        wanted = self._asked() + self._dice.randint(1, 80)
        with self._client() as sdk:
            return (
                wait_until(lambda: "rows" if self._asked() >= wanted else "over" if self._over(sdk) else "") == "rows"
            )

    def _asked(self) -> int:
        return self._upstream.log.read_bytes().count(b"\n") if self._upstream.log.exists() else 0

    def _over(self, sdk: Sdk) -> bool:
        return all(batch.status not in OPEN for batch in sdk(lambda api: api.batches.list(limit=100)).data)

    def _told(self) -> frozenset[str]:
        """The rows whose results the server shows: those are durable, says the server."""
        with self._client() as sdk:
            texts = [sdk.raw.get(f"/v1/batches/{name}/{kind}").content for name in self._batches for kind in KINDS]
        return frozenset(json.loads(line)["custom_id"] for text in texts for line in text.splitlines())

    def _remember(self, blow: str, told: frozenset[str]) -> None:
        if lost := told - self._on_disk():
            self.report.broken.append(
                f"{blow}: {len(lost)} rows were told and are not on the disk: {sorted(lost)[:3]}"
            )
        self.report.durable_at_blows += len(told)
        self._seen.append(Seen(blow, told, self._upstream.counts()))

    def _on_disk(self) -> set[str]:
        return {line["custom_id"] for path in self._files() for line in whole_lines(path)}

    def _files(self) -> list[Path]:
        folders = [self._server.folder / "batches" / name for name in self._batches]
        return [folder / f"{kind}.jsonl" for folder in folders for kind in KINDS]

    def _kill_server(self) -> None:
        told = self._told()
        self._server.kill()
        self._remember("server", told)
        self._server.start()

    def _kill_upstream(self) -> None:
        told = self._told()
        self._upstream.kill()
        if self._dice.random() < 0.5:
            with self._client() as sdk:
                wait_until(lambda: health(sdk)["upstreams"][0]["problem"] or self._over(sdk))
        self._remember("upstream", told)
        self._upstream.start()

    def _kill_both(self) -> None:
        told = self._told()
        ends = [self._upstream.kill, self._server.kill]
        starts = [self._upstream.start, self._server.start]
        for order in (ends, starts):
            self._dice.shuffle(order)
        for end in ends:
            end()
        self._remember("both", told)
        for start in starts:
            start()

    def _fill_disk(self) -> None:
        """No file grows above what the largest result file has and a little more, until there is room again."""
        sizes = [path.stat().st_size for path in self._files() if path.exists()]
        self._server.limit_files(max([*sizes, 10_000]) + self._dice.randint(0, 20_000))
        with self._client() as sdk:
            wait_until(lambda: health(sdk)["status"] == "storage" or self._over(sdk))
        told = self._told()
        if self._dice.random() < 0.5:
            self._server.kill()
            self._remember("disk and server", told)
            self._server.start()
        else:
            self._remember("disk", told)
            self._server.limit_files(-1)

    def finish(self) -> Report:
        """Let all batches end, and hold what they have against what they must have."""
        with self._client() as sdk:
            for batch_id, given in self._batches.items():
                self._check_batch(ended(sdk, batch_id, END_SECONDS), given)
            wait_until(lambda: health(sdk)["status"] == "ok")
        last = self._upstream.counts()
        for given in self._batches.values():
            self.report.sent_again += sum(max(0, last[name] - 1 - (name in given.patient)) for name in given.ids)
        for number, seen in enumerate(self._seen, 1):
            again = [custom_id for custom_id in seen.durable if last[custom_id] != seen.asked[custom_id]]
            if again:
                self.report.broken.append(
                    f"blow {number} ({seen.blow}): {len(again)} rows were sent again though durable: {again[:3]}"
                )
        return self.report

    def _check_batch(self, end: Ended, given: Given) -> None:
        try:
            end.check(given.ids)
        except AssertionError:
            told = Counter(line["custom_id"] for line in (*end.output, *end.errors))
            lost, more = Counter(given.ids) - told, told - Counter(given.ids)
            files = f"{len(end.output)} lines of output, {len(end.errors)} of errors"
            self.report.broken.append(f"batch {end.batch.id}: counts {end.counts}, {files}; {lost=}, {more=}")
        failed = {line["custom_id"] for line in end.errors if line["error"] is None}
        unanswered = Counter(line["error"]["code"] for line in end.errors if line["error"] is not None)
        if given.cancelled:
            if not (failed <= given.refused and set(unanswered) <= {"batch_cancelled"}):
                self.report.broken.append(f"cancelled batch {end.batch.id}: {failed - given.refused}, {unanswered}")
        elif failed != given.refused or unanswered or end.batch.status != "completed":
            wrong = failed ^ given.refused
            self.report.broken.append(
                f"batch {end.batch.id} is {end.batch.status}: {unanswered}, {wrong} failed or did not"
            )


def whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a result file that a kill did not cut off."""
    data = path.read_bytes() if path.exists() else b""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)
