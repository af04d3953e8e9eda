"""Two `orch serve` with one replica: the active one dies or is paused in the middle of a batch, the other ends it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

from orchestrator.core.replica.manifest import read_manifest
from orchestrator.core.replica.storage import open_storage
from orchestrator.core.replica.who_is_active import HeadLog
from orchestrator.server.database import FILE_NAME
from orchestrator.server.replicated_folder import LAYOUT
from tests.support.batchapi import create, ended, row, sdk_at
from tests.support.cli import Orch
from tests.support.harm import Harm
from tests.support.process import Upstream, wait_until
from tests.support.serving import serve, url_of

TAKEOVER_SECONDS = 60.0


class Pair(Harm):
    """`begin`, then harm the active one, then `take_over` and `finish`."""

    def __init__(self, orch: Orch, upstream: Upstream, folder: Path, replica: str, rows: int = 400) -> None:
        self._orch = orch
        self._upstream = upstream
        self._folder = folder
        self._replica = replica
        self._ids = [f"r{number}" for number in range(rows)]

    def start(self) -> None:
        """An active server, and one that stands by."""
        common = ("--upstream", self._upstream.base_url, "--replica", self._replica)
        self.active, self._url = serve(self._orch, *common, "--dir", str(self._folder / "a"))
        self.standby = self._orch.start("serve", "--port", "0", *common, "--dir", str(self._folder / "b"))
        wait_until(lambda: "standing by" in self._orch.output(self.standby))

    def begin(self, rows_first: int = 200) -> None:
        """A batch, of which so many rows have been asked."""
        self.start()
        with sdk_at(self._url) as sdk:
            batch = create(sdk, [row(custom_id, custom_id) for custom_id in self._ids])
            self._batch = batch.id
            # What was acknowledged would survive the loss of this machine now, and not only in two seconds.
            self._check_replica("batches", batch.id)
            self._check_replica("files", batch.input_file_id)
        self._upstream.wait_for_requests(rows_first)

    def kill_active(self) -> None:
        """SIGKILL, and its folder is gone."""
        self.kill()
        shutil.rmtree(self._folder / "a")

    def take_over(self) -> float:
        """Seconds until the other one serves."""
        self._url = url_of(self._orch, self.standby, TAKEOVER_SECONDS)
        return time.monotonic() - self.since

    def finish(self) -> None:
        """The batch ends at the one that has taken over, each row once."""
        with sdk_at(self._url) as sdk:
            batch = ended(sdk, self._batch, 60)
            self._check_replica("batches", self._batch, "completed")
            self._check_replica("files", f"file-{self._batch.removeprefix('batch_')}-output")
            batch.check(self._ids)

    def sent_again(self) -> int:
        """How many rows the upstream was asked more than once."""
        counts = self._upstream.counts()
        assert set(counts) == set(self._ids)
        return sum(counts.values()) - len(self._ids)

    def wake_paused(self) -> None:
        """SIGCONT. It ends with 4, says why, and nothing of the replica is changed by it."""
        assert self.woken() == 4
        assert "has taken over as generation 2" in self._orch.output(self.active)
        with urlopen(f"{self._url}/health", timeout=10) as answer:
            replica = json.load(answer)["replica"]
        assert (replica["generation"], replica["active"], replica["problem"]) == (2, True, None)

    def state(self) -> tuple[int, tuple[int, str, str]]:
        """How many requests the upstream has had, and what is committed."""
        head = HeadLog(open_storage(self._replica)).latest()
        assert head is not None
        return len(self._upstream.requests()), (head.generation, head.folder, head.manifest)

    def _check_replica(self, table: str, wanted: str, status: str = "") -> None:
        """What a server that takes over now has: this record, in that status, and the bytes of its file."""
        storage = open_storage(self._replica)
        head = HeadLog(storage).latest()
        assert head is not None
        manifest = read_manifest(storage, head.manifest, LAYOUT)
        with closing(sqlite3.connect(":memory:")) as database:
            # Its header says that it has a log beside it, which a database in memory has not.
            image = bytearray(b"".join(storage.get(piece.name) for piece in manifest.images[FILE_NAME]))
            image[18:20] = b"\1\1"
            database.deserialize(bytes(image))
            ((found,),) = database.execute(f"SELECT object FROM {table} WHERE id = ?", (wanted,)).fetchall()
            assert status in json.loads(found).get("status", "")
            if table == "files":
                ((path, size),) = database.execute("SELECT path, bytes FROM files WHERE id = ?", (wanted,)).fetchall()
                assert sum(len(storage.get(piece.name)) for piece in manifest.files[path]) == size
