"""Reports in words, as a table and as a page."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from orchestrator.cli.console_reports import cost_lines, forecast_lines
from orchestrator.core.model import Forecast, JobId, Price, Usage
from orchestrator.core.money import money
from orchestrator.policy.forecast_trust import calibrate
from orchestrator.reports.cost import CostLine, CostReport, Estimate
from orchestrator.reports.markup import breakable, environment
from orchestrator.reports.pages import DAYS, GROUPS, cost_page
from orchestrator.reports.text_tables import Line
from orchestrator.reports.words import cost_cells, cost_headline, cost_notes

NOW = datetime(2026, 11, 21, tzinfo=UTC)
TRICKY = "$a$ & <b>[bold]"


def line(group: str, cost: str = "0.5", **facts: object) -> CostLine:
    half = Price(Decimal(1), "list")
    known = CostLine(
        group, 4, Usage(3000, 1000, 200), Decimal(cost), Decimal(0), Decimal(0), False, 0,
        Price(Decimal(2), "list"), Price(Decimal(2), "list"), half, 2, None,
    )  # fmt: skip
    return replace(known, **facts)  # type: ignore[arg-type]


def report(*groups: str, by: str = "job", **facts: object) -> CostReport:
    lines = [line(group, f"{number + 1}", **facts) for number, group in enumerate(groups)]
    return CostReport(by, "openai:gpt-5-nano", lines, line("total", **facts))


MONEY = {"0": "$0", "1234.5": "$1,234.50", "0.5": "$0.5000", "0.00000012": "$0.00000012", "-0.25": "-$0.2500"}


@pytest.mark.parametrize(("cost", "words"), MONEY.items())
def test_money(cost: str, words: str) -> None:
    assert money(Decimal(cost)) == words


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    header, legal, total = cost_cells(report("legal"))
    assert header == (
        "job", "rows", "in", "cached", "out", "paid", "list", "saved", "wasted", "per document", "per 1k tokens",
    )  # fmt: skip
    assert legal == (
        "legal", "4", "3,000", "1,000", "200", "$1.00", "$2.00", "$1.00", "$0", "$0.5000", "$0.3125",
    )  # fmt: skip
    assert total[0] == "total"
    unknown = line("", documents=0, usage=Usage())
    none_known = replace(report(), lines=[unknown], total=unknown)
    assert cost_cells(none_known)[0][-1] == "wasted"
    assert cost_cells(none_known)[1] == ("no job", "4", "0", "0", "0", "$0.5000", "$2.00", "$1.50", "$0")


def test_estimates_are_marked_and_told_how_far_they_were_off() -> None:
    known = Estimate(Decimal(4), Decimal(2), Decimal("2.5"))
    guessed = report("a", estimated=True, listed=Price(Decimal(2), "list", estimated=True), estimate=known)
    [_, cells, _] = cost_cells(guessed)
    assert (cells[5], cells[6], cells[7]) == ("≈$1.00", "$4.00 (+25%)", "≈$2.00")
    still_open = line("b", estimate=Estimate(Decimal(4), Decimal(0), Decimal(0)))
    assert cost_cells(replace(guessed, lines=[still_open]))[1][6] == "$4.00"


def test_what_a_reader_must_know_is_said() -> None:
    told = " ".join(cost_notes(report("a")))
    assert "stands in" not in told
    assert "wasted" not in told
    assert "at openai:gpt-5-nano these tokens cost $2.00 outside a batch, $1.00 in a batch" in told
    guess = Price(Decimal(1), "guess", estimated=True)
    known = Estimate(Decimal(4), Decimal(2), Decimal("2.5"))
    told = " ".join(
        cost_notes(
            report("a", by="tag", listed=guess, batch=guess, wasted=Decimal(3), uncertain=Decimal(1), estimate=known)
        )
    )
    for words in (
        "openai:gpt-5-nano stands in", "≈$1.00 in a batch (≈ estimated", "wasted: failed rows",
        "$1.00 of the cost is for sends without an answer", "once in the total", "forecast: what the plans expected",
    ):  # fmt: skip
        assert words in told


def told(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


def test_the_table_shows_names_as_they_are() -> None:
    days = (date(2026, 11, 21), date(2026, 11, 22))
    title, _, header, tricky, plain, total, _, *notes = told(
        cost_lines(replace(report(TRICKY, "plain"), days=days), 200)
    )
    assert title == "Cost by job, Sat 2026-11-21 to Sun 2026-11-22"
    assert header.split()[:3] == ["job", "rows", "in"]
    assert (tricky.startswith(TRICKY), plain.split()[0], total.split()[0]) == (True, "plain", "total")
    assert notes[0].startswith("list: the same tokens")


def test_where_there_is_no_room_the_least_columns_go_and_are_named() -> None:
    cells = cost_cells(report("legal"))
    width = sum(max(map(len, column)) for column in zip(*cells, strict=True)) + 2 * (len(cells[0]) - 1)
    assert told(cost_lines(report("legal"), width))[2].split() == " ".join(cells[0]).split()
    assert told(cost_lines(report("legal"), width - 1))[2].split() == " ".join(cells[0][:3] + cells[0][4:]).split()
    said = told(cost_lines(report("legal"), 42))
    assert said[2].split() == "job rows paid list saved wasted".split(), "what matters is never left out"
    assert "not shown: in, cached, out, per document, per 1k tokens" in " ".join(said)
    assert max(map(len, said)) <= 42


def test_the_forecast_table_says_whether_to_trust_them() -> None:
    def made(kind: str, number: int, actual: float | None) -> list[Forecast]:
        one = Forecast(JobId("j"), kind, "openai", "m", NOW, 100, 200, "prior", actual=actual)
        return [one] * number

    forecasts = [*made("cost", 10, 300), *made("output", 3, 50), *made("output", 1, None)]
    said = told(forecast_lines(calibrate(forecasts), 100))
    assert said[0] == "Forecasts made from Sat 2026-11-21 00:00 UTC to Sat 2026-11-21 00:00 UTC"
    assert said[3].split() == "cost openai m 10 — 0% 0% 3.00 × p50 no".split()
    assert said[4].split() == "output openai m 3 1 100% 100% 0.50 × p50 too few".split()
    assert said[-2:] == [
        "cost openai m: too optimistic: 0 of 10 within the p95; expected 10",
        "too few to judge, 10 needed: output openai m",
    ]


class _Page(HTMLParser):
    """What is in a page: tags with their attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page.replace("<wbr>", ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def plot(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def texts(page: str) -> list[str]:
    return [found.text or "" for found in plot(page).iter("{http://www.w3.org/2000/svg}text")]


def test_a_page_needs_nothing_else_and_fits_a_phone() -> None:
    page = cost_page(report(TRICKY, "plain"), NOW, "7d")
    found = _Page(page)
    names = [tag for tag, _ in found.tags]
    assert not {"script", "link", "img", "iframe"} & set(names)
    for _, attributes in found.tags:
        assert not {"src", "onload"} & set(attributes)
        assert all((attributes.get(name) or "#").startswith("#") for name in ("href", "xlink:href"))
    assert "@import" not in page
    assert all(url.startswith("#") for url in re.findall(r"url\((.*?)\)", page))
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in found.tags
    assert "since 7d, made" in page


def test_names_are_no_markup_and_no_formula_in_a_page() -> None:
    page = cost_page(report(TRICKY, "plain"), NOW, None)
    assert TRICKY in _Page(page).text
    assert "<b>" not in page
    assert TRICKY in texts(page)
    assert {"paid", "list price"} <= set(texts(page))
    assert "since" not in page


def test_a_page_has_every_line_and_the_total() -> None:
    groups = [f"job-{number:02}" for number in range(GROUPS + 3)]
    page = cost_page(report(*groups), NOW, None)
    cells = _Page(page).text
    assert all(group in cells for group in groups)
    assert "3 more are in the table alone" in cells
    drawn = [text for text in texts(page) if text.startswith("job-")]
    assert drawn == list(reversed(groups[3:])), "the dearest first"


def test_days_stand_in_their_order_and_the_newest_are_drawn() -> None:
    days = [date.fromordinal(date(2026, 10, 1).toordinal() + number).isoformat() for number in range(DAYS + 5)]
    page = cost_page(report(*days, by="day"), NOW, None)
    drawn = [text for text in texts(page) if re.match(r"\d\d \w{3}$", text)]
    assert drawn[0] == "06 Oct"
    assert drawn == sorted(drawn, key=[f"{date.fromisoformat(day):%d %b}" for day in days].index)
    assert len(drawn) <= 7, "there is room for no more on a phone"


def test_long_names_are_cut_in_the_plot_alone() -> None:
    name = "a-very-long-name-of-a-job-that-nobody-would-type"
    page = cost_page(report(name, "", "契約 🙂"), NOW, None)
    assert name in _Page(page).text
    assert {"a-very-long…uld-type", "no job", "契約 🙂"} <= set(texts(page))


def test_a_page_of_nothing_says_so() -> None:
    page = cost_page(CostReport("job", "openai:gpt-5-nano", [], line("total", "0")), NOW, None)
    assert "Nothing was paid for." in page
    empty = CostReport("job", "openai:gpt-5-nano", [], line("total", "0"))
    assert told(cost_lines(empty, 80)) == ["Cost by job", "", "Nothing was paid for."]
    assert "<svg" not in page


def test_a_cost_page_sums_up_in_a_sentence() -> None:
    assert (
        cost_headline(report("a"))
        == "4 rows of 2 documents for $0.5000, $0.2500 a document, 75% less than at list price"
    )
    dear = line("total", "9", wasted=Decimal("0.09"))
    told = cost_headline(replace(report("a"), total=dear))
    assert told == "4 rows of 2 documents for $9.00, $4.50 a document, 4 times the list price, 1.0% of it wasted"
    assert cost_headline(replace(report("a"), total=line("total", "3"))).endswith("50% more than at list price")
    assert (
        cost_headline(replace(report("a"), total=line("total", "2")))
        == "4 rows of 2 documents for $2.00, $1.00 a document"
    )
    assert "above list price" in cost_page(replace(report("a"), total=dear), NOW, None)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("folder/of/letter.txt", "folder/<wbr>of/<wbr>letter.txt"),
        ("task.of_each_agreement", "task.<wbr>of_<wbr>each_<wbr>agreement"),
        ("content_filter stopped", "content_filter stopped"),
        ("a/content_filter", "a/<wbr>content_<wbr>filter"),
        ("≈$0.000072", "≈$0.000072"),
        ("vertragspruefung-liegenschaften", "vertragspruefung-liegenschaften"),
        ("w" * 50, "<wbr>".join(["w" * 24, "w" * 24, "ww"])),
        ("<b>", "&lt;b&gt;"),
        ("of 2026-11-28", 'of <span class="whole">2026-11-28</span>'),
        ("(contracts-2):", '<span class="whole">(contracts-2):</span>'),
        ("in 1 h 59 min", 'in <span class="whole">1 h</span> <span class="whole">59 min</span>'),
        ("a well-made word", "a well-made word"),
        ("jobs/results.jsonl", "jobs/<wbr>results.jsonl"),
    ],
)
def test_names_break_between_their_parts(name: str, shown: str) -> None:
    assert breakable(name) == shown


def test_a_message_shows_its_commands_as_code_and_lets_its_names_break() -> None:
    shown = environment().from_string("{{ text | code }}")
    assert shown.render(text="run `orch gc` in a/b.txt <now>") == (
        "run <code>orch gc</code> in a/<wbr>b.txt &lt;now&gt;"
    )
    assert shown.render(text="one ` alone") == "one ` alone"


def test_the_same_report_gives_the_same_page() -> None:
    assert cost_page(report("a", "b"), NOW, None) == cost_page(report("a", "b"), NOW, None)
