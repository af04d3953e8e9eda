"""Cost reports: sums by group, beside what the same tokens cost elsewhere."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.model import Usage
from orchestrator.reports import cost_report
from orchestrator.store.ledger import Total

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NANO = "openai:gpt-5-nano"  # dollars per million tokens: 0.05 in, 0.40 out; half of it as a batch
NONE = Decimal(0)
TOTALS = [
    Total("legal", "tiny", 2, Usage(2_000_000, 900_000, 1_000_000, 400_000), Decimal("0.1"), NONE, False),
    Total("legal", "big", 1, Usage(1_000_000, 0, 0, 0, 5000), Decimal("0.200000000001"), Decimal("0.05"), True),
    Total("sales", "tiny", 5, Usage(0, 0, 10), NONE, NONE, False),
]


def test_groups_are_summed_over_their_models() -> None:
    report = cost_report("tag:team", TOTALS, NANO, NOW)
    legal, sales = report.lines
    assert (legal.group, legal.rows, legal.usage) == ("legal", 3, Usage(3_000_000, 900_000, 1_000_000, 400_000, 5000))
    assert (legal.cost, legal.uncertain, legal.estimated) == (Decimal("0.300000000001"), Decimal("0.05"), True)
    assert (sales.group, sales.rows, sales.cost, sales.estimated) == ("sales", 5, NONE, False)
    assert report.total.rows == 8
    assert report.total.cost == legal.cost + sales.cost
    assert report.total.uncertain == Decimal("0.05")
    assert report.total.usage == Usage(3_000_000, 900_000, 1_000_010, 400_000, 5000)


def test_list_prices_stand_beside_without_the_discount_of_our_own_cache() -> None:
    legal = cost_report("tag:team", TOTALS, NANO, NOW).lines[0]
    assert legal.realtime.cost == 3 * Decimal("0.05") + Decimal("0.4")
    assert legal.batch.cost == legal.realtime.cost / 2
    assert (legal.realtime.estimated, legal.batch.estimated) == (False, False)


def test_a_batch_price_that_is_a_guess_is_marked() -> None:
    embedded = [Total("a", "e", 1, Usage(1000), NONE, NONE, False)]
    report = cost_report("job", embedded, "openai:text-embedding-3-small", NOW)
    assert report.lines[0].batch.estimated
    assert report.to_json()["total"]["hosted"]["batch_estimated"] is True


def test_many_short_rows_are_not_priced_as_one_long_prompt() -> None:
    # gpt-6.1-sol takes twice as much of a prompt above 272,000 tokens; these are 300 of 1,000.
    short = [Total("a", "tiny", 300, Usage(300_000, 0, 3000), NONE, NONE, False)]
    line = cost_report("job", short, "openai:gpt-6.1-sol", NOW).lines[0]
    assert (line.realtime.cost, line.batch.cost) == (Decimal("0.63"), Decimal("0.315"))


def test_a_model_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(InputError, match="no price is known for openai:gpt-none"):
        cost_report("job", TOTALS, "openai:gpt-none", NOW)


def test_a_report_of_nothing_is_zero() -> None:
    report = cost_report("job", [], NANO, NOW)
    assert (list(report.lines), report.total.rows, report.total.cost, report.total.batch.cost) == ([], 0, NONE, NONE)


def test_json_tells_money_as_exact_text() -> None:
    told = cost_report("tag:team", TOTALS, NANO, NOW).to_json()
    assert {name: told[name] for name in ("by", "compare")} == {"by": "tag:team", "compare": NANO}
    assert told["lines"][0] == {
        "group": "legal",
        "rows": 3,
        "tokens": {
            "input": 3_000_000, "cached": 900_000, "cache_write": 5000, "output": 1_000_000, "reasoning": 400_000,
        },
        "cost_usd": "0.300000000001",
        "uncertain_usd": "0.05",
        "cost_estimated": True,
        "hosted": {
            "realtime_usd": "0.550000000000",
            "batch_usd": "0.275000000000",
            "batch_estimated": False,
            "source": "genai-prices: openai:gpt-5-nano",
        },
    }  # fmt: skip


def test_csv_has_a_line_for_each_group() -> None:
    tricky = [Total('a,"b"\n', "tiny", 1, Usage(1, 0, 1), Decimal("1E-12"), NONE, False), *TOTALS]
    text = cost_report("tag:team", tricky, NANO, NOW).to_csv()
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
    }  # fmt: skip


LINES = st.lists(
    st.builds(
        Total,
        st.sampled_from("abc"),
        st.sampled_from(["tiny", "big"]),
        st.integers(0, 1000),
        st.builds(Usage, *[st.integers(0, 10**6)] * 5),
        st.decimals(0, 1000, places=12),
        st.decimals(0, 1000, places=12),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=50)
@given(LINES)
def test_the_total_is_the_sum_of_the_lines_in_every_figure(totals: list[Total]) -> None:
    report = cost_report("job", totals, NANO, NOW)
    assert [line.group for line in report.lines] == list(dict.fromkeys(total.group for total in totals))
    assert report.total.rows == sum(line.rows for line in report.lines) == sum(total.rows for total in totals)
    assert report.total.cost == sum(line.cost for line in report.lines) == sum(total.cost for total in totals)
    assert report.total.uncertain == sum(line.uncertain for line in report.lines)
    assert report.total.uncertain == sum(total.uncertain for total in totals)
    for name in ("input", "cached", "output", "reasoning", "cache_write"):
        told = getattr(report.total.usage, f"{name}_tokens")
        assert told == sum(getattr(line.usage, f"{name}_tokens") for line in report.lines)
        assert told == sum(getattr(total.usage, f"{name}_tokens") for total in totals)
    assert report.total.realtime.cost == sum(line.realtime.cost for line in report.lines)
    assert report.total.batch.cost == sum(line.batch.cost for line in report.lines)
    assert report.total.estimated == any(total.estimated for total in totals)
