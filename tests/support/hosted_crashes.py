"""A hosted job under a schedule: the real store, clients and pipeline before the emulator, killed and begun anew.

A kill is a `Killed`, raised before or behind any call to a provider and any transaction. What was in memory is
dropped then, what is on the disk and at the provider stays, and a new store and pipeline go on from there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from orchestrator.backends.anthropic.api import AnthropicAPI
from orchestrator.backends.anthropic.batches import AnthropicBatches
from orchestrator.backends.anthropic.settings import AnthropicBackend as AnthropicSettings
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.bedrock.settings import BedrockBackend
from orchestrator.backends.body_lines import sent_line
from orchestrator.backends.cohere.settings import CohereBackend
from orchestrator.backends.fireworks.settings import FireworksBackend
from orchestrator.backends.gemini.api import GeminiAPI
from orchestrator.backends.gemini.requests import translate as for_google
from orchestrator.backends.gemini.settings import GeminiBackend
from orchestrator.backends.mistral.api import MistralAPI
from orchestrator.backends.mistral.settings import MistralBackend
from orchestrator.backends.open import limits_of, profile_for
from orchestrator.backends.openai.settings import OpenAIBackend
from orchestrator.backends.openai_http import HttpAPI
from orchestrator.backends.openrouter.settings import OpenRouterBackend
from orchestrator.backends.package import BackendAccess, package_of
from orchestrator.backends.scaleway.settings import ScalewayBackend
from orchestrator.backends.together.settings import TogetherBackend
from orchestrator.backends.translated import TranslatedBatches
from orchestrator.backends.vertex.settings import VertexBackend
from orchestrator.backends.xai.api import XaiAPI
from orchestrator.backends.xai.settings import XaiBackend
from orchestrator.core.errors import BackendError, JobFilesError, RefusedError, StateConflict, UsageError
from orchestrator.core.model import CancelCode, Job
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.backend_set import BackendSet
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.pipeline.build import submission
from orchestrator.pipeline.job_steps import Pipeline
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.settings.backends import Backend, HostedBackend
from orchestrator.settings.config import Config, ModelPrice, RateSettings
from orchestrator.settings.config import Report as ReportSettings
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.clock import START
from tests.support.aws import aws_environment, bedrock_settings
from tests.support.billing import RATES, Books, mistakes
from tests.support.databases import new_sqlite
from tests.support.google import vertex_settings
from tests.support.plain_http import for_anthropic, for_gemini, with_bearer
from tests.support.scaleway import scaleway_told
from tests.support.schedules import MODEL, Schedule, write

_OpenedAnew = (
    BedrockBackend
    | CohereBackend
    | FireworksBackend
    | OpenRouterBackend
    | ScalewayBackend
    | TogetherBackend
    | VertexBackend
)
KEY = "sk-test-0123456789"
CHANCES = {"before create": 5, "after create": 5, "after upload": 5, "after find": 5, "during download": 5}
"""Where more is at stake a kill is more likely."""
VERBS = frozenset("account upload create find retrieve listed cancel download size_of forget_file".split())
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 4 * 3600.0
MOST_ROUNDS = 1500


class Killed(BaseException):
    """The process is no more."""


@dataclass(slots=True)
class Fate:
    """Decides at each point that the program passes whether it is killed there; `struck` says where it was."""

    schedule: Schedule
    dice: random.Random
    names: list[str] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)

    def point(self, name: str) -> None:
        self.names.append(name)
        kills = self.schedule.kills
        is_due = (
            len(self.names) == kills.nth
            if kills.nth is not None
            else self.dice.random() < kills.chance * CHANCES.get(name, 1)
        )
        if is_due and len(self.struck) < kills.most:
            self.struck.append(f"{name} ({len(self.names)})")
            raise Killed


class Struck:
    """A backend whose every call may be the last thing that the program does."""

    def __init__(self, backend: Any, fate: Fate) -> None:
        self._backend = backend
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return self._fated(name, found) if name in VERBS else found

    def _fated(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._fate.point(f"before {name}")
            if name == "download":
                self._torn(arguments[1])
            found = verb(*arguments)
            self._fate.point(f"after {name}")
            return found

        return call

    def _torn(self, path: Path) -> None:
        try:
            self._fate.point("during download")
        except Killed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f".{path.name}.partial").write_bytes(b'{"custom_id": "ro')
            raise


def fated(store: Store, fate: Fate) -> Store:
    """The store, each of whose transactions may be the last thing that the program does, committed or not."""
    database = store._database
    plain = database.write

    @contextmanager
    def write() -> Iterator[Any]:
        fate.point("before a transaction")
        with plain() as tx:
            yield tx
            fate.point("before a commit")
        fate.point("after a commit")

    database.write = write  # type: ignore[method-assign]
    return store


@dataclass(slots=True)
class Providers:
    """The emulator and a client of each of its flavours; these outlive kills, as making them costs 60 ms."""

    emulator: Emulator
    cloud: HttpAPI
    azure: HttpAPI
    claude: AnthropicAPI
    mistral: MistralAPI
    gemini: GeminiAPI
    xai: XaiAPI
    opened: ExitStack

    def settings(self, name: str, most_rows: int, more: dict[str, Any]) -> Backend:
        limits = {"max_rows": most_rows, **more}
        common: dict[str, Any] = {"api_key_env": "KEY", "limits": limits}
        match name:
            case "claude":
                return AnthropicSettings(kind="anthropic", base_url=self.emulator.url_anthropic, **common)
            case "mistral":
                return MistralBackend(kind="mistral", base_url=self.emulator.url_of("mistral"), **common)
            case "openrouter":
                url = self.emulator.url_of("openrouter")
                return OpenRouterBackend(kind="openrouter", base_url=url, **common)
            case "xai":
                return XaiBackend(kind="xai", base_url=self.emulator.url_of("xai"), **common)
            case "gemini":
                return GeminiBackend(kind="gemini", base_url=self.emulator.url_of("gemini"), **common)
            case "bedrock":
                told = {**common, "limits": {**limits, "min_rows": 1}}
                del told["api_key_env"]
                return bedrock_settings(self.emulator.url_of("bedrock"), KEY, **told)
            case "fireworks":
                address = self.emulator.url_of(name)
                return FireworksBackend(kind=name, base_url=address, account="a", **common)
            case "cohere":
                return CohereBackend(kind=name, base_url=self.emulator.url_of(name), **common)
            case "scaleway":
                told = scaleway_told(self.emulator.url_of(name), KEY, **common)
                return ScalewayBackend.model_validate(told)
            case "together":
                return TogetherBackend(kind=name, base_url=self.emulator.url_of(name), **common)
            case "vertex":
                return vertex_settings(self.emulator.url_of("vertex"), KEY, **common)
            case "azure":
                return OpenAIBackend(kind="azure", base_url=self.emulator.url_azure, **common)
            case _:
                return OpenAIBackend(kind="openai", base_url=self.emulator.url_openai, profile="openai", **common)

    def backend(self, name: str, settings: Backend) -> Any:
        if isinstance(settings, AnthropicSettings):
            return AnthropicBatches(name, self.claude, profile_for(settings), settings.max_tokens)
        if isinstance(settings, MistralBackend):
            return ApiBatches(name, self.mistral, profile_for(settings), sent=sent_line)
        if isinstance(settings, XaiBackend):
            return ApiBatches(name, self.xai, profile_for(settings))
        if isinstance(settings, GeminiBackend):
            return TranslatedBatches(name, self.gemini, profile_for(settings), for_google)
        if isinstance(settings, _OpenedAnew):
            return self.opened_anew(name, settings)
        assert isinstance(settings, OpenAIBackend)
        return ApiBatches(name, getattr(self, name), profile_for(settings))

    def opened_anew(self, name: str, settings: _OpenedAnew) -> Any:
        """Opened for each home: what it remembers of credentials outlives no kill."""
        key = "" if settings.api_key_env is None else KEY
        found = package_of(settings).open(settings, BackendAccess(name, key))
        self.opened.callback(found.close)
        return found


@contextmanager
def providers(folder: Path) -> Iterator[Providers]:
    with (
        Emulator(folder) as emulator,
        with_bearer(emulator.url_openai, KEY) as cloud,
        with_bearer(emulator.url_azure, KEY) as azure,
        closing(for_anthropic(emulator.url_anthropic, KEY)) as claude,
        with_bearer(emulator.url_of("mistral"), KEY) as mistral,
        for_gemini(emulator.url_of("gemini"), KEY) as gemini,
        with_bearer(emulator.url_of("xai"), KEY) as xai,
        ExitStack() as opened,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in aws_environment(KEY, folder).items():
            environment.setenv(name, value)
        plain = (MistralAPI(mistral, KEY), GeminiAPI(gemini, KEY), XaiAPI(xai, KEY))
        yield Providers(emulator, HttpAPI(cloud, KEY), HttpAPI(azure, KEY), claude, *plain, opened)


@dataclass(slots=True)
class Report:
    """What a schedule came to. `names` are the points that were passed, `broken` the promises not kept, in words."""

    rows: int = 0
    kills: int = 0
    rounds: int = 0
    batches: int = 0
    billed: int = 0
    unexplained: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        return len(self.names)


class Run:
    """One job under one schedule, in an empty folder and with an empty database."""

    def __init__(self, there: Providers, schedule: Schedule, folder: Path, database_url: str) -> None:
        self._there = there
        self._schedule = schedule
        self._url = database_url
        self._home = Home(folder / "home")
        self._source = folder / "requests.jsonl"
        self._fate = Fate(schedule, random.Random(f"kills {schedule.seed}"))
        self._pause = FIRST_PAUSE
        self._last = "nothing"
        self.report = Report()
        write(self._source, schedule.rows)
        emulator = there.emulator
        emulator.reset(schedule.seed)
        emulator.settings(**schedule.settings, min_rows=1)
        emulator.script(*schedule.script)
        backends = {name: there.settings(name, schedule.most_rows, schedule.limits) for name in schedule.order}
        prices = {MODEL: ModelPrice(**RATES["standard"], batch=RateSettings(**RATES["batch"]))}
        place = Place(None, self._home.root, database_url, 10.0)
        self._config = Config(place, backends, {}, prices, ReportSettings())

    def now(self) -> datetime:
        return self._there.emulator.clock.now()

    def to_the_end(self) -> Report:
        """Run, be killed and begin anew until the job is over; then check what must hold."""
        report, job = self.report, None
        while job is None and not report.broken:
            try:
                job = self._life()
            except Killed:
                report.kills += 1
        report.struck = Counter(name.rpartition(" (")[0] for name in self._fate.struck)
        report.names, report.rows = self._fate.names, len(self._schedule.rows)
        if job is not None:
            self._check(job)
        report.broken = [f"{broken}; {self._schedule}; killed {self._fate.struck}" for broken in report.broken]
        return report

    def _life(self) -> Job | None:
        """One process, until it is killed or the job is over; None where it does not come to its end."""
        with Store.open(self._url) as plain:
            store = fated(plain, self._fate)
            budgets = SharedBudgets(store, self._config, self.now)
            backends = Backends(store, self._home, self._config, budgets, self.now, self._handle)
            pipeline = Pipeline(store, self._home, backends, budgets, self.now)
            job = self._job(store)
            while self.report.rounds < MOST_ROUNDS:
                self.report.rounds += 1
                job = store.jobs.get(job.id)
                is_over = job.finished_at is not None
                if is_over and not store.shards.unclean(self._home.identity()):
                    return job
                self._cancel_if_due(store, job)
                moved = not is_over and self._step(pipeline, job)
                # As the daemon does it after each round: what is left to do there holds up nobody.
                pipeline.remote_cleanup.tick()
                self._wait(moved)
        held = [
            (shard.id, shard.state, shard.held) for shard in plain.shards.of_job(job.id) if not shard.state.is_final
        ]
        self.report.broken.append(f"not over after {MOST_ROUNDS} rounds: {held}; {self._last}")
        return None

    def _job(self, store: Store) -> Job:
        """The job as the command finds or makes it; one that is over is not started again."""
        if (known := store.jobs.newest()) and known[0].built_at is not None:
            return known[0]
        options = submission.Options()
        taken = submission.submit(store, self._home, self._config, self._source, options, self.now, lambda *_: None)
        return taken.job

    def _handle(self, name: str) -> BackendHandle:
        settings = self._config.backends[name]
        assert isinstance(settings, HostedBackend)
        profile = profile_for(settings)
        return BackendHandle(
            name=name,
            api=Struck(self._there.backend(name, settings), self._fate),
            profile=profile,
            limits=limits_of(settings, profile),
            poll_seconds=profile.poll_seconds,
            price=prices_of(settings, self._config, self.now),
            is_own=False,
        )

    def _step(self, pipeline: Pipeline, job: Job) -> bool:
        """One step as the daemon does it: what keeps a job from going on is not an end of it."""
        try:
            return pipeline.advance(job)
        except StateConflict as conflict:
            self._last = str(conflict)
            return True
        except (BackendError, UsageError, RefusedError, JobFilesError) as error:
            self._last = str(error)
            return False

    def _cancel_if_due(self, store: Store, job: Job) -> None:
        if (self.now() - START).total_seconds() >= self._schedule.cancel_at:
            store.jobs.request_cancel(job.id, CancelCode.USER, "enough", self.now())

    def _wait(self, moved: bool) -> None:
        """Let the time pass that nothing would happen in, first a little of it, then more and more."""
        self._pause = FIRST_PAUSE if moved else min(self._pause * 2, LONGEST_PAUSE)
        if not moved:
            self._there.emulator.clock.advance(self._pause)

    def _check(self, job: Job) -> None:
        with Store.open(self._url) as store:
            books = Books.read(store, self._home, self._there.emulator, job)
        self.report.batches = len(books.batches)
        self.report.billed = books.bill_rows
        self.report.unexplained = books.unexplained
        self.report.broken += mistakes(self._schedule, books, kills=self.report.kills)


class Backends(BackendSet):
    """The emulated providers, each opened once a life."""

    def __init__(
        self,
        store: Store,
        home: Home,
        config: Config,
        budgets: SharedBudgets,
        now: Callable[[], datetime],
        make: Callable[[str], BackendHandle],
    ) -> None:
        super().__init__(store, home, config, budgets, now)
        self._make = make
        self._handles: dict[str, BackendHandle] = {}

    def open(self, name: str) -> BackendHandle:
        return self._handles.get(name) or self._handles.setdefault(name, self._make(name))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """In memory where that can be: a killed process leaves all that it has written, synced or not."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def run(there: Providers, schedule: Schedule, database_url: str | None = None) -> Report:
    """A schedule, on SQLite unless a database is given."""
    with temporary_folder() as folder:
        return Run(there, schedule, folder, database_url or new_sqlite(folder / "orch.db")).to_the_end()
