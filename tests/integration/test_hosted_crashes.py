"""The crash matrix of hosted batches: no row lost, none paid twice, and the provider's bill is our ledger."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from sqlalchemy import make_url

from orchestrator.store import Store
from tests.support.hosted_crashes import Providers, providers, run
from tests.support.postgres import PostgresServer
from tests.support.schedules import (
    MARKS,
    OTHERS,
    PLAIN,
    Blow,
    Kills,
    Schedule,
    drawn,
    given,
    odd,
    plain,
)

CHUNKS = 16
IN_A_CHUNK = 4
SEEDS = [
    range(1),
    range(1, IN_A_CHUNK),
    *(range(n, n + IN_A_CHUNK) for n in range(IN_A_CHUNK, CHUNKS * IN_A_CHUNK, IN_A_CHUNK)),
]
"""Of the schedules of other protocols: one in make test, the others in make soak."""
POINTS = 4
REFUSED_ONCE = next(mark for mark in MARKS if mark.text == "status:500:1")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Providers]:
    with providers(tmp_path_factory.mktemp("providers")) as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize("chunk", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, CHUNKS))])
def test_under_a_random_schedule_the_bill_is_the_ledger(there: Providers, chunk: int) -> None:
    struck: Counter[str] = Counter()
    for seed in range(chunk * IN_A_CHUNK, (chunk + 1) * IN_A_CHUNK):
        report = run(there, drawn(seed))
        assert report.broken == []
        struck += report.struck
    assert struck.total() > IN_A_CHUNK, "hardly anything was killed"


@pytest.mark.thinned(9)
@pytest.mark.slow
@pytest.mark.parametrize("draw", [drawn, odd])
@pytest.mark.parametrize("seeds", [SEEDS[0], *(pytest.param(seeds, marks=pytest.mark.soak) for seeds in SEEDS[1:])])
@pytest.mark.parametrize("other", OTHERS)
def test_under_a_random_schedule_the_bill_of_other_protocols_is_the_ledger(
    other: str, draw: Callable[..., Schedule], there: Providers, seeds: range
) -> None:
    for seed in seeds:
        assert run(there, draw(seed, OTHERS[other])).broken == []


@pytest.mark.soak
def test_under_a_random_schedule_on_postgres(there: Providers, postgres: PostgresServer) -> None:
    with postgres.database() as migrated:
        Store.open(migrated).close()
        template = str(make_url(migrated).database)
        for seed in range(10_000, 10_000 + IN_A_CHUNK):
            with postgres.database(template) as url:
                assert run(there, drawn(seed), url).broken == []


LOST_ANSWER = Blow({"do": "cut_after", "match": {"verb": "create"}})
SHOWN_LATER = Blow({"do": "hidden", "seconds": 400.0, "match": {"verb": "create"}})
BOTH_ANSWERS_LOST = Blow({"do": "cut_after", "match": {"verb": "create"}, "times": 2})


@pytest.mark.long
@pytest.mark.thinned(24)
@pytest.mark.parametrize(
    "order",
    [
        ("cloud", "azure"),
        pytest.param(("azure", "cloud"), marks=pytest.mark.soak),
        ("claude", "cloud"),
        *(pytest.param((other, "cloud"), marks=pytest.mark.soak) for other in OTHERS),
    ],
    ids=lambda order: "-".join(order),
)
@pytest.mark.parametrize("blows", [[], [LOST_ANSWER, SHOWN_LATER]], ids=["kills alone", "an answer is lost as well"])
def test_killed_once_at_any_point(there: Providers, order: tuple[str, ...], blows: list[Blow]) -> None:
    """A sample of the points here; the long form takes each of them."""
    killed_once(there, order, blows, POINTS)


@pytest.mark.long
@pytest.mark.parametrize("other", OTHERS)
def test_killed_once_while_an_answer_is_lost_at_another(there: Providers, other: str) -> None:
    killed_once(there, (other, "cloud"), [LOST_ANSWER, SHOWN_LATER], 1)


def killed_once(there: Providers, order: tuple[str, ...], blows: list[Blow], points: int) -> None:
    whole = run(there, plain(1, order, Kills(), blows))
    assert whole.broken == []
    assert whole.points > 50

    kills = 0
    for nth in random.Random(str(order)).sample(range(1, whole.points + 1), points):
        report = run(there, plain(1, order, Kills(most=1, nth=nth), blows))
        assert report.broken == []
        assert (report.billed, report.batches) == (whole.billed, whole.batches)
        kills += report.kills
    # Pauses are drawn by a job's id, so that a run may end a few points earlier than the one before.
    assert kills >= points // 2


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("order", [("cloud", "azure"), ("claude", "cloud")], ids="-".join)
@pytest.mark.parametrize("blows", [[LOST_ANSWER, SHOWN_LATER], [BOTH_ANSWERS_LOST]], ids=["shown late", "two alike"])
def test_batches_of_which_no_answer_told_are_adopted(
    there: Providers, order: tuple[str, ...], blows: list[Blow]
) -> None:
    for seed in range(4):  # which of two ends first is drawn
        report = run(there, plain(seed, order, Kills(), blows))
        assert report.broken == []
        assert report.billed == 6


@pytest.mark.long
def test_a_batch_that_all_its_rows_have_left_is_closed_after_a_kill(there: Providers) -> None:
    """Both rows of the first batch fail and go on to another one. A kill falls before each commit."""

    def schedule(kills: Kills) -> Schedule:
        rows = [given(f"row-{index:03d}", REFUSED_ONCE if index < 2 else PLAIN) for index in range(4)]
        return Schedule(1, ("cloud", "azure"), rows, 2, [], kills, {"turnaround_s": [60, 600]})

    whole = run(there, schedule(Kills()))
    begin = whole.names.index("after download")
    end = whole.names.index("before forget_file", begin)
    commits = [nth for nth in range(begin + 1, end + 1) if whole.names[nth - 1] == "before a commit"]
    assert len(commits) >= 3
    for nth in commits:
        report = run(there, schedule(Kills(most=1, nth=nth)))
        assert report.kills == 1
        assert report.broken == []


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("fault", "cancel_at"),
    [
        ({"do": "status", "status": 429, "match": {"verb": "delete_file"}}, inf),
        ({"do": "status", "status": 429, "retry_after": 400, "match": {"verb": "create"}}, 30.0),
    ],
    ids=["the deletion comes at a busy moment", "the job is cancelled before its batch is made"],
)
def test_no_file_is_left_at_the_provider(there: Providers, fault: dict[str, Any], cancel_at: float) -> None:
    schedule = plain(1, ("cloud", "azure"), Kills(), [Blow(fault)])

    report = run(there, replace(schedule, cancel_at=cancel_at))

    assert report.broken == []
    assert report.batches > 0 if cancel_at == inf else report.batches <= 1


@pytest.mark.long
def test_a_kill_between_the_creation_and_its_record_is_made_good(there: Providers) -> None:
    """The one point that costs money: the batch is made, and nobody has written down that it is."""
    names = run(there, plain(1, ("cloud", "azure"), Kills(most=10**6, chance=0.0))).names
    nth = names.index("after create") + 1

    report = run(there, plain(1, ("cloud", "azure"), Kills(most=1, nth=nth)))

    assert report.broken == []
    assert report.struck == {"after create": 1}
    assert report.billed == 6
