"""`--limit`, `--only`, `--task` and `sources:`: what is asked, and that the nights around it are none the wiser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.cli import run
from orchestrator.core.clock import now
from orchestrator.core.errors import InputError, UsageError
from orchestrator.core.model import Job, RequestState
from orchestrator.core.schedules import Misfire, Night, NightState, Overlap, Schedule
from orchestrator.daemon.scheduler import Scheduler
from orchestrator.pipeline.build import submission
from orchestrator.pipeline.build.submission import How, Options, Submission
from orchestrator.pipeline.build.validate import check_file
from orchestrator.pipeline.finish import finisher
from orchestrator.pipeline.gc.sweep import gc
from orchestrator.pipeline.selection import Scope
from orchestrator.policy.row_errors import is_passing
from orchestrator.reports.night_reader import night_report
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.job_names import job_named
from orchestrator.store.rows import Settled
from tests.support.databases import new_sqlite
from tests.support.stored import failed, over, ranges, shard, succeeded

TOML = """
[models]
small = "tiny"

[backends.gpu]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true

[retention]
results = "1s"
keep_last = 1
"""


class Desk:
    """A home, and a job file over letters (a folder of five) and a table of four rows."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.home = Home(folder / "home")
        self.config = load(self.place)
        self.spec: dict[str, Any] = {
            "name": "post",
            "documents": [{"path": "letters"}, {"path": "rows.csv", "text_column": "text", "id_column": "id"}],
            "tasks": [
                {"id": "who", "prompt": "Who?", "model": "small"},
                {"id": "when", "prompt": "When?", "model": "small"},
            ],
        }

    @property
    def place(self) -> Place:
        return Place(self.folder / "orch.toml", self.folder / "home", "", 10.0)

    @property
    def file(self) -> Path:
        path = self.folder / "post.yaml"
        path.write_text(json.dumps(self.spec))
        return path

    def submit(self, *, scope: Scope | None = None, **options: Any) -> Submission:
        given = Options(scope=scope or Scope(), **options)
        return submission.submit(self.store, self.home, self.config, self.file, given, now, lambda *_: None)

    def answered(self, *bad: str, scope: Scope | None = None, **options: Any) -> Job:
        """A run whose rows are answered, but for those of the `bad` documents; it is over."""
        submission = self.submit(scope=scope, **options)
        assert submission.how is How.NEW, submission.reason
        job = submission.job
        names = {row.seq: row.document for row in self.store.rows.finished(job.id)}
        for number, found in enumerate(ranges(self.store, job), 1):
            new = replace(shard(job, number), model=found.model, rows=found.rows, bytes=found.bytes)
            self.store.shards.add(new, found)
            rows = [row.seq for row in self.store.rows.of_shard(new.id)]
            ends = [
                failed(seq, "refusal") if names[seq] in bad else succeeded(seq, kind=None, span=None) for seq in rows
            ]
            self.store.rows.settle(new.id, job.id, "gpu", [Settled(*end) for end in ends], now(), "tiny")
        finisher.Finisher(self.store, self.home, now).step(job)
        return self.store.jobs.get(job.id)

    def asked(self, job: Job) -> list[tuple[str, str]]:
        return [(row.document, row.task) for row in self.store.rows.finished(job.id)]

    def sent(self, job: Job) -> list[str]:
        """The documents with rows that were not carried over."""
        rows = self.store.rows.finished(job.id)
        return list(dict.fromkeys(row.document for row in rows if row.carried_from is None))


def nightly(desk: Desk, name: str = "nightly") -> Schedule:
    """A schedule of the job file."""
    made = Schedule(
        id=f"{name}-1", name=name, home=desk.home.identity(), config=str(desk.config.path), file=str(desk.file),
        cron="0 22 * * *", tz="UTC", deadline=None, budget=None, misfire=Misfire.RUN, grace=timedelta(hours=6),
        overlap=Overlap.SKIP, created_at=now(), since=now(),
    )  # fmt: skip
    desk.store.schedules.add(made)
    return made


LETTERS = [f"letters/{name}.txt" for name in "abcde"]
ROWS = [f"rows.csv#{number}" for number in range(1, 5)]
ALL = [*LETTERS, *ROWS]


@contextmanager
def opened(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    (folder / "home").mkdir()
    (folder / "orch.toml").write_text(TOML)
    (folder / "letters").mkdir()
    for name in LETTERS:
        (folder / name).write_text(f"text of {name}")
    (folder / "rows.csv").write_text("id,text\n" + "".join(f"{n},row {n}\n" for n in range(1, 5)))
    for name, value in {"ORCH_CONFIG": folder / "orch.toml", "ORCH_HOME": folder / "home"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("ORCH_DATABASE_URL", url)
    with Store.open(url.replace("postgresql://", "postgresql+psycopg://")) as store:
        yield Desk(folder, store)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with opened(tmp_path, new_sqlite(tmp_path / "orch.db"), monkeypatch) as desk:
        yield desk


@pytest.fixture
def stored(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """The same on each database, for what queries decide."""
    with opened(tmp_path, store_url, monkeypatch) as desk:
        yield desk


SELECTIONS: dict[str, tuple[Scope, list[str]]] = {
    "the first": (Scope(limit=2), LETTERS[:2]),
    "into the table": (Scope(limit=7), [*LETTERS, *ROWS[:2]]),
    "more than there are": (Scope(limit=99), ALL),
    "a name": (Scope(only=("letters/c.txt",)), ["letters/c.txt"]),
    "the end of a name": (Scope(only=("d.txt",)), ["letters/d.txt"]),
    "a pattern": (Scope(only=("*[ab].txt",)), LETTERS[:2]),
    "a row": (Scope(only=("rows.csv#3",)), ["rows.csv#3"]),
    "a table": (Scope(only=("rows.csv",)), ROWS),
    "several": (Scope(only=("rows.csv#4", "a.txt")), ["letters/a.txt", "rows.csv#4"]),
    "the first of some": (Scope(limit=1, only=("rows.csv", "letters/b.txt")), ["letters/b.txt"]),
}


@pytest.mark.long
def test_what_is_chosen(desk: Desk) -> None:
    desk.answered()
    for name, (scope, documents) in SELECTIONS.items():
        found = check_file(desk.file, desk.config, now, scope=scope)
        assert (found.documents, found.requests) == (len(documents), 2 * len(documents)), name
        job = desk.answered(scope=scope)
        assert desk.asked(job) == [(document, task) for document in documents for task in ("who", "when")], name
        assert desk.sent(job) == [], "what an earlier run has is carried over"
        assert desk.submit(scope=scope).how is How.UNCHANGED, "the same command again has nothing to do"


@pytest.mark.long
def test_what_is_chosen_of_a_table_that_nobody_has_read(desk: Desk) -> None:
    scope = Scope(only=("rows.csv#3", "*[bc].txt"))
    assert desk.sent(desk.answered(scope=scope)) == ["letters/b.txt", "letters/c.txt", "rows.csv#3"]
    assert desk.sent(desk.answered(scope=Scope(limit=7))) == [LETTERS[0], *LETTERS[3:], *ROWS[:2]]
    assert desk.sent(desk.answered()) == [ROWS[3]]


PARTS = {"limit": Scope(limit=3), "only": Scope(only=("b.txt", "rows.csv#2")), "task": Scope(tasks=("who",))}


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.parametrize("scope", PARTS.values(), ids=PARTS.keys())
def test_the_next_night_takes_the_others_neither_for_gone_nor_for_new(stored: Desk, scope: Scope) -> None:
    first = stored.answered()
    (stored.folder / "letters" / "b.txt").write_text("another text")
    (stored.folder / "letters" / "e.txt").unlink()
    limited = stored.answered(scope=scope)
    [part] = night_report(stored.store, stored.home, None, over(stored.store, limited), now()).jobs
    assert {fate.value for fate, number in part.facts.documents.counts.items() if number} <= {"changed", "unchanged"}
    report = stored.submit().report
    assert report is not None
    assert (report.removed, report.gone) == (1, ["letters/e.txt"]), "only what went is gone"
    [whole] = [run for run in stored.store.jobs.of_series(first.series) if not run.is_limited and run.id != first.id]
    whys = {(row.document, row.why and row.why.value) for row in stored.store.rows.finished(whole.id)}
    changed = {why for name, why in whys if name == "letters/b.txt"}
    assert changed <= {"unchanged", "document changed"}, "what the limited run asked is carried over"
    assert {why for name, why in whys if name != "letters/b.txt"} == {"unchanged"}


@pytest.mark.long
def test_a_first_night_after_a_trial_asks_only_the_rest(desk: Desk) -> None:
    desk.answered(scope=Scope(limit=3))
    desk.answered(scope=Scope(tasks=("who",), only=("d.txt",)))
    night = desk.answered()
    assert desk.sent(night) == ["letters/d.txt", "letters/e.txt", *ROWS]
    assert len([row for row in desk.store.rows.finished(night.id) if row.carried_from]) == 7


@pytest.mark.long
def test_an_unfinished_trial_is_taken_up_by_the_same_command_alone(desk: Desk) -> None:
    trial = desk.submit(scope=Scope(limit=2))
    assert desk.submit(scope=Scope(limit=2)).job.id == trial.job.id
    assert desk.submit(scope=Scope(limit=3)).job.id != trial.job.id
    assert desk.submit().how is How.NEW


@pytest.mark.long
def test_a_trial_is_not_delivered_and_shields_no_night(stored: Desk) -> None:
    stored.spec["output"] = {"path": "night.jsonl"}
    night = stored.answered("letters/a.txt")
    delivered = (stored.folder / "night.jsonl").read_bytes()
    trial = stored.answered(scope=Scope(limit=2), new=True)
    assert (stored.folder / "night.jsonl").read_bytes() == delivered
    assert trial.output_path != night.output_path
    held = list(stored.store.quarantine.held(stored.home.identity(), is_passing))
    assert {(one.document, one.job) for one in held} == {("letters/a.txt", night.id)}
    verdicts = gc(stored.store, stored.home, stored.config.retention, now(), dry_run=True).verdicts
    kept = {verdict.job_id: verdict.reason for verdict in verdicts}
    assert "the newest of its job file" in kept[night.id]
    assert "the newest" not in kept[trial.id]


@pytest.mark.long
def test_a_scheduled_night_does_not_wait_for_a_trial(desk: Desk) -> None:
    trial = desk.submit(scope=Scope(limit=2)).job
    one = nightly(desk)
    desk.store.schedules.claim(Night(one.id, now().date(), now(), NightState.DUE, "it is due", now()))
    Scheduler(desk.store, desk.home, desk.config, now).tick()
    [night] = desk.store.schedules.nights(one.id)
    assert (night.state, night.job_id not in (None, trial.id)) == (NightState.RUNNING, True), night.reason


BAD: dict[str, tuple[Scope, str, str]] = {
    "no such document": (Scope(only=("letters/aa.txt",)), "there is no such document", "letters/a.txt"),
    "a part of a name": (Scope(only=("rows.csv#",)), "there is no such document", "rows.csv#1"),
    "no such task": (Scope(tasks=("where",)), "--task where: the job file has no such task", "did you mean 'when'?"),
}


@pytest.mark.long
def test_what_is_not_there_is_told_and_leaves_nothing(desk: Desk) -> None:
    def check(scope: Scope) -> None:
        check_file(desk.file, desk.config, now, scope=scope)

    for scope, message, hint in BAD.values():
        for attempt in (desk.submit, check):
            with pytest.raises(UsageError) as caught:
                attempt(scope=scope)
            assert message in caught.value.message
            assert hint in str(caught.value.hint)
    assert desk.store.jobs.newest() == []


def test_lines_of_a_batch_file(desk: Desk) -> None:
    path = desk.folder / "rows.jsonl"
    body = {"model": "small", "messages": [{"role": "user", "content": "?"}]}
    lines = [{"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def ids(scope: Scope) -> list[str]:
        options = Options(scope=scope)
        job = submission.submit(desk.store, desk.home, desk.config, path, options, now, lambda *_: None).job
        return [row.custom_id for row in desk.store.rows.finished(job.id)]

    assert ids(Scope(limit=2)) == ["r0", "r1"]
    assert ids(Scope(only=("r3", "r1"))) == ["r1", "r3"]
    with pytest.raises(UsageError, match="a ready batch file has no tasks"):
        ids(Scope(tasks=("t",)))
    with pytest.raises(UsageError, match=r"^r9: there is no such document"):
        ids(Scope(only=("r9",)))


@pytest.mark.long
def test_tasks_of_some_sources(desk: Desk) -> None:
    desk.spec["documents"][0]["name"] = "post"
    desk.spec["tasks"][0]["sources"] = "post"
    desk.spec["tasks"][1]["sources"] = ["post", "rows.csv"]
    job = desk.answered()
    of_letters = [(name, task) for name in LETTERS for task in ("who", "when")]
    assert desk.asked(job) == [*of_letters, *((name, "when") for name in ROWS)]
    assert desk.asked(desk.answered(scope=Scope(tasks=("who",)))) == [(name, "who") for name in LETTERS]
    del desk.spec["tasks"][0]["sources"]
    more = desk.answered()
    fresh = [(row.document, row.task) for row in desk.store.rows.finished(more.id) if row.carried_from is None]
    assert fresh == [(name, "who") for name in ROWS], "to name sources changes no other row"


def test_a_task_that_is_left_out_keeps_no_backend_from_the_others(desk: Desk) -> None:
    desk.spec["models"] = {"small": "tiny", "far": {"elsewhere": "big"}}
    desk.spec["tasks"][1]["model"] = "far"
    with pytest.raises(InputError, match=r"models\.far: has names for elsewhere"):
        desk.submit()
    assert desk.asked(desk.answered(scope=Scope(tasks=("who",)))) == [(name, "who") for name in ALL]


BAD_SOURCES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown": (
        {"sources": ["leters"]},
        "tasks[0].sources[0]: there is no source 'leters'",
        "did you mean 'letters'?",
    ),
    "none": ({"sources": []}, "tasks[0].sources: must not be empty", ""),
    "unasked": (
        {"sources": ["letters"]},
        "documents[1]: no task uses the documents of 'rows.csv'",
        "take it out",
    ),
}


def test_sources_that_make_no_sense_are_told(desk: Desk) -> None:
    [first, _] = desk.spec["tasks"]
    for field, message, hint in BAD_SOURCES.values():
        desk.spec["tasks"] = [{**first, **field}]
        with pytest.raises(InputError) as caught:
            check_file(desk.file, desk.config, now)
        assert caught.value.line == 1
        assert message in str(caught.value)
        assert hint in str(caught.value)


def test_a_template_may_use_what_the_documents_of_its_sources_have(desk: Desk) -> None:
    desk.spec["tasks"][0] |= {"sources": ["rows.csv"], "prompt": "Who is {{ id }}?"}
    desk.spec["tasks"][1] |= {"sources": ["letters"], "prompt": "When was {{ stem }}?"}
    assert not check_file(desk.file, desk.config, now).problems
    desk.spec["tasks"][1]["prompt"] = "When was {{ id }}?"
    with pytest.raises(InputError, match=r"the template uses \{\{ id \}\}, which no document has"):
        check_file(desk.file, desk.config, now)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_name_stands_for_its_newest_whole_run(stored: Desk) -> None:
    home = stored.home.identity()
    first, second = stored.answered(), stored.answered(new=True)
    trial = stored.answered(scope=Scope(limit=1), new=True)
    assert job_named(stored.store, home, "post").id == second.id
    for name in (first.id, first.id[:-1], trial.id):
        assert job_named(stored.store, home, name).id.startswith(name)
    one = nightly(stored)
    with pytest.raises(UsageError, match="there is no job 'nightly'"):
        job_named(stored.store, home, "nightly")
    stored.store.schedules.claim(Night(one.id, now().date(), now(), NightState.DUE, "x", now()))
    [night] = stored.store.schedules.unended()
    stored.store.schedules.begun(night, "on time")
    stored.store.schedules.given(night, first.id)
    assert job_named(stored.store, home, "nightly").id == first.id
    with pytest.raises(UsageError, match="there is no job 'pos_'"):
        job_named(stored.store, home, "pos_")


def test_a_name_of_two_job_files_is_told(desk: Desk) -> None:
    first = desk.answered()
    other = desk.folder / "other.yaml"
    other.write_text(json.dumps({**desk.spec, "documents": "letters"}))
    second = submission.submit(desk.store, desk.home, desk.config, other, Options(), now, lambda *_: None).job
    with pytest.raises(UsageError) as caught:
        job_named(desk.store, desk.home.identity(), "post")
    assert caught.value.message.startswith("'post' is the name of 2 job files: ")
    for told in (first.id, second.id, "other.yaml", "post.yaml"):
        assert told in caught.value.message


def test_one_task_is_tried_again(stored: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    job = stored.answered("letters/a.txt", "rows.csv#2")
    assert run(["retry", "post", "--task", "where", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == "did you mean 'when'?"
    assert run(["retry", "post", "--task", "when", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job": job.id, "rows": 2, "daemon": "", "engine": ""}
    again = {
        (row.document, row.task) for row in stored.store.rows.finished(job.id) if row.state is RequestState.PENDING
    }
    assert again == {("letters/a.txt", "when"), ("rows.csv#2", "when")}
