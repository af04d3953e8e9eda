"""Cost reports: sums by group, beside what the same tokens cost elsewhere."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.console_reports import cost_lines
from orchestrator.core.errors import InputError
from orchestrator.core.model import BookedUsage, Forecast, JobId, Usage
from orchestrator.policy.pricing import Tier, TierPrice, rates
from orchestrator.reports.cost import CostFacts, CostReport, Estimate, cost_report, estimates
from orchestrator.reports.words import cost_notes
from tests.support.examples import ample

NOW = datetime(2026, 11, 21, tzinfo=UTC)
TODAY = date(2026, 11, 20)
NANO = "openai:gpt-5-nano"  # dollars per million tokens: 0.05 in, 0.40 out, 0.005 cached; half of it as a batch
NONE = Decimal(0)


def part(
    group: str, model: str, rows: int, usage: Usage, cost: str | Decimal = NONE, *, backend: str = "gpu",
    day: date = TODAY, uncertain: str | Decimal = NONE, wasted: str | Decimal = NONE, estimated: bool = False,
    unpriced: int = 0, listed: Decimal | None = None,
) -> BookedUsage:  # fmt: skip
    sums = [Decimal(each) for each in (cost, uncertain, wasted)]
    return BookedUsage(group, backend, model, day, rows, usage, *sums, estimated, unpriced, listed)


TOTALS = [
    part("legal", "tiny", 2, Usage(2_000_000, 900_000, 1_000_000, 400_000), "0.1"),
    part("legal", "big", 1, Usage(1_000_000, 0, 0, 0, 5000), "0.200000000001", uncertain="0.05", wasted="0.06",
         estimated=True, unpriced=1),
    part("sales", "tiny", 5, Usage(0, 0, 10)),
]  # fmt: skip


def unlisted(backend: str, model: str, at: datetime) -> TierPrice:
    raise InputError("no list has it")


def of_openai(backend: str, model: str, at: datetime) -> TierPrice:
    return rates("openai", model, tier=Tier.STANDARD, at=at)


def reported(by: str, totals: list[BookedUsage], compare: str = NANO, **facts: Any) -> CostReport:
    """A report of these, with models that no list has."""
    listed = facts.pop("listed", unlisted)
    given = {"whole": totals, "documents": {}, "estimates": {}, **facts}
    return cost_report(by, CostFacts(totals, **given), compare, listed, NOW)


def test_a_booked_list_price_stays_whatever_the_list_says_now() -> None:
    usage = Usage(2_000_000, 0, 1_000_000)
    booked = part("legal", "gpt-5-nano", 2, usage, "0.2", listed=Decimal(9))
    [line] = reported("tag:team", [booked], listed=of_openai).lines
    assert (line.listed.cost, line.listed.estimated, line.saved) == (9, False, Decimal("8.8"))
    before = part("legal", "gpt-5-nano", 2, usage, "0.2")
    report = reported("tag:team", [booked, before], listed=of_openai)
    assert report.total.listed.cost == Decimal("9.5"), "a row from before has what the list says"
    words = "rows from before orch booked list prices"
    assert any(words in told for told in cost_notes(report))
    assert not any(words in told for told in cost_notes(reported("tag:team", [booked], listed=of_openai)))
    local = part("legal", "tiny", 2, usage, "0.2")
    assert not any(words in told for told in cost_notes(reported("tag:team", [local]))), "no list ever had it"


def test_groups_are_summed_over_their_models() -> None:
    report = reported("tag:team", TOTALS)
    legal, sales = report.lines
    assert (legal.group, legal.rows, legal.usage) == ("legal", 3, Usage(3_000_000, 900_000, 1_000_000, 400_000, 5000))
    assert (legal.cost, legal.uncertain, legal.estimated) == (Decimal("0.300000000001"), Decimal("0.05"), True)
    assert (sales.group, sales.rows, sales.cost, sales.estimated) == ("sales", 5, NONE, False)
    assert report.total.rows == 8
    assert report.total.cost == legal.cost + sales.cost
    assert (report.total.uncertain, report.total.wasted) == (Decimal("0.05"), Decimal("0.06"))
    assert report.total.usage == Usage(3_000_000, 900_000, 1_000_010, 400_000, 5000)


def test_list_prices_stand_beside_without_the_discount_of_our_own_cache() -> None:
    legal = reported("tag:team", TOTALS).lines[0]
    assert legal.realtime.cost == 3 * Decimal("0.05") + Decimal("0.4")
    assert legal.batch.cost == legal.realtime.cost / 2
    assert (legal.realtime.estimated, legal.batch.estimated) == (False, False)


def test_what_was_saved_is_told_by_the_list_price_of_the_model_that_answered() -> None:
    # gpt-5.4-mini: 0.75 in, 0.075 cached, 4.50 out.
    usage = Usage(1_000_000, 200_000, 100_000, 40_000)
    report = reported("job", [part("a", "gpt-5.4-mini", 10, usage, "0.5")], listed=of_openai)
    [line] = report.lines
    assert line.listed.cost == Decimal("0.6") + Decimal("0.015") + Decimal("0.45")
    assert (line.listed.estimated, line.listed.source) == (False, "genai-prices: openai:gpt-5.4-mini")
    assert line.saved == line.listed.cost - Decimal("0.5")
    assert line.realtime.cost == Decimal("0.09"), "gpt-5-nano stands beside it all the same"


def test_where_no_list_has_the_model_the_compared_one_stands_in_as_an_estimate() -> None:
    local = part("a", "gemma", 1, Usage(1_000_000, 900_000, 0), "0.2")
    hosted = part("a", "gpt-5-nano", 1, Usage(1_000_000, 900_000, 0), "0.1", backend="openai")
    [line] = reported("job", [local, hosted], listed=of_openai).lines
    assert line.listed.cost == Decimal("0.05") + Decimal("0.0095"), "the provider's own cache counts, not ours"
    assert line.listed.estimated
    assert line.saved == Decimal("-0.2405"), "it may have been dearer"
    assert not reported("job", [hosted], listed=of_openai).lines[0].listed.estimated


def test_answers_that_a_list_has_no_price_for_are_compared_instead() -> None:
    [line] = reported("job", [part("a", "text-embedding-3-small", 1, Usage(0, 0, 1_000_000))], listed=of_openai).lines
    assert (line.listed.cost, line.listed.estimated) == (Decimal("0.4"), True)


def test_what_has_no_tokens_needs_no_list_price() -> None:
    report = reported("job", [part("a", "", 0, Usage(), "0.3", uncertain="0.3", wasted="0.3", estimated=True)])
    [line] = report.lines
    assert (line.listed.cost, line.listed.source, line.listed.estimated, line.saved) == (
        0,
        "",
        False,
        Decimal("-0.3"),
    )


def test_a_list_price_is_that_of_the_day_in_utc() -> None:
    asked = []

    def listed(backend: str, model: str, at: datetime) -> TierPrice:
        asked.append((backend, model, at))
        return of_openai(backend, "gpt-5-nano" if at.day == 20 else "gpt-5.4-mini", at)

    before = part("a", "m", 1, Usage(1_000_000), day=TODAY)
    after = part("a", "m", 1, Usage(1_000_000), day=TODAY + timedelta(days=1))
    assert reported("job", [before, after], listed=listed, whole=[]).lines[0].listed.cost == Decimal("0.80")
    assert [(backend, model, at.isoformat()) for backend, model, at in asked] == [
        ("gpu", "m", "2026-11-20T12:00:00+00:00"),
        ("gpu", "m", "2026-11-21T12:00:00+00:00"),
    ]


def test_cost_per_document_and_per_thousand_tokens() -> None:
    report = reported("tag:team", TOTALS, documents={"legal": 4, None: 5})
    legal, sales = report.lines
    assert (legal.documents, sales.documents, report.total.documents) == (4, 0, 5)
    assert (legal.per_document, sales.per_document) == (Decimal("0.075000000000"), None)
    assert legal.per_1000_tokens == Decimal("0.000075000000")
    assert reported("job", []).total.per_1000_tokens is None


def foreseen(job: str, p50: float, actual: float | None = None, kind: str = "cost") -> Forecast:
    return Forecast(JobId(job), kind, "", "", NOW, p50, 2 * p50, "prior", actual=actual)


RUNS = [
    part("a", "m", 1, Usage(), "0.3"),
    part("a", "m", 1, Usage(), "0.1", day=TODAY + timedelta(days=1)),
    part("b", "m", 1, Usage(), "0.5", day=TODAY + timedelta(days=1)),
    part("unforeseen", "m", 1, Usage(), "9"),
]
FORESEEN = [foreseen("a", 0.2, 0.4), foreseen("b", 1.0), foreseen("gone", 7.0), foreseen("b", 8.0, kind="output")]


def test_what_was_foreseen_of_a_job_stands_beside_what_it_cost() -> None:
    found = estimates("job", FORESEEN, RUNS)
    assert found == {
        "a": Estimate(Decimal("0.2"), Decimal("0.2"), Decimal("0.4")),
        "b": Estimate(Decimal("1.0"), NONE, NONE),
        None: Estimate(Decimal("1.2"), Decimal("0.2"), Decimal("0.4")),
    }
    assert [found[name].off for name in ("a", "b", None)] == [1.0, None, 1.0], "an open job says nothing yet"


def test_a_job_that_runs_over_midnight_has_its_forecast_on_both_days() -> None:
    assert estimates("day", FORESEEN, RUNS) == {
        "2026-11-20": Estimate(Decimal("0.150"), Decimal("0.150"), Decimal("0.3")),
        "2026-11-21": Estimate(Decimal("1.050"), Decimal("0.050"), Decimal("0.1")),
        None: Estimate(Decimal("1.2"), Decimal("0.2"), Decimal("0.4")),
    }


def test_a_job_that_cost_nothing_has_its_forecast_in_equal_parts() -> None:
    free = [part("a", "m", 1, Usage(), day=TODAY + timedelta(days=more)) for more in (0, 1)]
    assert {day: each.p50 for day, each in estimates("day", [foreseen("a", 0.2, 0.0)], free).items()} == {
        "2026-11-20": Decimal("0.1"), "2026-11-21": Decimal("0.1"), None: Decimal("0.2"),
    }  # fmt: skip
    assert estimates("day", [foreseen("a", 0.0, 0.0)], free)[None].off is None


def test_a_line_in_several_groups_is_once_in_the_total() -> None:
    twice = [part("team=legal", "m", 1, Usage(1000), "0.1"), part("client=x", "m", 1, Usage(1000), "0.1")]
    report = reported("tag", twice, whole=[part("a", "m", 1, Usage(1000), "0.1")])
    assert ([line.cost for line in report.lines], report.total.cost) == ([Decimal("0.1")] * 2, Decimal("0.1"))


def test_a_batch_price_that_is_a_guess_is_marked() -> None:
    embedded = [part("a", "e", 1, Usage(1000))]
    report = reported("job", embedded, "openai:text-embedding-3-small")
    assert report.lines[0].batch.estimated
    assert report.to_json()["total"]["hosted"]["batch_estimated"] is True


def test_many_short_rows_are_not_priced_as_one_long_prompt() -> None:
    # gpt-6.1-sol takes twice as much of a prompt above 272,000 tokens; these are 300 of 1,000.
    short = [part("a", "tiny", 300, Usage(300_000, 0, 3000))]
    line = reported("job", short, "openai:gpt-6.1-sol").lines[0]
    assert (line.realtime.cost, line.batch.cost) == (Decimal("0.63"), Decimal("0.315"))
    assert line.listed.cost == Decimal("0.63")


def test_a_model_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(InputError, match="no price is known for openai:gpt-none"):
        reported("job", TOTALS, "openai:gpt-none")


def test_a_report_of_nothing_is_zero() -> None:
    report = reported("job", [])
    assert (list(report.lines), report.total.rows, report.total.cost, report.total.batch.cost) == ([], 0, NONE, NONE)


def test_json_tells_money_as_exact_text() -> None:
    known = {"legal": Estimate(Decimal("0.25"), Decimal("0.2"), Decimal("0.3"))}
    told = reported("tag:team", TOTALS, documents={"legal": 4}, estimates=known).to_json()
    assert {name: told[name] for name in ("by", "compare")} == {"by": "tag:team", "compare": NANO}
    assert told["lines"][0] == {
        "group": "legal",
        "rows": 3,
        "documents": 4,
        "tokens": {
            "input": 3_000_000, "cached": 900_000, "cache_write": 5000, "output": 1_000_000, "reasoning": 400_000,
        },
        "cost_usd": "0.300000000001",
        "uncertain_usd": "0.05",
        "wasted_usd": "0.06",
        "cost_estimated": True,
        "unpriced_rows": 1,
        "foreseen": {
            "cost_usd": "0.250000000000", "finished_cost_usd": "0.200000000000",
            "finished_paid_usd": "0.300000000000", "off": 0.5,
        },
        "list_usd": "0.550000000000",
        "list_estimated": True,
        "list_source": "genai-prices: openai:gpt-5-nano",
        "saved_usd": "0.249999999999",
        "per_document_usd": "0.075000000000",
        "per_1000_tokens_usd": "0.000075000000",
        "hosted": {
            "realtime_usd": "0.550000000000",
            "batch_usd": "0.275000000000",
            "batch_estimated": False,
            "source": "genai-prices: openai:gpt-5-nano",
        },
    }  # fmt: skip


def test_csv_has_a_line_for_each_group() -> None:
    tricky = [part('a,"b"\n', "tiny", 1, Usage(1, 0, 1), "1E-12"), *TOTALS]
    known = {"legal": Estimate(Decimal("0.25"), NONE, NONE)}
    text = reported("tag:team", tricky, documents={"legal": 4}, estimates=known).to_csv()
    assert text.startswith("tag:team,rows,input_tokens,cached_tokens,output_tokens,cost_usd,cost_estimated,"), (
        "scripts read columns by place: new ones stand behind"
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["tag:team"] for row in rows] == ['a,"b"\n', "legal", "sales"]
    assert rows[0]["cost_usd"] == "0.000000000001"
    assert rows[1] == {
        "tag:team": "legal", "rows": "3", "input_tokens": "3000000", "cached_tokens": "900000",
        "output_tokens": "1000000", "cost_usd": "0.300000000001", "cost_estimated": "True",
        "realtime_usd": "0.550000000000", "batch_usd": "0.275000000000", "batch_estimated": "False",
        "cache_write_tokens": "5000", "reasoning_tokens": "400000", "uncertain_usd": "0.05",
        "documents": "4", "foreseen_usd": "0.250000000000", "list_usd": "0.550000000000", "list_estimated": "True",
        "saved_usd": "0.249999999999", "wasted_usd": "0.06", "per_document_usd": "0.075000000000",
        "per_1000_tokens_usd": "0.000075000000", "unpriced_rows": "1",
    }  # fmt: skip


LINES = st.lists(
    st.builds(
        BookedUsage,
        st.sampled_from("abc"),
        st.sampled_from(["gpu", "openai"]),
        st.sampled_from(["gpt-5-nano", "big"]),
        st.dates(TODAY, TODAY + timedelta(days=2)),
        st.integers(0, 1000),
        st.builds(Usage, st.integers(10**6, 10**7), *[st.integers(0, 10**5)] * 4),
        st.decimals(0, 1000, places=12),
        st.decimals(0, 1000, places=12),
        st.decimals(0, 1000, places=12),
        st.booleans(),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=ample(50))
@given(LINES)
def test_the_total_is_the_sum_of_the_lines_in_every_figure(totals: list[BookedUsage]) -> None:
    report = reported("job", totals, listed=of_openai)
    assert [line.group for line in report.lines] == list(dict.fromkeys(total.group for total in totals))
    for name in ("rows", "cost", "uncertain", "wasted"):
        told = getattr(report.total, name)
        assert told == sum(getattr(line, name) for line in report.lines)
        assert told == sum(getattr(total, name) for total in totals)
    for name in ("input", "cached", "output", "reasoning", "cache_write"):
        told = getattr(report.total.usage, f"{name}_tokens")
        assert told == sum(getattr(line.usage, f"{name}_tokens") for line in report.lines)
        assert told == sum(getattr(total.usage, f"{name}_tokens") for total in totals)
    for name in ("realtime", "batch", "listed"):
        assert getattr(report.total, name).cost == sum(getattr(line, name).cost for line in report.lines)
    assert report.total.saved == report.total.listed.cost - report.total.cost
    assert report.total.estimated == any(total.estimated for total in totals)
    assert report.total.listed.estimated == any(total.model == "big" for total in totals)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.decimals(0, 9, places=6)), max_size=9),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 100)),
)
def test_days_share_what_was_foreseen_of_their_jobs(
    paid: list[tuple[str, int, Decimal]], p50s: dict[str, int]
) -> None:
    lines = [part(job, "m", 1, Usage(), cost, day=TODAY + timedelta(days=day)) for job, day, cost in paid]
    forecasts = [foreseen(job, p50, 1.0) for job, p50 in p50s.items()]
    by_job, by_day = (estimates(by, forecasts, lines) for by in ("job", "day"))
    assert set(by_job) - {None} == {job for job, _, _ in paid} & set(p50s)
    for found in (by_job, by_day):
        total = found.pop(None, Estimate(NONE, NONE, NONE))
        assert abs(total.p50 - sum(p50s[job] for job in set(by_job) & set(p50s))) < Decimal("1e-20")
        assert abs(total.p50 - sum(each.p50 for each in found.values())) < Decimal("1e-20")
        assert total.over_paid == sum(each.over_paid for each in found.values())


@pytest.mark.parametrize("cost", ["0.0000097", "1234.5"])
def test_a_table_of_80_columns_breaks_no_amount_and_no_name(cost: str) -> None:
    """It leaves out what the others say as well, and names it below."""
    lines = [part(f"contracts-of-march-{n:08x}", "gpt-5-nano", 1, Usage(13, 0, 29), cost) for n in range(3)]
    estimated = {
        one: Estimate(Decimal(cost), Decimal(cost), Decimal(cost)) for one in (*[x.group for x in lines], None)
    }
    shown = cost_lines(reported("job", lines, listed=of_openai, estimates=estimated), 80)
    text = ["".join(span.text for span in line) for line in shown]
    assert all(len(line) <= 80 for line in text)
    table = [line for line in text if line.startswith(("contracts-of-march-", "total"))]
    assert len(table) == 4, text
    assert [line.split()[0] for line in table[:3]] == [one.group for one in lines]
    assert any(line.startswith("not shown: ") for line in text)
