"""Acts of a history around its commands: its disk, database and pages, and a caller's script beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from orchestrator.core.model import Job
from orchestrator.store import Store
from tests.support.cli import Process, kill_group
from tests.support.faulty_disk import FaultyDisk
from tests.support.hostedjob import MODEL
from tests.support.library import start_script
from tests.support.postgres import break_connections
from tests.support.process import wait_until

if TYPE_CHECKING:
    from tests.support.histories import History

LONGEST_CALL = 180.0
LIBRARY = """
import orchestrator as orch

rows = [{{"text": text}} for text in {texts}]
orch.map(rows, "Who is {{{{ text }}}}?", name="people", model="small", job={{"models": {{"small": "{model}"}}}})
"""
"""A caller's script."""
PAGES = re.compile(r"http://\S+/enter\S*")
TOKEN = re.compile(r'name="form_token" value="(\w+)"')
STORAGE = 4
"""What a command ends with that could not write, or lost its database."""
ENDS = (0, 1, 3, STORAGE)


def unfinished(store: Store) -> list[Job]:
    return [job for job in store.jobs.newest() if job.finished_at is None and job.error is None]


def run_on_bad_disk(history: History) -> None:
    """Writes fail, as on a full disk, a few at a time or for a while."""
    if history.disk is None:
        return
    disk = FaultyDisk(history.disk, history.home, history.dice)
    disk.beset(history._orch, ["run", history._path(), "-q"], history.env, ENDS)
    history.acts.append(f"  {dict(disk.codes)} {dict(disk.faults)}")
    assert disk.broken == [], history._story()


def run_behind_pooler(history: History) -> None:
    """From here on, or not any more."""
    history.is_pooled = not history.is_pooled


def database_restarts(history: History) -> None:
    """While a command runs: its connections end, and it gets none for a moment."""
    if history._database is None:
        return
    command = history.dice.choice([("up", "-q"), ("run", history._path(), "-q")])
    process = history._orch.start(*command, env=history.env)
    history._live_on(process)
    with break_connections(history.database_url):
        history._live_on(process)
    history._live_on(process)
    history._end(command, process, STORAGE)


def cancel_on_pages(history: History) -> None:
    """While the daemon that serves them runs."""
    command = ("up", "-q", "--web", "127.0.0.1:0", "--web-actions")
    process = history._orch.start(*command, env=history.env)
    wait_until(lambda: process.poll() is not None or PAGES.search(history._orch.output(process)), 60.0)
    if (link := PAGES.search(history._orch.output(process))) and process.poll() is None:
        with Store.open(history.env["ORCH_DATABASE_URL"]) as store:
            job = next(iter(unfinished(store)), None)
        with httpx2.Client(timeout=60.0) as reader:
            at = str(reader.get(link[0], follow_redirects=True).url.join("/"))
            page = "" if job is None else reader.get(f"{at}jobs/{job.id}").text
            if job is not None and (token := TOKEN.search(page)) is not None:
                done = reader.post(f"{at}do/cancel", data={"form_token": token[1], "job": job.id})
                history.acts.append(f"  cancels {job.id}: {done.status_code}")
                with Store.open(history.env["ORCH_DATABASE_URL"]) as store:
                    has_ended = all(one.id != job.id for one in unfinished(store))
                # It may end between its page and the click.
                assert done.status_code in (200, 303) or has_ended, done.text
        history._live_on(process)
    history._end(command, process)


def library_killed(history: History) -> None:
    """A caller's script that maps the lines of the batch file."""
    history.is_library = True
    process, _ = _script(history)
    history._live_on(process)
    kill_group(process)
    process.wait()


def _script(history: History) -> tuple[Process, Path]:
    script = history.folder / "people.py"
    texts = [f"{row}-{of}" for row, of in enumerate(history.lines)]
    script.write_text(LIBRARY.format(texts=texts, model=MODEL))
    output = history.folder / f"people-{len(history.acts)}.log"
    return start_script(script, history.home, history.env, output), output


def finish_script(history: History) -> None:
    """Call it again until it has all its answers; a cancelled or failed row is asked again by `orch retry`."""
    for _ in range(6):
        process, output = _script(history)
        code, said = process.wait(LONGEST_CALL), output.read_text()
        history.acts.append(f"  people: {code}: {said[-2000:]}")
        if code != 0:
            assert said.strip().splitlines()[-1].startswith("orchestrator."), (said, history._story())
            if "orch adopt" in said:
                history.run("adopt")
            else:
                assert history._repay(), (said, history._story())
            continue
        with Store.open(history.env["ORCH_DATABASE_URL"]) as store:
            job = next(one for one in store.jobs.newest() if one.name == "people")
            counts = store.jobs.counts([job.id])[job.id]
        if counts.succeeded == counts.total == len(history.lines):
            return
        history.run("retry", job.id, "-q")
    raise AssertionError(("it does not end", history._story()))


AROUND = (run_on_bad_disk, run_behind_pooler, database_restarts, cancel_on_pages, library_killed)
