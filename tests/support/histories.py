"""Random histories of a home before a provider with a bill, lived by real processes that are killed.

Files are edited, older states of the home are put back, its folder is moved and its id is lost. However a history
goes, at its end no request was paid twice and the ledger has what the bill has.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import OperationalError, connect
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from sqlalchemy import make_url

from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobId
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.emulator.clock import ClockFile
from tests.emulator.driving import chat_line, jsonl
from tests.support.cli import CONFIG, Orch, Process, kill_group
from tests.support.history_surroundings import AROUND, finish_script, unfinished
from tests.support.hostedjob import KEY, MODEL, cost_of, settings_of, write_toml
from tests.support.postgres import copy_database
from tests.support.process import wait_until

SPEED = 900.0
"""Virtual seconds a second: a batch of minutes takes less than one."""
DOCUMENTS, LINES = 5, 5
LONGEST_RUN, LONGEST_LIFE = 180.0, 4.0
"""Seconds: of a run that is let finish, and of one that is killed."""
FINISHED, USAGE, REFUSED = (0, 1), 2, 3
"""What a run ends with: 1 if rows have no answer, 3 if somebody has to decide. An open job cannot be retried."""
UNDER_WAY = ("validating", "in_progress", "finalizing")
ODD_LISTS = ("no_has_more", "unpaged_list", "reversed_list", "doubled_list")
GOES_ON = "`orch cancel` completes it"
"""A cancelled job whose provider does not answer ends later."""
REPAYS = re.compile(r"orch retry (\S+) --repay")
RESUMED = "resuming where it stopped"
KNOWN = (*FINISHED, REFUSED)
LATE_CANCELS = ("slow_cancel", "cancel_ignored")


@dataclass
class History:
    """`live` does so many acts, `end` lets everything finish and checks the bill. `acts` says what was done."""

    folder: Path
    provider: Emulator
    database_url: str
    dice: random.Random
    disk: Path | None = None
    """The library that makes a disk fail."""
    pooled_url: str | None = None
    """The database behind a PgBouncer."""
    acts: list[str] = field(default_factory=list)
    agreed: int = 0
    """How often somebody agreed to pay for a request once more."""
    restored: bool = False
    abandoned: bool = False
    is_pooled: bool = False
    is_library: bool = False

    def __post_init__(self) -> None:
        self.place = self.folder / "project-0"
        (self.place / "home").mkdir(parents=True)
        self.documents = "documents"
        (self.place / self.documents).mkdir()
        self.is_sqlite = self.database_url.startswith("sqlite")
        self.versions: dict[str, int] = {f"{number}.txt": 0 for number in range(DOCUMENTS)}
        self.lines = [0] * LINES
        self.prompt, self.tag, self.deadline = 0, 0, ""
        self.batch_file = "requests-0.jsonl"
        self.stand_beside = self.dice.random() < 0.25
        self.saved: list[str] = []
        self._orchs: list[Orch] = []
        self._orch = Orch(self.place / "home")
        self.provider.settings(turnaround_s=[60, 1500], latency_ms=5)
        found = {"openai": settings_of(self.provider, "openai", poll_seconds=0.2, limits={"max_rows": 3})}
        write_toml(self.place / CONFIG, found)
        self._write()

    # --- a home and its files

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def env(self) -> dict[str, str]:
        database = f"sqlite:///{self.home / 'orch.db'}" if self.is_sqlite else self.database_url
        if self.is_pooled and self.pooled_url is not None:
            database = self.pooled_url
        found = {"ORCH_DATABASE_URL": database, "ORCH_CONFIG": str(self.place / CONFIG), "OPENAI_KEY": KEY}
        return {**self.provider.environment, **found}

    @property
    def files(self) -> list[Path]:
        return [self.place / "job.yaml", self.place / self.batch_file]

    def _write(self) -> None:
        """Write the documents, the job file and the batch file as they are now."""
        folder = self.place / self.documents
        for old in folder.iterdir():
            old.unlink()
        for name, version in self.versions.items():
            (folder / name).write_text(f"Letter {name}, version {version}.")
        (self.place / "job.yaml").write_text(
            f"name: letters\ndocuments: {self.documents}\nmodels: {{small: {MODEL}}}\ntags: {{edit: n{self.tag}}}\n"
            f"{self.deadline}\ntasks: [{{id: who, prompt: 'Who wrote this? ({self.prompt})', model: small}}]\n"
        )
        asked = [
            chat_line(f"r{row}-{of}", f"what of {row}, {of}?", MODEL, max_tokens=50, temperature=0)
            for row, of in enumerate(self.lines)
        ]
        (self.place / self.batch_file).write_bytes(jsonl(asked))

    def _path(self) -> str:
        return str(self.dice.choice(self.files))

    # --- processes

    def run(self, *command: str, timeout: float = LONGEST_RUN) -> subprocess.CompletedProcess[str]:
        """A command to its end. It may refuse, but never fail."""
        try:
            done = self._orch(*command, env=self.env, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{command} does not end:\n{self._story()}") from None
        said = f"{done.stdout}\n  {done.stderr}"
        if done.returncode == 4 and "`orch adopt`" in said:
            adopted = self._orch("adopt", env=self.env)
            self._check(("adopt",), adopted.returncode, adopted.stderr)
            return self.run(*command, timeout=timeout)
        self._check(command, done.returncode, said)
        return done

    def _check(self, command: tuple[str, ...], code: int, said: str, *also: int) -> None:
        self.acts.append(f"  {' '.join(command)}: {code}: {said.strip()[:2000]}")
        assert "Traceback" not in said, (command, said)
        is_known = (
            code in (*KNOWN, *also) or (code == 4 and GOES_ON in said) or (code == USAGE and command[0] == "retry")
        )
        assert is_known, (command, code, said)

    def _killed(self, *command: str, clock: Path | None = None) -> None:
        """Start a command and kill it behind so many calls to the provider, if it has not ended by then."""
        env = self.env if clock is None else {**self.env, "ORCH_CLOCK": str(clock)}
        process = self._orch.start(*command, env=env)
        self._live_on(process)
        self._end(command, process)

    def _live_on(self, process: Process) -> None:
        """Leave a process alone for so many calls to the provider, or seconds."""
        before, least = self._calls(), self.dice.randint(0, 14)
        last = time.monotonic() + self.dice.uniform(0.5, LONGEST_LIFE)
        wait_until(
            lambda: process.poll() is not None or self._calls() >= before + least or time.monotonic() > last, 60.0
        )

    def _end(self, command: tuple[str, ...], process: Process, *also: int) -> None:
        code = process.poll()
        kill_group(process)
        process.wait()
        if code is None:
            self.acts.append(f"  {' '.join(command)}: killed")
            assert "Traceback" not in self._orch.output(process)
        else:
            said = self._orch.output(process)
            self._check(command, 0 if code == 4 and "`orch adopt`" in said else code, said, *also)

    def _calls(self) -> int:
        return sum(entry["count"] for entry in self.provider.state()["requests"])

    def _story(self) -> str:
        with Store.open(self.env["ORCH_DATABASE_URL"]) as store:
            jobs = [
                f"{job.id} {job.source} finished {job.finished_at} {job.options} "
                f"{[(one.id, str(one.state), one.batch_id, one.held) for one in store.shards.of_job(job.id)]}"
                f"{[(event.kind, event.reason) for event in store.jobs.events(job.id)]}"
                for job in store.jobs.newest()
            ]
        return "\n".join([*self.acts, *jobs])

    # --- acts

    def live(self, acts: int) -> None:
        """So many acts, drawn at random."""
        for _ in range(acts):
            name = self.dice.choice(ACTS)
            self.acts.append(name)
            ACT[name](self)

    def edit_document(self) -> None:
        match self.dice.randrange(3):
            case 0:
                self.versions[self.dice.choice(list(self.versions))] += 1
            case 1:
                self.versions[f"{len(self.versions)}-more.txt"] = 0
            case _ if len(self.versions) > 2:
                del self.versions[self.dice.choice(list(self.versions))]
        self._write()

    def edit_prompt(self) -> None:
        self.prompt = self.dice.choice([0, 1, 2])
        self._write()

    def edit_tag(self) -> None:
        self.tag += 1
        self._write()

    def edit_deadline(self) -> None:
        self.deadline = self.dice.choice(["", "deadline: 20h", "deadline: 30h", "deadline: 3h"])
        self._write()

    def edit_batch_file(self) -> None:
        self.lines[self.dice.randrange(LINES)] += 1
        self._write()

    def edit_two(self) -> None:
        """Two fields at once."""
        edits = [self.edit_document, self.edit_prompt, self.edit_tag, self.edit_deadline, self.edit_batch_file]
        for edit in self.dice.sample(edits, 2):
            edit()

    def rename_folder(self) -> None:
        """Every document has another name in a job file that was edited as well."""
        (self.place / self.documents).rename(self.place / f"documents-{len(self.acts)}")
        self.documents = f"documents-{len(self.acts)}"
        self._write()

    def rename_batch_file(self) -> None:
        (self.place / self.batch_file).unlink()
        self.batch_file = f"requests-{len(self.acts)}.jsonl"
        self._write()

    def submit(self) -> None:
        self.run("submit", self._path(), "-q", *self._flag())

    def run_killed(self) -> None:
        self._killed("run", self._path(), "-q", *self._flag())

    def run_later_deadline(self) -> None:
        self._killed("run", self._path(), "-q", "--deadline", self.dice.choice(["12h", "26h"]))

    def up_killed(self) -> None:
        self._killed("up", "-q")

    def _flag(self) -> list[str]:
        """`--beside` is to pay for rows of both jobs that are not under way."""
        found = self.dice.choice([[], [], ["--supersede"], ["--beside"] if self.stand_beside else []])
        self.agreed += found == ["--beside"]
        return found

    def cancel(self) -> None:
        self._of_a_job("cancel", is_open=True)

    def retry(self) -> None:
        self._of_a_job("retry", is_open=False)

    def retry_open(self) -> None:
        """What is not over is not retried."""
        self._of_a_job("retry", is_open=True)

    def abandon(self) -> None:
        """Give a job's batches up while orch.toml lacks their backend, which comes back then."""
        config = self.place / CONFIG
        kept = config.read_text()
        write_toml(config, {"azure": settings_of(self.provider, "azure")})
        ended = self._of_a_job("cancel", "--abandon", is_open=True)
        config.write_text(kept)
        if ended is not None and "given up" in ended.stderr:
            self.abandoned = True
            self.agreed += 1  # whoever gives rows up, and asks for them again, pays for them again

    def gc(self) -> None:
        self.run("gc")

    def run_with_clock_back(self) -> None:
        """Of this machine, not of the provider."""
        clock = ClockFile(self.folder / f"clock-{len(self.acts)}.json", self.provider.clock.now(), SPEED)
        clock.advance(-self.dice.choice([30.0, 300.0, 1800.0]))
        self._killed("run", self._path(), "-q", clock=clock.path)

    # --- at the provider, by somebody else

    def cancels_late(self) -> None:
        """The next batches that are told to end take long, or go on."""
        fault = {"do": self.dice.choice(LATE_CANCELS), "match": {"nth": 1}}
        self.provider.script(fault | {"times": self.dice.randint(1, 3)})

    def cancel_there(self) -> None:
        """At the provider's console."""
        if found := [one["id"] for one in self.provider.state()["batches"] if one["status"] in UNDER_WAY]:
            self._there("POST", f"batches/{self.dice.choice(found)}/cancel")

    def delete_there(self) -> None:
        """What is deleted before it was fetched has to be paid for again."""
        found = [
            one for one in self.provider.state()["files"] if one["is_there"] and one["purpose"] == "batch_output"
        ]
        for one in found:
            self._there("DELETE", f"files/{one['id']}")
        self.agreed += bool(found)

    def _there(self, method: str, name: str) -> None:
        asked = Request(
            f"{self.provider.url_openai}/{name}", method=method, headers={"Authorization": f"Bearer {KEY}"}
        )
        with suppress(HTTPError):  # it may be over by now
            urlopen(asked, timeout=60).close()

    def _of_a_job(self, *command: str, is_open: bool) -> subprocess.CompletedProcess[str] | None:
        with Store.open(self.env["ORCH_DATABASE_URL"]) as store:
            found = [job.id for job in store.jobs.newest() if (job.finished_at is None) is is_open]
        return self.run(*command, self.dice.choice(found), "-q") if found else None

    def save(self) -> None:
        """Not of a home without a job: whoever puts that back begins anew, with another id."""
        if not self._has_jobs():
            return
        name = f"saved-{len(self.saved)}"
        shutil.copytree(self.home, self.folder / name)
        copy_database(self.database_url, self._database, self._database_of(name))
        self.saved.append(name)

    def put_back(self) -> None:
        """The whole home, as a snapshot of the machine has it."""
        if self.saved:
            name = self.dice.choice(self.saved)
            shutil.rmtree(self.home)
            shutil.copytree(self.folder / name, self.home)
            copy_database(self.database_url, self._database_of(name), self._database)
            self._older()

    def put_back_database(self) -> None:
        if self.saved:
            name = self.dice.choice(self.saved)
            for ending in ("", "-wal", "-shm"):
                (self.home / f"orch.db{ending}").unlink(missing_ok=True)
                if (kept := self.folder / name / f"orch.db{ending}").exists():
                    shutil.copy(kept, self.home)
            copy_database(self.database_url, self._database_of(name), self._database)
            self._older()

    def _has_jobs(self) -> bool:
        if self.is_sqlite:
            # Read only, since to close it otherwise would empty its -wal.
            with (
                suppress(OperationalError),
                closing(connect(f"file:{self.home / 'orch.db'}?mode=ro", uri=True)) as file,
            ):
                return file.execute("select 1 from jobs").fetchone() is not None
            return False
        with Store.open(self.env["ORCH_DATABASE_URL"]) as store:
            return bool(store.jobs.newest(1))

    def _older(self) -> None:
        self.restored = True
        self.provider.clear()

    def lose_wal(self) -> None:
        """Not without a `home.id`: the jobs alone tell what it was."""
        identity = self.home / "home.id"
        if not identity.exists() or not identity.read_text():
            return
        for ending in ("-wal", "-shm"):
            path = self.home / f"orch.db{ending}"
            if path.exists():
                self._older()
            path.unlink(missing_ok=True)

    def lose_id(self) -> None:
        path = self.home / "home.id"
        if path.exists() and self._has_jobs():
            self.dice.choice([path.unlink, lambda: path.write_text("")])()

    def move(self) -> None:
        moved = self.folder / f"project-{len(self.acts)}"
        self.place.rename(moved)
        self.place = moved
        self._orchs.append(self._orch)
        self._orch = Orch(self.home)

    def expire(self) -> None:
        self.provider.script({"do": "expires", "match": {"nth": 1}, "times": 1})

    def list_without_metadata(self) -> None:
        """Not once an older state was put back: what such a list shows is nobody's then."""
        if self.restored:
            return
        times = self.dice.randint(1, 3)
        self.provider.script({"do": "no_metadata", "match": {"verb": "list", "nth": 1}, "times": times})

    def odd_list(self) -> None:
        fault = {"do": self.dice.choice(ODD_LISTS), "match": {"verb": "list", "nth": 1}}
        self.provider.script(fault | {"times": self.dice.randint(1, 3)})

    def wait(self) -> None:
        self.provider.clock.advance(self.dice.choice([60.0, 1200.0, 3 * 3600.0]))

    # --- Postgres

    @property
    def _database(self) -> str | None:
        return None if self.is_sqlite else make_url(self.database_url).database

    def _database_of(self, name: str) -> str | None:
        return None if self._database is None else f"{self._database}_{name}"

    # --- the end

    def end(self) -> None:
        """Let everything finish; then nothing is paid twice that nobody agreed to, and the ledger is the bill."""
        self.provider.clear()
        # A batch that expires takes a day.
        self.provider.clock.set(speed=8 * SPEED)
        for path in self.files:
            self._finish(path)
        if self.is_library:
            finish_script(self)
        self._drain()
        with Store.open(self.env["ORCH_DATABASE_URL"]) as store:
            jobs = store.jobs.newest()
            for path in self.files:
                self._check_rows(store, next(job for job in jobs if job.source == str(path)))
            self._check_bill(store, jobs)
        for orch in [*self._orchs, self._orch]:
            orch.close()

    def _finish(self, path: Path) -> None:
        for _ in range(6):
            done = self.run("run", str(path), "-q")
            if done.returncode == 0 and RESUMED not in done.stderr:
                return
            if done.returncode == 0:
                continue  # edits of documents since that job was made are for the next run
            if done.returncode == 1:
                self.run("retry", done.stdout.split()[0] if done.stdout.split() else self._newest(path), "-q")
            else:
                assert self._repay(), (done.stderr, self._story())
        raise AssertionError(("it does not end", self._story()))

    def _newest(self, path: Path) -> str:
        with Store.open(self.env["ORCH_DATABASE_URL"]) as store:
            return next(job.id for job in store.jobs.newest() if job.source == str(path))

    def _repay(self) -> bool:
        """Agree to pay again for answers that are gone."""
        with Store.open(self.env["ORCH_DATABASE_URL"]) as store:
            lost = sorted({name for job in unfinished(store) if (name := _asked_about(store, job))})
        for name in lost:
            self.acts.append("repay")
            self.run("retry", name, "--repay", "-q")
            self.agreed += 1
        return bool(lost)

    def _drain(self) -> None:
        """What is unfinished otherwise: jobs that were superseded, or that stand beside another."""
        for _ in range(6):
            with Store.open(self.env["ORCH_DATABASE_URL"]) as store:
                said = {job.id: len(store.jobs.events(job.id)) for job in unfinished(store)}
                process = self._orch.start("up", "-q", env=self.env)

                def rests(job: Job, s: Store = store, said: dict[JobId, int] = said) -> bool:
                    """What it waits for may have been told before somebody agreed to pay for it."""
                    return _asked_about(s, job, said.get(job.id, 0)) is not None

                wait_until(lambda s=store, rests=rests: all(map(rests, unfinished(s))), LONGEST_RUN)
                is_over = not unfinished(store)
            self._end(("up", "-q"), process)
            if is_over:
                return
            assert self._repay(), self._story()
        raise AssertionError(("it does not end", self._story()))

    def _check_rows(self, store: Store, job: Job) -> None:
        """No acknowledged row is lost: each has its answer."""
        counts = store.jobs.counts([job.id])[job.id]
        wanted = len(self.versions) if job.source.endswith(".yaml") else LINES
        assert (counts.succeeded, counts.total) == (wanted, wanted), (job, counts, self._story())

    def _check_bill(self, store: Store, jobs: list[Job]) -> None:
        bill = self.provider.bill(rows=True)
        doubled = {digest: times for digest, times in Counter(bill["asked"]).items() if times > 1}
        paid_by = {digest: bill["paid_by"][digest] for digest in doubled}
        assert not doubled or max(doubled.values()) <= 1 + self.agreed, (paid_by, self._story())
        booked = sum(store.ledger.spent(job.id) for job in jobs)
        known = {shard.batch_id for job in jobs for shard in store.shards.of_job(job.id)}
        told = {name: line for name, line in bill["batches"].items() if name in known or not self.restored}
        owed = sum(cost_of({"lines": [line]}) for line in told.values())
        is_exact = not self.abandoned  # what a batch that was given up costs is a guess until its answers come
        assert booked == owed or (self.restored and booked >= owed) or not is_exact, (booked, owed, self._story())
        assert booked <= cost_of(bill) or not is_exact, (booked, self._story())


def _asked_about(store: Store, job: Job, since: int = 0) -> str | None:
    """The job that a question is about, which came behind so many events; another of its batches may go on."""
    told = [event.reason for event in store.jobs.events(job.id)[since:] if event.kind == EventKind.WAITING]
    found = REPAYS.search(told[-1]) if told else None
    return None if found is None else found[1]


ACT: dict[str, Callable[[History], None]] = {
    name: getattr(History, name)
    for name in (
        "edit_document edit_prompt edit_tag edit_deadline edit_batch_file rename_batch_file submit run_killed "
        "run_later_deadline up_killed cancel retry save put_back put_back_database lose_wal lose_id move expire "
        "list_without_metadata wait edit_two rename_folder retry_open gc run_with_clock_back "
        "cancel_there delete_there odd_list abandon cancels_late"
    ).split()
} | {act.__name__: act for act in AROUND}
"""Everything that may happen."""
ACTS = [*ACT, *["run_killed"] * 6, *["up_killed"] * 3, *["submit"] * 2, *["save"] * 2]
