"""A home with a replica whose rows are at the emulated providers when its machine is lost: what must hold then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.support.billing import Books, mistakes
from tests.support.cli import Orch
from tests.support.hosted_kills import LATENCY_MS, hosted_schedule, toml_of
from tests.support.process import wait_until
from tests.support.schedules import write
from tests.support.standby_home import FINISH_SECONDS, HomePair

ROWS = 60


class HostedPair(HomePair):
    """`begin`, harm the active machine, `take_over`, then `mistakes`."""

    def __init__(
        self, orch: Orch, provider: Emulator, folder: Path, replica: str, environment: Mapping[str, str], seed: int
    ) -> None:
        super().__init__(orch, folder, replica, {**provider.environment, "KEY": "sk-test-0123456789", **environment})
        self._provider = provider
        self._schedule = hosted_schedule(seed, ROWS)
        (orch.home / "orch.toml").write_text(toml_of(provider, self._schedule), encoding="utf-8")
        provider.settings(**self._schedule.settings, latency_ms=LATENCY_MS)
        provider.script(*self._schedule.script)

    def begin(self, calls: int) -> None:
        """A job, and so many calls to its providers."""
        source = self.home("requests.jsonl")
        write(source, self._schedule.rows)
        self.start()
        self.job = self.submit(source)
        wait_until(lambda: self._calls() >= calls or self._is_over("a"), FINISH_SECONDS)

    def mistakes(self) -> list[str]:
        """Every promise that was not kept, by the books of the machine that has taken over and the provider's."""
        self.finish(self.job)
        home = Home(self.home("b"))
        url = self._environment.get("ORCH_DATABASE_URL", f"sqlite:///{home.database}")
        wait_until(lambda: self._is_clean(url, home), FINISH_SECONDS)
        with Store.open(url) as store:
            job = store.jobs.get(self.job)
            # Here are two homes on one machine: one that was done before the harm names the place in the first.
            there = (job.output_path or "").replace(str(self.home("a")), str(home.root))
            books = Books.read(store, home, self._provider, replace(job, output_path=there))
        return list(mistakes(self._schedule, books, kills=1))

    def _is_clean(self, url: str, home: Home) -> bool:
        with Store.open(url) as store:
            return not [shard for shard in store.shards.unclean(home.identity()) if not shard.owed]

    def _is_over(self, name: str) -> bool:
        return bool(self.ask(name, "status", self.job)["state"] in ("completed", "failed"))

    def _calls(self) -> int:
        return sum(entry["count"] for entry in self._provider.state()["requests"])
