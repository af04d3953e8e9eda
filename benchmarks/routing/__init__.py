"""`python -m benchmarks routing`: our planner and guard against simple rules, over thousands of simulated nights.

Every policy lives through the same seeded nights on a virtual clock; a clairvoyant, who knows each night beforehand,
says what could have been. Nights in which not even he is in time are left out of the comparison, and count in what
was told of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.routing.coverage import added, spelled_coverage
from benchmarks.routing.invented import INVENTED
from benchmarks.routing.judged import JUDGED
from benchmarks.routing.scenarios import SCENARIOS
from benchmarks.routing.table import GOAL_COST, GOAL_IN_TIME, Result, informed, run, spelled, together
from benchmarks.routing.unseen import UNSEEN
from benchmarks.routing.unused import UNUSED
from benchmarks.serving import say

ALL = {**SCENARIOS, **UNSEEN}
KNOWN = {**ALL, **UNUSED, **JUDGED, **INVENTED}


def main(argv: Sequence[str]) -> None:
    """Print a table for each scenario, where ours loses, and whether what it told came true."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks routing")
    parser.add_argument("--nights", type=int, default=50, help="per scenario (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--scenarios",
        default=",".join(ALL),
        help="names with commas between, `seen`, `unseen`, `unused`, `judged`, `invented`; the first two",
    )
    parser.add_argument("--alone", action="store_true", help="without the simple rules")
    parser.add_argument("--probe", action="store_true", help="ours sends probes to routes long unused")
    parser.add_argument("--informed", action="store_true", help="only the best rules that know the world (slow)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of tables")
    chosen = parser.parse_args(argv)
    groups = {"seen": list(SCENARIOS), "unseen": list(UNSEEN), "unused": list(UNUSED), "judged": list(JUDGED)}
    groups["invented"] = list(INVENTED)
    names = [name for given in chosen.scenarios.split(",") for name in groups.get(given, [given])]
    if unknown := [name for name in names if name not in KNOWN]:
        parser.error(f"no scenario {unknown[0]!r}; there are: {', '.join(KNOWN)}")
    results = []
    for name in names if chosen.informed else ():
        for row in informed(KNOWN[name], chosen.seed, chosen.nights):
            say(f"{name}: {row.policy}: in time {row.in_time:.2%}, {row.cost:.3f}x")
    if chosen.informed:
        return
    for name in names:
        result = run(KNOWN[name], chosen.seed, chosen.nights, alone=chosen.alone, probe=chosen.probe)
        results.append(result)
        sys.stdout.write(json.dumps(result.as_json()) + "\n" if chosen.json else _table(result))
        sys.stdout.flush()
    if not chosen.json:
        say(_summary(results).removesuffix("\n"))


def _table(result: Result) -> str:
    head = (
        f"\n{result.scenario}: {result.about} (seed {result.seed}, {result.nights:,} nights; {result.possible:,} of "
        f"{result.jobs:,} jobs could be in time, for ${result.least:.2f})\n"
        f"  {'':28}{'in time':>10}{'cost / clairvoyant':>20}{'mean hours late':>17}\n"
    )
    rows = "".join(
        f"  {row.policy:28}{row.in_time:>10.2%}{row.cost:>19.3f}x{row.late_hours:>17.2f}\n" for row in result.rows
    )
    told = spelled(result.told) + spelled_coverage(result.coverage)
    told += f"  cost no more than told: {result.within:,} of {result.priced:,} jobs\n"
    return head + rows + told + "".join(f"  loses: {text}\n" for text in result.lost)


def _summary(results: Sequence[Result]) -> str:
    jobs = sum(result.possible for result in results)
    in_time = sum(result.ours.in_time * result.possible for result in results) / max(1, jobs)
    cost = sum(result.ours.cost for result in results) / len(results)
    lost = [result.scenario for result in results if result.lost]
    return (
        f"\nours over all: in time {in_time:.2%} of {jobs:,} jobs (goal {GOAL_IN_TIME:.0%}), "
        f"cost {cost:.3f}x the clairvoyant's, the mean over scenarios (goal {GOAL_COST}x); "
        f"goals not reached in {', '.join(lost) or 'none'}\n"
        f"what was told, at submission and four later looks:\n{spelled(together(results))}"
        f"{spelled_coverage(added(result.coverage for result in results))}"
    )
