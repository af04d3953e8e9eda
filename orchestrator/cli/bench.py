"""`orch bench`: measures an engine with a job's own rows, compares settings and prices a night."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.console_progress import LiveProgress, progress
from orchestrator.cli.failed_commands import CommandInterrupted
from orchestrator.cli.options import FILE
from orchestrator.cli.output import json_option, print_json, quiet_option
from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.durations import HOUR, duration
from orchestrator.core.errors import UsageError
from orchestrator.library.context import ready, say_exposure

if TYPE_CHECKING:
    from orchestrator.bench.halving import Contest
    from orchestrator.bench.report import TunePoint
    from orchestrator.bench.rows import Mode
    from orchestrator.bench.run import BenchListeners
    from orchestrator.bench.session import BenchProgress

MODES = "static,dynamic,continuous"


@click.command()
@FILE
@click.option("--backend", metavar="NAME", help="The backend to measure, if orch.toml has several.")
@click.option(
    "--minutes", type=click.FloatRange(min=0.1, max=24 * 60), default=10.0, show_default=True, metavar="N",
    help="About how long to measure. Settings (--tune) take extra time: N seconds each at first.",
)  # fmt: skip
@click.option(
    "--modes", default=MODES, show_default=True, metavar="LIST",
    help="What to compare at the best concurrency: static and dynamic batching, continuous.",
)  # fmt: skip
@click.option(
    "--vs", "versus", metavar="BACKEND:MODEL", help="Compare with what a backend's or provider's model would cost."
)
@click.option(
    "--tune", "effort", type=click.Choice(["quick", "full"]),
    help="Also try vLLM's own settings, each in an engine that is started for it.",
)  # fmt: skip
@click.option("--apply", "applies", is_flag=True, help="Use the measured figures in plans for this engine.")
@click.option("--new", "is_new", is_flag=True, help="Measure again what an earlier bench of these rows has measured.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write it as an HTML page.")
@click.option("--force", "overwrite", is_flag=True, help="Overwrite a file that orch did not write.")
@quiet_option
@json_option
def bench(
    file: Path, backend: str | None, minutes: float, modes: str, versus: str | None, effort: str | None,
    applies: bool, is_new: bool, html: Path | None, overwrite: bool, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Measure an engine with a job's rows, and show the cost of a night.

    A sample with the job's mix of long and short rows goes through orch's own dispatcher. It runs 1, 2, 4 ... rows at
    once until throughput no longer grows. Answers are not kept. If the bench is killed, the same command continues
    with the unfinished point.
    """
    from orchestrator.bench.run import Bench, BenchWishes

    wishes = BenchWishes(file, backend, minutes, _modes(modes), versus, effort, is_new=is_new, applies=applies)
    with ready() as context, progress(quiet=quiet or as_json) as view:
        say_exposure(context)
        if html is not None:
            from orchestrator.cli.rows import require_own

            require_own(context, html, "--html", overwrite=overwrite)
        try:
            report = Bench(context.store, context.home, context.config, wishes, now, _listeners(view)).run()
        except KeyboardInterrupt:
            raise CommandInterrupted("the bench has stopped; the same command continues with the next one") from None
        view.stop()
        if html is not None:
            from orchestrator.bench.page import bench_page
            from orchestrator.cli.report import written

            written(context, html, bench_page(report), overwrite=overwrite)
    if as_json:
        print_json(report.to_json())
    else:
        from orchestrator.cli.console import out
        from orchestrator.cli.console_bench import bench_lines

        out().print(bench_lines(report, out().width))
    return 0 if report.measured.at_knee is not None else 4


def _modes(text: str) -> tuple[Mode, ...]:
    from orchestrator.bench.rows import Mode

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in MODES.split(","):
            raise UsageError(f"--modes {text}: {name!r} is not one of {MODES.replace(',', ', ')}")
    return tuple(mode for mode in Mode if mode.value in names)


def _listeners(view: LiveProgress) -> BenchListeners:
    from orchestrator.bench.run import BenchListeners

    return BenchListeners(
        lambda text: view.note(f"orch: {text}"), view.reading, lambda one: _tell_point(view, one),
        lambda step, point: _tell_tuning(view, step, point),
    )  # fmt: skip


def _tell_point(view: LiveProgress, one: BenchProgress) -> None:
    eta = (
        ""
        if one.eta_seconds is None
        else f"; about {number_of(one.left, 'more point')}, ETA {duration(one.eta_seconds)}"
    )
    if one.result is None:
        view.step(f"measuring {one.name}{eta}")
        return
    result = one.result
    failed = f", {result.problem}" if result.problem else ""
    view.note(f"orch: {one.name}: {result.rows_per_second * HOUR:,.0f} rows/h, P99 {result.p99:.2f} s{failed}{eta}")


def _tell_tuning(view: LiveProgress, step: Contest, point: TunePoint | None) -> None:
    name = " ".join(step.options) or "the defaults"
    if point is None:
        view.step(f"trying {name}, round {step.round + 1}; about {step.left} points")
    elif point.result is None:
        view.note(f"orch: {name}: {point.problem}")
    else:
        view.note(
            f"orch: {name}: {point.result.rows_per_second * HOUR:,.0f} rows/h; "
            f"about {number_of(step.left - 1, 'more point')}"
        )
