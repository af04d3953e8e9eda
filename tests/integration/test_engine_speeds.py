"""How fast engines of one's own are foreseen: by the length of rows, by a bench, by nights of the same model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from orchestrator.bench.verdict import token_rates
from orchestrator.core.engines import EngineRates
from orchestrator.core.model import Job, ProgressSample
from orchestrator.core.shards import ShardState
from orchestrator.pipeline.plan.engine_speeds import EngineSpeeds, ModelRows, ObservationMemory, RowTokens
from orchestrator.policy import forecast
from orchestrator.policy.planner.stints import Sight
from orchestrator.settings import config
from orchestrator.settings.backends import EnginesBackend, TimedBackend
from orchestrator.settings.discovery import Place
from orchestrator.store import Store
from tests.support.databases import new_sqlite
from tests.support.stored import NOW, job, later, ranges, row, shard

TOML = """
[backends.gpu]
kind = "engines"
location = "local"
cost_per_hour = 2.5
gpus = "0-1"
[backends.gpu.models]
m = {model = "/models/m"}
large = {model = "/models/l", tensor_parallel = 2}

[backends.one]
upstreams = ["http://127.0.0.1:9/v1"]
idle = true
"""
PREFILL, DECODE = 30_000.0, 2_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(new_sqlite(tmp_path / "orch.db")) as opened:
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> config.Config:
    (tmp_path / "orch.toml").write_text(TOML)
    return config.load(Place(tmp_path / "orch.toml", tmp_path, "sqlite:///x", 1.0))


def speeds(
    store: Store, settings: config.Config, of: Job, tokens: RowTokens, model: str = "m", rows: int = 1000
) -> EngineSpeeds:
    return EngineSpeeds(
        store, settings, of, NOW, ObservationMemory(), lambda: [ModelRows(model, rows, tokens)], lambda: tokens
    )


def assumed(
    store: Store, settings: config.Config, tokens: RowTokens, name: str = "one", model: str = "m"
) -> forecast.Assumed:
    backend = settings.backends[name]
    assert isinstance(backend, TimedBackend)
    return speeds(store, settings, job(), tokens, model).of(name, backend, Sight(name, ())).assumed


def rates(model: str = "m", backend: str = "gpu", **facts: object) -> EngineRates:
    given = EngineRates(
        "home", backend, model, "", "", "", PREFILL, DECODE, 1000.0, 100.0, 64, 70.0, None, NOW - timedelta(hours=1)
    )
    return replace(given, **facts)  # type: ignore[arg-type]


def test_an_engine_of_which_nothing_is_known_is_foreseen_by_the_length_of_rows(
    store: Store, settings: config.Config
) -> None:
    usual = assumed(store, settings, RowTokens(1000, 100))
    assert usual.rate == pytest.approx(1.0)
    assert assumed(store, settings, RowTokens(100, 10)).rate == pytest.approx(10 * usual.rate)
    assert assumed(store, settings, RowTokens(1000, 2000)).rate < usual.rate / 5
    assert assumed(store, settings, RowTokens(1000, 100), "gpu").rate == pytest.approx(2.0), "two GPUs"


def test_a_bench_tells_the_rate_of_rows_of_any_length_on_all_engines(store: Store, settings: config.Config) -> None:
    store.engine_rates.put(rates())
    store.engine_rates.put(rates("large"))
    like = assumed(store, settings, RowTokens(1000, 100), "gpu")
    assert like.source == "from a bench"
    assert like.rate == pytest.approx(2 / (1000 / PREFILL + 100 / DECODE))
    unlike = assumed(store, settings, RowTokens(200, 1000), "gpu")
    assert unlike.rate == pytest.approx(2 / (200 / PREFILL + 1000 / DECODE))
    assert unlike.spread > like.spread, "of rows that it did not ask it is less sure"
    assert assumed(store, settings, RowTokens(1000, 100), "gpu", "large").rate == pytest.approx(like.rate / 2)
    assert assumed(store, settings, RowTokens(1000, 100), "one").source == "assumed", "of another backend"
    assert assumed(store, settings, RowTokens(1000, 100), "gpu", "unknown").source == "assumed"


def test_each_model_of_a_fleet_has_a_speed_of_its_own(store: Store, settings: config.Config) -> None:
    """A quick model's nights teach nothing of a slow one's, though both are at one backend."""
    backend = settings.backends["gpu"]
    assert isinstance(backend, EnginesBackend)
    for model, pace, hours in (("m", 10.0, -26), ("large", 1.0, -24)):
        of = job(f"night-{model}", series=model, identity=model)
        store.jobs.add(of, {})
        store.rows.add(of.id, [row(seq, model=model) for seq in range(3)], {}, NOW)
        begin = later(hours)
        [found] = ranges(store, of)
        sent = shard(of, model=model)
        store.shards.add(sent, found)
        store.shards.move(sent, ShardState.SUBMITTING)
        store.shards.move(store.shards.get(sent.id), ShardState.SUBMITTED, submitted_at=begin, first_at=begin)
        store.shards.move(store.shards.get(sent.id), ShardState.ENDED, ended_at=begin + timedelta(hours=1))
        samples = [
            ProgressSample(
                of.id, model, "gpu", begin + timedelta(minutes=minute), int(60 * minute * pace), 10**6,
                int(60 * minute * pace) * 1000, int(60 * minute * pace) * 100,
            )
            for minute in range(60)
        ]  # fmt: skip
        store.observations.note(samples)
    sight = Sight("gpu", store.shards.sent_to("gpu"), store.observations.progress("gpu", later(-100)))
    for model, pace in (("m", 10.0), ("large", 1.0)):
        estimate = speeds(store, settings, job(f"mine-{model}", series="mine"), RowTokens(1000, 100), model)
        speed = estimate.of("gpu", backend, sight)
        usual = forecast.pace(speed.learned, speed.assumed, now=NOW, tokens=estimate.work(speed.weight))
        assert usual.rate == pytest.approx(pace, rel=0.05)


# --- the first night behind a bench


@pytest.mark.long
def test_the_first_nights_end_as_a_bench_has_foreseen(store: Store, settings: config.Config) -> None:
    """200 engines, each benched once by day and used for one night, with rows of other lengths on half of them.

    An engine is by some 8 % faster or slower from one hour to the next, and points are off by 2 %. Forecasts are
    calibrated if half of the nights end before their p50, and 95 % before their p95. So nine of ten lie between the
    p5 and the p95, which is what they have to do; between the p50 and the p95 lie as many as there is room for.
    """
    chance = Random(7)
    backend = settings.backends["one"]
    assert isinstance(backend, TimedBackend)
    by_p5 = by_p50 = by_p95 = 0
    ratios = []
    for number in range(200):
        prefill, decode = 10 ** chance.uniform(3, 5), 10 ** chance.uniform(2, 4)
        fed, told = chance.uniform(200, 4000), chance.uniform(5, 800)

        def seconds(fed: float, told: float, prefill: float = prefill, decode: float = decode) -> float:
            return fed / prefill + told / decode

        hour = math.exp(chance.gauss(0, 0.08))
        whole, one_token = (hour * chance.gauss(1, 0.02) / seconds(fed, tokens) for tokens in (told, 1.0))
        found = token_rates(whole, fed, told, one_token)
        store.engine_rates.put(
            rates(backend="one", prefill=found.prefill, decode=found.decode, input_tokens=fed, output_tokens=told,
                  measured_at=NOW + timedelta(seconds=number))
        )  # fmt: skip
        longer = 1.0 if number % 2 else chance.uniform(0.4, 2.5)
        tokens, rows = RowTokens(fed, told * longer), 20_000
        assumed_now = speeds(store, settings, job(), tokens, rows=rows).of("one", backend, Sight("one", ())).assumed
        pace = forecast.pace(forecast.Speeds(), assumed_now, now=NOW)
        took = rows * seconds(tokens.input, tokens.output) * math.exp(chance.gauss(0, 0.08))
        by_p5 += took <= pace.seconds_for(rows, 0.05)
        by_p50 += took <= pace.seconds_for(rows, 0.5)
        by_p95 += took <= pace.seconds_for(rows, 0.95)
        ratios.append(took / pace.seconds_for(rows, 0.5))
    assert by_p95 - by_p5 >= 180
    assert 70 <= by_p50 <= 130
    assert sorted(ratios)[100] == pytest.approx(1.0, abs=0.05)
