"""Random histories of a home: backups, work, kills, older backups put back, its id deleted, its job file moved."""

from __future__ import annotations

import random

from orchestrator.core.clock import now
from orchestrator.core.model import REPAY, Job
from orchestrator.store.home_evidence import recognise
from tests.support.hostedjob import HOUR, MINUTE, cost_of, plain
from tests.support.restoring import Backups

ACTS = ("work", "work", "work", "wait", "kill", "save", "put_back", "put_back_database", "lose_id", "move")


def live(backups: Backups, seed: int, acts: int = 14) -> list[str]:
    """Live one history to its end and check the bill; what was done."""
    desk, chance, done = backups.desk, random.Random(seed), list[str]()
    desk.backend("openai", limits={"max_rows": chance.randint(3, 12)})
    path = desk.written(b"")
    rows = plain(chance.randint(6, 24))
    job = desk.submit(rows)
    path = desk.folder / "rows-2.jsonl"
    saved = ["s0"]
    backups.save("s0")
    for number in range(1, acts):
        act = chance.choice(ACTS)
        done.append(act)
        match act:
            case "work":
                for _ in range(chance.randint(1, 4)):
                    desk.step(job)
            case "wait":
                desk.provider.clock.advance(chance.choice([MINUTE, 20 * MINUTE, 3 * HOUR]))
                desk.settle(job)
            case "kill":
                desk.start_anew()
            case "save":
                saved.append(f"s{number}")
                backups.save(saved[-1])
            case "put_back":
                backups.put_back(chance.choice(saved))
            case "put_back_database":
                backups.put_back(chance.choice(saved), files=False)
            case "lose_id":
                (desk.home.root / "home.id").unlink(missing_ok=True)
                desk.start_anew()
                recognise(desk.home, desk.store)
            case "move":
                path = path.rename(path.with_name(f"rows-at-{number}.jsonl"))
        if act not in ("work", "wait", "save") and not desk.is_over(job):
            assert desk.submit(path).id == job.id, done
    _end(backups, job, done)
    return done


def _end(backups: Backups, job: Job, done: list[str]) -> None:
    """Everything was paid once, and booked; what is gone is paid again only where somebody agrees to it."""
    desk = backups.desk
    rows = len(desk.rows(job)) if desk.is_over(job) else None
    for _ in range(200):
        if desk.is_over(job):
            break
        before = len(desk.said)
        if not desk.settle(job):
            desk.provider.clock.advance(20 * MINUTE)
        if any("their answers are gone" in said for said in desk.said[before:]):
            done.append("repay")
            assert max(desk.billed().values(), default=0) <= 1 + done.count("repay"), done
            desk.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
    assert desk.is_over(job), (done, desk.states(job), desk.said[-3:])
    assert set(desk.ends(job).values()) == {"succeeded"}, (done, rows)
    most = max(desk.billed().values())
    assert most == 1 or "repay" in done, (done, desk.billed())
    assert desk.cost(job) == cost_of(desk.provider.bill()), (done, desk.states(job))
