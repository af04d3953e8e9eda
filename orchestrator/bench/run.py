"""Runs a whole bench: the sample, the engine, the points, and the conclusions."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import uvloop
from msgspec import Struct

from orchestrator.bench.halving import Contest, tunings
from orchestrator.bench.report import BenchReport, Measured, Tuned, TunePoint
from orchestrator.bench.rig import GpuMemory, Rig, gpu_memory, rigged
from orchestrator.bench.rows import Mode
from orchestrator.bench.sample import Sample, take_sample
from orchestrator.bench.session import BenchProgress, Notebook, Session, tune
from orchestrator.bench.target import BenchTarget, backend_named, require_no_daemon, target_of
from orchestrator.bench.verdict import Verdict, token_rates, verdict
from orchestrator.core.counts import number_of
from orchestrator.core.engines import EngineRates, start_seconds
from orchestrator.core.errors import RefusedError, UsageError
from orchestrator.core.model import Price, Usage
from orchestrator.pipeline.build.builder import Progress
from orchestrator.pipeline.gc.benches import note_applied
from orchestrator.pipeline.plan.prices import listed_prices, prices_of
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.pricing import Tier
from orchestrator.settings.backends import EnginesBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

STARTS = timedelta(days=30)
"""Maximum age of an engine start that helps predict the duration of the next start."""
SATURATED = 2
"""Multiple of the best concurrency at which settings run, so that the engine's own limits are the bottleneck."""
MOST_FIRST = 30.0
"""Maximum seconds of a setting's first run. A short bench gives it one second per minute of the bench."""


class BenchWishes(Struct, frozen=True):
    """Options of a bench. If `versus` is None, the bench compares with `[report] compare` if that has a price."""

    file: Path
    backend: str | None
    minutes: float
    modes: Sequence[Mode]
    versus: str | None
    effort: str | None
    is_new: bool
    applies: bool


class BenchListeners(Struct, frozen=True):
    """Callbacks of a bench: for messages, read documents, points, and points of settings."""

    say: Callable[[str], None]
    reading: Progress
    point: Callable[[BenchProgress], None]
    tuning: Callable[[Contest, TunePoint | None], None]


class Bench(Struct):
    """A bench in a home. Raises OrchError; measurements up to then are kept."""

    store: Store
    home: Home
    config: Config
    wishes: BenchWishes
    now: Callable[[], datetime]
    listeners: BenchListeners

    def run(self) -> BenchReport:
        name = backend_named(self.config, self.wishes.backend)
        if self.wishes.effort is not None and not isinstance(self.config.backends[name], EnginesBackend):
            raise UsageError(
                f"--tune: the engines of {name} are not started by orch, so it cannot start them with other settings",
                hint='a backend of kind "engines" has engines that it starts (`orch help engines`)',
            )
        if self.wishes.effort is not None:
            require_no_daemon(self.home)
        if self.wishes.versus is not None:
            hosted_row(self.config, self.wishes.versus, 1.0, 1.0, self.now)  # check before measuring
        sample = take_sample(
            self.store, self.home, self.config, self.wishes.file, name, self.now, self.listeners.reading
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return self._with_engine(runner, name, sample)

    def _with_engine(self, runner: asyncio.Runner, name: str, sample: Sample) -> BenchReport:
        with (
            target_of(self.config, self.home, name, sample.model, self.listeners.say) as target,
            gpu_memory(target.slots) as memory,
        ):
            looked = memory if target.is_here else GpuMemory(problem="the engine runs on another machine")
            notebook = Notebook(self._notebook(sample, target))
            if self.wishes.is_new:
                notebook.clear()
            measured = runner.run(self._measure(target, sample, looked, notebook))
        tuned = None
        if self.wishes.effort is not None and measured.at_knee is not None:
            tuned = runner.run(self._tune(name, sample, measured, notebook, on_gpu=target.slots is not None))
        return self._report(sample, target, looked, measured, tuned)

    async def _measure(self, target: BenchTarget, sample: Sample, memory: GpuMemory, notebook: Notebook) -> Measured:
        async with rigged(target, sample, memory) as rig:
            session = Session(
                rig, notebook, self.wishes.minutes, self.wishes.modes, target.most, self.listeners.point
            )
            return await session.run()

    async def _tune(
        self, name: str, sample: Sample, measured: Measured, notebook: Notebook, *, on_gpu: bool
    ) -> Tuned:
        assert measured.at_knee is not None, "asked before"

        @asynccontextmanager
        async def started(options: tuple[str, ...]) -> AsyncIterator[Rig]:
            with (
                target_of(self.config, self.home, name, sample.model, self.listeners.say, options) as target,
                gpu_memory(target.slots) as memory,
            ):
                async with rigged(target, sample, memory) as rig:
                    yield rig

        return await tune(
            tunings(self.wishes.effort or "quick", on_gpu=on_gpu), SATURATED * measured.at_knee.concurrency, notebook,
            started, self.listeners.tuning, min(MOST_FIRST, max(1.0, self.wishes.minutes)),
        )  # fmt: skip

    def _notebook(self, sample: Sample, target: BenchTarget) -> Path:
        parts = (target.backend, target.model, *target.options, target.version or "", *sorted(target.urls))
        if isinstance(self.config.backends[target.backend], EnginesBackend):
            parts = parts[: -len(target.urls)]  # an engine started by orch has another address each time
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        return self.home.bench(sample.digest) / f"{digest}.jsonl"

    # --- the report

    def _report(
        self, sample: Sample, target: BenchTarget, memory: GpuMemory, measured: Measured, tuned: Tuned | None
    ) -> BenchReport:
        rates = _rates(self.home.identity(), target, measured, memory, self.now())
        if self.wishes.applies:
            if rates is None:
                raise RefusedError(f"nothing to apply: {measured.knee.reason}")
            note_applied(self.home.bench(sample.digest), rates)  # before `put`: plans must use only recorded rates
            self.store.engine_rates.put(rates)
        return BenchReport(
            job=sample.name,
            backend=target.backend,
            model=target.model,
            engine_version=target.version,
            gpus=memory.names,
            options=target.options,
            rows=sample.rows,
            job_rows=sample.job_rows,
            documents=sample.documents,
            left_out=sample.left_out,
            measured=measured,
            tuned=tuned,
            verdict=self._verdict(sample, target, measured),
            rates=rates,
            is_applied=self.wishes.applies,
            at=self.now(),
            notes=tuple(_notes(sample, measured, memory)),
        )

    def _verdict(self, sample: Sample, target: BenchTarget, measured: Measured) -> Verdict | None:
        at_knee = measured.at_knee
        if at_knee is None or not at_knee.rows_per_second:
            return None
        start = target.start_seconds
        if start is None:
            since = self.store.engine_holds.since(self.now() - STARTS)
            start = start_seconds(since, target.backend).get(target.model, 0.0)
        rate = at_knee.rows_per_second
        tokens = at_knee.input_tokens_per_second / rate, at_knee.output_tokens_per_second / rate
        return verdict(
            rows_per_second=rate,
            rows=sample.job_rows,
            documents=0 if sample.left_out else sample.documents,
            cost_per_hour=target.cost_per_hour,
            start_seconds=start,
            idle_seconds=target.idle_seconds,
            hosted=self._hosted(*tokens),
            now=self.now(),
        )

    def _hosted(self, input_tokens: float, output_tokens: float) -> Hosted | None:
        if self.wishes.versus is not None:
            return hosted_row(self.config, self.wishes.versus, input_tokens, output_tokens, self.now)
        try:
            return hosted_row(self.config, self.config.report.compare, input_tokens, output_tokens, self.now)
        except UsageError:
            return None  # a comparison that the user did not request may fail


def _rates(
    home: str, target: BenchTarget, measured: Measured, memory: GpuMemory, now: datetime
) -> EngineRates | None:
    at_knee = measured.at_knee
    if at_knee is None or not at_knee.rows_per_second:
        return None
    rate = at_knee.rows_per_second
    fed, answered = at_knee.input_tokens_per_second / rate, at_knee.output_tokens_per_second / rate
    prefill = measured.prefill.rows_per_second if measured.prefill is not None else None
    found = token_rates(rate, fed, answered, prefill or None)
    engines = len(target.urls)
    vram = [one.vram_peak for one in measured.sweep if one.vram_peak is not None]
    return EngineRates(
        home=home,
        backend=target.backend,
        model=target.model,
        options=" ".join(target.options),
        engine_version=target.version or "",
        gpu=", ".join(memory.names),
        prefill=found.prefill / engines,
        decode=None if found.decode is None else found.decode / engines,
        input_tokens=fed,
        output_tokens=answered,
        best_limit=at_knee.concurrency,
        start_seconds=target.start_seconds,
        vram_bytes=max(vram, default=None),
        measured_at=now,
    )


def _notes(sample: Sample, measured: Measured, memory: GpuMemory) -> list[str]:
    found = []
    if memory.problem is not None:
        found.append(f"VRAM is not known: {memory.problem}")
    if sample.left_out:
        found.append(f"left out: {number_of(sample.left_out, 'row')} of the job, for other models or endpoints")
    if any(one.preemptions is None for one in measured.sweep):
        found.append(
            "the engine has no gauges of vLLM's: cache hits, preemptions and KV use are not known, and prompts that "
            "it keeps from one point to the next make it look faster than it is"
        )
    return found


Hosted = tuple[str, Decimal, bool]
"""A model's name, the price of a row in dollars, and whether the price is an estimate."""


def hosted_row(
    config: Config, versus: str, input_tokens: float, output_tokens: float, now: Callable[[], datetime]
) -> Hosted:
    """Return the price of a row with this many tokens at `BACKEND:MODEL` or `PROVIDER:MODEL`. Raises UsageError."""
    place, _, model = versus.partition(":")
    if not place or not model:
        raise UsageError(f"--vs {versus}: write BACKEND:MODEL or PROVIDER:MODEL, such as openai:gpt-5-nano")
    # Price a thousand rows, because token counts must be whole.
    usage = Usage(input_tokens=math.ceil(1000 * input_tokens), output_tokens=math.ceil(1000 * output_tokens))
    found = _price(config, place, model, usage, now)
    return versus, found.cost / 1000, found.estimated


def _price(config: Config, place: str, model: str, usage: Usage, now: Callable[[], datetime]) -> Price:
    if (backend := config.backends.get(place)) is not None:
        names = {alias: name for alias, name in config.models.items() if isinstance(name, str | dict)}
        found = prices_of(backend, config, now).at_most(resolve_model(model, place, names) or model, usage)
        if found is None:
            raise UsageError(
                f"--vs {place}: is priced by the hour, and its throughput is not known here",
                hint=f"measure it too: orch bench JOB.yaml --backend {place}",
            )
        return found
    try:
        return listed_prices(place, Tier.BATCH, config, now).at_most(model, usage)
    except UsageError:
        return listed_prices(place, Tier.STANDARD, config, now).at_most(model, usage)
