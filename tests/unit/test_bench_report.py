"""A bench on a terminal of 80 columns, as a page, and as JSON; engines that fail included."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.bench.halving import Winner
from orchestrator.bench.page import bench_page
from orchestrator.bench.point import BenchPoint, PointEnd
from orchestrator.bench.report import BenchReport, Measured, Tuned, TunePoint
from orchestrator.bench.rows import Mode
from orchestrator.bench.sweep import Knee, NoKnee
from orchestrator.bench.verdict import verdict
from orchestrator.cli.console_bench import bench_lines
from orchestrator.core.engines import EngineRates
from orchestrator.reports.text_tables import cell_width

NOW = datetime(2026, 11, 22, 22, 0, tzinfo=UTC)


def point(concurrency: int, rate: float, mode: Mode = Mode.CONTINUOUS, **facts: object) -> BenchPoint:
    given = BenchPoint(
        concurrency, mode, PointEnd.MEASURED, 600, 20.0, rate, 1000 * rate, 100 * rate, 0.5, 0.9, 640, 0.0, 0.61, 2,
        0.93, 70 * 1024**3, None,
    )  # fmt: skip
    return replace(given, **facts)  # type: ignore[arg-type]


FALLEN = point(
    512, 0.0, end=PointEnd.FELL_OVER, error_share=1.0, problem="503 \x1b[31mred", kv_peak=None, vram_peak=None
)
SWEEP = (point(128, 3.0), point(256, 6.0), FALLEN)
TRIED = TunePoint(("--max-num-seqs", "512"), 0, point(512, 7.0), None)
FAILED = TunePoint(("--no-enable-chunked-prefill",), 0, None, "the engine ended with code 1: " + "long words " * 20)
REPORT = BenchReport(
    job="letters", backend="gpu", model="m", engine_version="0.33.0", gpus=("NVIDIA H200",), options=(), rows=1000,
    job_rows=20_000, documents=10_000, left_out=0,
    measured=Measured(
        SWEEP, Knee(256, 240, 6.0, 512, "6 rows/s at 256"), point(256, 20.0),
        (SWEEP[1], point(256, 5.0, Mode.DYNAMIC), point(256, 3.0, Mode.STATIC)), 0.25, point(256, 4.0), "grouped",
    ),
    tuned=Tuned((TunePoint((), 0, point(512, 6.0), None), TRIED, FAILED), Winner(TRIED.options, 7.0, 6.0)),
    verdict=verdict(
        rows_per_second=6.0, rows=20_000, documents=10_000, cost_per_hour=Decimal("2.5"), start_seconds=60.0,
        idle_seconds=600.0, hosted=("openai:gpt-5-nano", Decimal("0.0003"), True), now=NOW,
    ),
    rates=EngineRates("h", "gpu", "m", "", "0.33.0", "", 9e4, 8e3, 1000.0, 100.0, 256, 60.0, None, NOW),
    is_applied=True, at=NOW, notes=("VRAM is not known",),
)  # fmt: skip


def text(report: BenchReport, width: int | None) -> list[str]:
    return ["".join(span.text for span in line) for line in bench_lines(report, width)]


def test_80_columns_hold_it_and_say_what_they_left_out() -> None:
    lines = text(REPORT, 80)
    assert max(map(cell_width, lines)) <= 80
    shown = " ".join(lines)
    for told in ("21,600", "P50", "P99", "fell_over", "static", "file order", "not shown", "the engine ended with"):
        assert told in shown
    assert "continuous is 2.00 times static batching" in shown
    assert "continuous is 1.20 times dynamic batching (window 0.25 s)" in shown
    assert "rows grouped by prefix are 1.50 times the file's order" in shown
    assert "--max-num-seqs 512 is best, 25,200 rows/h, +17% against the defaults" in shown
    assert "best at 256 ± 6 % rows at once" in shown


def test_a_page_has_plots_and_both_tables_and_no_control_characters() -> None:
    page = bench_page(REPORT)
    assert page.count("<svg") == 3
    assert page.count("<table") == 2
    assert "\x1b" not in page
    assert REPORT.verdict is not None
    assert REPORT.verdict.sentence in page


@pytest.mark.parametrize("width", [None, 40, 80])
def test_an_engine_that_fails_at_everything_is_shown_all_the_same(width: int | None) -> None:
    failed = replace(
        REPORT, measured=Measured((FALLEN,), NoKnee("it fails at 1 at once"), None, (), 0.0, None, "as in the file"),
        tuned=None, verdict=None, rates=None, is_applied=False,
    )  # fmt: skip
    assert "no concurrency works" in " ".join(text(failed, width))
    assert bench_page(failed).count("<svg") == 2
    assert json.loads(json.dumps(failed.to_json()))["knee"] is None


def test_points_come_back_from_json_as_they_were() -> None:
    told = json.loads(json.dumps(REPORT.to_json()))
    assert tuple(map(BenchPoint.of_json, told["sweep"])) == SWEEP
    assert tuple(map(TunePoint.of_json, told["tune"]["points"])) == REPORT.tuned.points if REPORT.tuned else False
