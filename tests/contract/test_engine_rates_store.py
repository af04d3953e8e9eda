"""What a bench has measured of engines, kept by what it was measured with."""

from __future__ import annotations

from msgspec.structs import replace

from orchestrator.core.engines import EngineRates
from orchestrator.store import Store
from tests.support.stored import NOW, later

RATES = EngineRates(
    "home", "gpu", "small", "--max-num-seqs 64", "0.33.0", "NVIDIA H200", 40_000.0, 2_500.5, 1_000.0, 100.0, 256,
    75.0, 60 * 1024**3, NOW,
)  # fmt: skip


def test_the_latest_of_each_model_counts_whatever_it_was_measured_with(store: Store) -> None:
    assert store.engine_rates.of("home", "gpu") == {}
    other = replace(RATES, model="large", decode=None, start_seconds=None, vram_bytes=None)
    for one in (RATES, other, replace(RATES, home="other", prefill=1.0), replace(RATES, backend="b", prefill=1.0)):
        store.engine_rates.put(one)
    assert store.engine_rates.of("home", "gpu") == {"small": RATES, "large": other}
    again = replace(RATES, prefill=50_000.0, decode=3_000.0, best_limit=128, measured_at=later(1))
    store.engine_rates.put(again)
    assert store.engine_rates.of("home", "gpu")["small"] == again
    newer = replace(RATES, engine_version="0.34.0", options="", measured_at=later(2))
    store.engine_rates.put(newer)
    assert store.engine_rates.of("home", "gpu")["small"] == newer
    store.engine_rates.put(replace(again, measured_at=later(3)))
    assert store.engine_rates.of("home", "gpu")["small"].engine_version == "0.33.0"
