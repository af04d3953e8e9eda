"""What engines held of GPUs: recorded while it goes on, and reported by model."""

from __future__ import annotations

from decimal import Decimal

from msgspec.structs import replace

from orchestrator.core.engines import EngineHold
from orchestrator.reports.held_hours import held_hours
from orchestrator.store import Store
from tests.support.stored import NOW, later

HOLD = EngineHold("h", "gpu", "small on GPU 0", "small", 1, NOW, NOW, None, False, Decimal("2.50"))


def test_a_hold_goes_on_until_it_is_over(store: Store) -> None:
    store.engine_holds.keep([])
    store.engine_holds.keep([HOLD])
    warm = replace(HOLD, seen_at=later(0.1), warm_at=later(0.1))
    over = replace(warm, seen_at=later(2), is_over=True)
    other = replace(HOLD, engine="large on GPUs 0,1", model="large", gpus=2, began_at=later(2), seen_at=later(3))
    for holds in ([warm], [over, other], [other]):
        store.engine_holds.keep(holds)
    assert store.engine_holds.since() == [over, other]
    assert store.engine_holds.since(later(2.5)) == [other]


def test_hours_by_model_count_each_gpu_and_the_start() -> None:
    one = replace(HOLD, seen_at=later(2), warm_at=later(0.5))
    two = replace(HOLD, engine="large on GPUs 0,1", model="large", gpus=2, began_at=later(2), seen_at=later(3))
    small, large = held_hours([one, replace(one, began_at=later(4), seen_at=later(5), warm_at=later(4)), two])
    assert (small.starts, small.gpu_hours, small.starting_hours, small.cost) == (2, 3.0, 0.5, Decimal("7.5"))
    assert (large.gpu_hours, large.starting_hours, large.cost) == (2.0, 2.0, Decimal("5"))
    assert small.words == "gpu held GPUs for small: 3 h of one GPU, 30 min of it in 2 starts: $7.50"
    assert Decimal(small.to_json()["cost_usd"]) == Decimal("7.5")
