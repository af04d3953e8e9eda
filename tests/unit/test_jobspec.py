"""The job file: what is accepted, and what is told of a file that is not, with line and field."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from orchestrator.core.errors import InputError
from orchestrator.settings.deadlines import deadline_at
from orchestrator.settings.job_file import lines_of, load
from orchestrator.settings.job_spec import JobSpec, json_schema
from orchestrator.settings.yaml_files import load_yaml
from tests.support.examples import ample

ROOT = Path(__file__).parents[2]
GOOD = """\
name: contracts
documents: docs
tasks:
  - id: parties
    prompt: Who signs?
    model: small
models:
  small: tiny
"""
TASK = "    model: small\n"


def job_file(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def test_render_of_the_job_holds_for_sources_without_one_of_their_own(tmp_path: Path) -> None:
    several = GOOD.replace("documents: docs\n", "documents: [{path: a}, {path: b, render: text}]\nrender: auto\n")
    spec = load(job_file(tmp_path, several))
    assert [source.render for source in spec.documents] == ["auto", "text"]
    assert JobSpec.model_validate(spec.model_dump(mode="json", by_alias=True, exclude_none=True)) == spec
    one = load(job_file(tmp_path, GOOD.replace("docs\n", "docs\nrender: both\n")))
    assert [source.render for source in one.documents] == ["both"]


def test_the_shortest_job_file_has_these_defaults(tmp_path: Path) -> None:
    spec = load(job_file(tmp_path, GOOD))
    assert spec.documents[0].path == "docs"
    assert spec.tasks[0].max_tokens == 512
    assert (spec.deadline, spec.budget, spec.on_late, spec.output) == (None, None, "finish", None)
    assert (spec.allow.backends, spec.allow.location) == (None, "any")


def test_every_field_is_read(tmp_path: Path) -> None:
    text = """\
name: contracts
documents:
  - {path: docs, include: "*.pdf", exclude: [a, b], sample: 5, max_bytes: 10, encoding: latin-1}
  - {path: rows.csv, text_column: body, id_column: id}
tasks:
  - id: parties
    prompt: "{{ name }}?"
    system: You read contracts.
    model: small
    max_tokens: 100
    max_document_tokens: 4000
    temperature: 0
    top_p: 0.9
    seed: 7
    stop: [END]
    schema: {type: object}
    extra: {top_k: 5}
models:
  small: {gpu: tiny, api: gpt-5-nano}
deadline: 06:00
budget: 12.50
on_late: expire
allow: {backends: [gpu], location: local}
output: {path: out.jsonl, format: batch}
tags: {team: no}
"""
    spec = load(job_file(tmp_path, text))
    assert spec.documents[0].include == ("*.pdf",)
    assert spec.documents[1].text_column == "body"
    assert spec.tasks[0].output_schema == {"type": "object"}
    assert spec.tasks[0].stop == ("END",)
    assert spec.models == {"small": {"gpu": "tiny", "api": "gpt-5-nano"}}
    assert (spec.deadline, spec.budget, spec.on_late) == ("06:00", Decimal("12.50"), "expire")
    assert spec.tags == {"team": "no"}
    assert lines_of(tmp_path / "job.yaml")["allow", "backends"] == 23


UNKNOWN = "unknown field"
BAD = {
    "empty": ("", ":1: is empty or not a mapping; a job file begins with `name:`"),
    "a list": ("- a\n", ":1: is empty or not a mapping; a job file begins with `name:`"),
    "nothing but a name": (
        "name: x\n",
        ":1: documents: is required\n  hint: the folder or file to read:  documents: {path: FOLDER}",
    ),
    "a name with a space": (
        GOOD.replace("contracts", "a b"),
        ":1: name: String should match pattern '^[A-Za-z0-9][A-Za-z0-9_-]*$'\n"
        "  hint: letters, digits, - and _ alone, such as notice-period",
    ),
    "a name that is a number": (
        GOOD.replace("contracts", "5"),
        ':1: name: Input should be a valid string\n  hint: put it in quotes: "5"',
    ),
    "a budget with its sign": (
        GOOD + "budget: $5\n",
        ":9: budget: Input should be a valid decimal\n  hint: write  budget: 5  (amounts are in US dollars)",
    ),
    "a budget with its currency": (
        GOOD + "budget: 7.50 USD\n",
        ":9: budget: Input should be a valid decimal\n  hint: write  budget: 7.50  (amounts are in US dollars)",
    ),
    "a question with a colon": (
        GOOD.replace("Who signs?", "Question: who signs?"),
        ":5: is not valid YAML: mapping values are not allowed here\n"
        '  hint: quote the text:  prompt: "Question: who signs?"',
    ),
    "a tab": (
        GOOD.replace("    prompt", "\tprompt"),
        ":5: is not valid YAML: found character '\\t' that cannot start any token\n"
        "  hint: indent with spaces: YAML allows no tabs there",
    ),
    "a template that is not quoted": (
        GOOD.replace("Who signs?", "%s and who?"),
        ":5: is not valid YAML: found character '%' that cannot start any token\n"
        '  hint: quote the text:  prompt: "%s and who?"',
    ),
    "a type of Python's": (
        GOOD.replace(TASK, f"{TASK}    schema: {{properties: {{end: {{type: str}}}}}}\n"),
        ":7: tasks[0].schema: is not a JSON Schema: properties.end.type: 'str' is not a type; did you mean 'string'?",
    ),
    "a schema that checks nothing": (
        GOOD.replace(TASK, f"{TASK}    schema: {{end_date: string, title: string}}\n"),
        ":7: tasks[0].schema: checks nothing: none of its keys is a keyword of JSON Schema\n"
        '  hint: write  schema: {"type": "object", "properties": {"end_date": {"type": "string"}, '
        '"title": {"type": "string"}}, "required": ["end_date", "title"]}',
    ),
    "a field misspelt": (GOOD + "deadlin: 8h\n", f":9: deadlin: {UNKNOWN}\n  hint: did you mean 'deadline'?"),
    "a field of nothing": (
        GOOD + "output: {path: x, xyzzy: 1}\n",
        f":9: output.xyzzy: {UNKNOWN}\n"
        "  hint: known fields: columns, excel, format, overwrite, partition, path, shape, table, url, url_env",
    ),
    "a task's field misspelt": (
        GOOD.replace(TASK, TASK + "    max_token: 5\n"),
        f":7: tasks[0].max_token: {UNKNOWN}\n  hint: did you mean 'max_tokens'?",
    ),
    "a source's field misspelt": (
        GOOD.replace("docs", "{path: docs, includes: x}"),
        f":2: documents[0].includes: {UNKNOWN}\n  hint: did you mean 'include'?",
    ),
    "no model": (
        GOOD.replace(TASK, ""),
        ":4: tasks[0].model: is required\n  hint: an alias declared under `models`, here or in orch.toml",
    ),
    "no documents": (
        GOOD.replace("docs", "[]"),
        ":2: documents: must not be empty\n  hint: the folder or file to read:  documents: {path: FOLDER}",
    ),
    "documents null": (
        GOOD.replace("docs", ""),
        ":2: documents: must be a list (`- item`)\n  hint: nothing follows the colon: write a value (in quotes "
        "if it begins with #), or leave the field out",
    ),
    "no tasks": (
        "name: x\ndocuments: d\ntasks: []\n",
        ":3: tasks: must not be empty\n  hint: the questions:  tasks: [{id: NAME, model: ALIAS, prompt: …}]",
    ),
    "two tasks of one id": (
        GOOD.replace(TASK, TASK + "  - {id: parties, prompt: x, model: small}\n"),
        ":7: tasks[1].id: two tasks have the id 'parties': rename one of them",
    ),
    "an empty prompt": (
        GOOD.replace("Who signs?", '""'),
        ":5: tasks[0].prompt: String should have at least 1 character",
    ),
    "a template that is none": (
        GOOD.replace("Who signs?", '"a\\n{{ text"'),
        ":5: tasks[0].prompt: is not a Jinja2 template: unexpected end of template, "
        "expected 'end of print statement'. (line 2 of the text)",
    ),
    "a filter that is none": (
        GOOD.replace("Who signs?", '"{{ text | uper }}"'),
        ":5: tasks[0].prompt: is not a Jinja2 template: No filter named 'uper'. (line 1 of the text)",
    ),
    "a test that is none": (
        GOOD.replace("Who signs?", '"{{ text is lng }}"'),
        ":5: tasks[0].prompt: is not a Jinja2 template: No test named 'lng'. (line 1 of the text)",
    ),
    "max_tokens 0": (
        GOOD.replace(TASK, TASK + "    max_tokens: 0\n"),
        ":7: tasks[0].max_tokens: Input should be greater than or equal to 1",
    ),
    "a schema that is none": (
        GOOD.replace(TASK, TASK + "    schema: {properties: {a: {type: strnig}}}\n"),
        ":7: tasks[0].schema: is not a JSON Schema: properties.a.type: "
        "'strnig' is not a type; did you mean 'string'?",
    ),
    "a schema that refers to nothing": (
        GOOD.replace(TASK, TASK + '    schema: {items: {$ref: "#/$defs/x"}}\n'),
        ":7: tasks[0].schema: is not a JSON Schema: nothing is found at '#/$defs/x'",
    ),
    "a schema on the internet": (
        GOOD.replace(TASK, TASK + "    schema: {$ref: https://example.com/a.json}\n"),
        ":7: tasks[0].schema: is not a JSON Schema: nothing is found at 'https://example.com/a.json'",
    ),
    "extra with a field of its own": (
        GOOD.replace(TASK, TASK + "    extra: {temperature: 1}\n"),
        ":7: tasks[0].extra: `temperature` is not allowed here: it has a field of its own or is set by orch",
    ),
    "extra that streams": (
        GOOD.replace(TASK, TASK + "    extra: {stream: true}\n"),
        ":7: tasks[0].extra: `stream` is not allowed here: it has a field of its own or is set by orch",
    ),
    "extra that vLLM dropped": (
        GOOD.replace(TASK, TASK + "    extra: {guided_json: {}}\n"),
        ":7: tasks[0].extra: `guided_json` was removed from vLLM, which silently ignores it; "
        "use `schema`, or `structured_outputs` here",
    ),
    "a country as the location": (
        GOOD + "allow: {location: germany}\n",
        ":9: allow.location: Input should be 'any' or 'local'",  # no hint: `any` lets documents leave
    ),
    "a deadline in words": (
        GOOD + "deadline: soon\n",
        ":9: deadline: 'soon' is not a deadline; write 8h, 90m, 06:00 or 2026-12-01T06:00+01:00",
    ),
    "a clock that has no such time": (
        GOOD + "deadline: 25:00\n",
        ":9: deadline: '25:00' is not a time of day; write 00:00 to 23:59",
    ),
    "a deadline beyond the calendar": (
        GOOD + "deadline: 99999999d\n",
        ":9: deadline: '99999999d' is too far away",
    ),
    "a budget below zero": (GOOD + "budget: -1\n", ":9: budget: Input should be greater than or equal to 0"),
    "a budget in words": (
        GOOD + "budget: lots\n",
        ":9: budget: Input should be a valid decimal\n  hint: write a number, such as 2.5",
    ),
    "a budget that no database holds": (
        GOOD + "budget: 1e30\n",
        ":9: budget: Input should be less than or equal to 9000000",
    ),
    "a location misspelt": (
        GOOD + "allow: {location: lokal}\n",
        ":9: allow.location: Input should be 'any' or 'local'\n  hint: did you mean 'local'?",
    ),
    "allow a word": (
        GOOD + "allow: local\n",
        ":9: allow: must be a mapping (`key: value`)\n  hint: write  allow: {location: …}",
    ),
    "an unknown format": (
        GOOD + "output:\n  path: x\n  format: xml\n",
        ":11: output.format: Input should be 'jsonl', 'csv', 'parquet', 'xlsx' or 'batch'",
    ),
    "an output whose name promises another format": (
        GOOD + "output:\n  path: answers.docx\n",
        ":9: output: the ending of 'answers.docx' names no format: name it .jsonl, .ndjson, .csv, .parquet "
        "or .xlsx, or name the format",
    ),
    "columns of a table of rows": (
        GOOD + "output: {table: t, url: 'sqlite:///x.db', columns: [document]}\n",
        ":9: output: `shape` and `columns` are for a `path`: a `table` has all columns, and a table row for each row",
    ),
    "a shape of result lines": (
        GOOD + "output: {path: x.jsonl, format: batch, shape: wide}\n",
        ":9: output: `shape` and `columns` are for tables: result lines of a batch have a form of their own",
    ),
    "a workbook that is said to be for Excel": (
        GOOD + "output: {path: x.xlsx, excel: true}\n",
        ":9: output: `excel` is for CSV",
    ),
    "an output without a place": (GOOD + "output: {format: csv}\n", ":9: output: name either a `path` or a `table`"),
    "an output in two places": (
        GOOD + "output: {path: x, table: t, url_env: X}\n",
        ":9: output: name either a `path` or a `table`",
    ),
    "a table without an address": (
        GOOD + "output: {table: t}\n",
        ":9: output: a `table` has either `url` or `url_env`, and no format or partition",
    ),
    "a table with a format": (
        GOOD + "output: {table: t, url_env: X, format: csv}\n",
        ":9: output: a `table` has either `url` or `url_env`, and no format or partition",
    ),
    "a table with a partition": (
        GOOD + "output: {table: t, url_env: X, partition: night}\n",
        ":9: output: a `table` has either `url` or `url_env`, and no format or partition",
    ),
    "a file with a database": (
        GOOD + "output: {path: x, url_env: X}\n",
        ":9: output: `url` and `url_env` are for a `table`",
    ),
    "a table with a password": (
        GOOD + "output: {table: t, url: 'postgres://me:secret@host/db'}\n",
        ":9: output.url: must not contain a password: "
        "`url_env` names the variable of a table's, a storage has its own",
    ),
    "a storage with a password": (
        GOOD + "output: {path: 's3://me:secret@bucket/x'}\n",
        ":9: output.path: must not contain a password: "
        "`url_env` names the variable of a table's, a storage has its own",
    ),
    "a table in no database": (
        GOOD + "output: {table: t, url: 'mysql://host/db'}\n",
        ":9: output.url: is not a database such as sqlite:///FILE or postgresql://HOST/NAME",
    ),
    "a table with a name of two words": (
        GOOD + "output: {table: 'a b', url_env: X}\n",
        ":9: output.table: String should match pattern '^[A-Za-z_][A-Za-z0-9_]*$'",
    ),
    "a tag that is a number": (
        GOOD + "tags: {a: 1}\n",
        ':9: tags.a: Input should be a valid string\n  hint: put it in quotes: "1"',
    ),
    "a key twice": (GOOD + "name: x\n", ":9: name: the key 'name' is given twice (first in line 1)"),
}


OUTPUTS = {
    "{path: a.jsonl}": "jsonl", "{path: a.csv}": "csv", "{path: 's3://bucket/a.b/N.CSV'}": "csv",
    "{path: a.parquet}": "parquet", "{path: a.ndjson}": "jsonl", "{path: folder/answers}": "jsonl",
    "{path: a.txt, format: csv}": "csv", "{path: a.csv, format: jsonl}": "jsonl",
    "{path: nights.2026, partition: night}": "jsonl", "{path: x.csv, partition: night, format: parquet}": "parquet",
}  # fmt: skip


@pytest.mark.parametrize(("output", "form"), OUTPUTS.items())
def test_the_ending_of_an_output_decides_its_format(tmp_path: Path, output: str, form: str) -> None:
    spec = load(job_file(tmp_path, GOOD + f"output: {output}\n"))
    assert spec.output is not None
    assert spec.output.format == form


@pytest.mark.parametrize(("text", "told"), BAD.values(), ids=BAD.keys())
def test_a_bad_job_file_is_told_by_its_first_mistake(tmp_path: Path, text: str, told: str) -> None:
    path = job_file(tmp_path, text)
    with pytest.raises(InputError) as raised:
        load(path)
    message = str(raised.value).removeprefix(str(path))
    assert message == told or message.startswith(told + "\n" + str(path))


def test_a_bad_file_tells_all_of_its_mistakes(tmp_path: Path) -> None:
    path = job_file(tmp_path, GOOD + "deadlin: 8h\nbudget: -1\non_late: never\n")
    with pytest.raises(InputError) as raised:
        load(path)
    told = str(raised.value)
    assert [f"{path}:{line}:" in told for line in (9, 10, 11)] == [True] * 3


def test_a_schema_may_refer_to_itself(tmp_path: Path) -> None:
    schema = '{$defs: {n: {properties: {$ref: {type: string}, next: {$ref: "#/$defs/n"}}}}, $ref: "#/$defs/n"}'
    load(job_file(tmp_path, GOOD.replace(TASK, f"{TASK}    schema: {schema}\n")))


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


DEADLINES = {
    # Berlin is at UTC+1 in winter and at UTC+2 in summer.
    "hours": ("8h", "2026-11-21 20:00", "2026-11-22 04:00"),
    "minutes": ("90m", "2026-11-21 20:00", "2026-11-21 21:30"),
    "half days": ("1.5d", "2026-11-21 20:00", "2026-11-23 08:00"),
    "a space": ("30 s", "2026-11-21 20:00", "2026-11-21 20:00:30"),
    "tomorrow morning": ("06:00", "2026-11-21 20:00", "2026-11-22 05:00"),
    "this morning": ("06:00", "2026-11-21 03:00", "2026-11-21 05:00"),
    "that minute is the next day's": ("06:00", "2026-11-21 05:00", "2026-11-22 05:00"),
    "in summer": ("06:00", "2026-07-01 20:00", "2026-07-02 04:00"),
    "one digit": ("6:30", "2026-11-21 20:00", "2026-11-22 05:30"),
    "the day UTC has already": ("00:30", "2026-11-21 23:15", "2026-11-21 23:30"),
    # 2026-03-29: 02:00 -> 03:00 at 01:00 UTC. 2026-10-25: 03:00 -> 02:00 at 01:00 UTC.
    "the night of the short hour": ("06:00", "2026-03-28 20:00", "2026-03-29 04:00"),
    "hours in the short night are hours": ("8h", "2026-03-28 20:00", "2026-03-29 04:00"),
    "an hour that no clock shows": ("02:30", "2026-03-28 20:00", "2026-03-29 00:30"),
    "the night of the long hour": ("06:00", "2026-10-24 20:00", "2026-10-25 05:00"),
    "the first of two": ("02:30", "2026-10-24 20:00", "2026-10-25 00:30"),
    "the second of two": ("02:30", "2026-10-25 00:40", "2026-10-25 01:30"),
    "later in the second of two": ("02:50", "2026-10-25 01:45", "2026-10-25 01:50"),
    "after both": ("02:30", "2026-10-25 01:45", "2026-10-26 01:30"),
    "an ISO time": ("2026-12-01T06:00+01:00", "2026-11-21 20:00", "2026-12-01 05:00"),
    "an ISO time in UTC": ("2026-12-01T06:00Z", "2026-11-21 20:00", "2026-12-01 06:00"),
    "an ISO time without a zone": ("2026-12-01T06:00", "2026-11-21 20:00", "2026-12-01 05:00"),
    "an ISO day": ("2026-12-01", "2026-11-21 20:00", "2026-11-30 23:00"),
}


@pytest.mark.parametrize(("text", "now", "at"), DEADLINES.values(), ids=DEADLINES.keys())
@pytest.mark.usefixtures("berlin")
def test_a_deadline_is_an_instant(text: str, now: str, at: str) -> None:
    assert deadline_at(text, utc(now)) == utc(at)


@pytest.mark.parametrize(
    "text", ["", "8", "h", "24:00", "12:60", "-8h", "8 hours", "1e3h", "0001-01-01", "9" * 400 + "h"]
)
@pytest.mark.usefixtures("berlin")
def test_what_is_no_deadline_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}' is "):
        deadline_at(text, utc("2026-11-21 20:00"))


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(minute=st.integers(0, 24 * 60 - 1), seconds=st.integers(0, 365 * 86_400))
@pytest.mark.usefixtures("berlin")
def test_a_time_of_day_is_the_next_one(minute: int, seconds: int) -> None:
    now = utc("2026-01-01") + timedelta(seconds=seconds)
    at = deadline_at(f"{minute // 60:02}:{minute % 60:02}", now)
    assert timedelta(0) < at - now <= timedelta(hours=25)
    shown = at.astimezone()
    if (shown.month, shown.day) != (3, 29):  # there the clock skips an hour
        assert (shown.hour * 60 + shown.minute, shown.second) == (minute, 0)


def sample_jobs() -> list[Path]:
    return sorted((ROOT / "samples").rglob("job*.yaml"))


def schema_errors(path: Path) -> list[str]:
    return [error.message for error in Draft202012Validator(json_schema()).iter_errors(load_yaml(path)[0])]


@pytest.mark.parametrize("path", sample_jobs(), ids=lambda path: str(path.parent.name))
def test_the_samples_are_good_job_files_and_fit_the_published_schema(path: Path) -> None:
    load(path)
    assert schema_errors(path) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GOOD, id="documents a string"),
        pytest.param(GOOD.replace("docs", "{path: docs, include: a}"), id="documents a mapping"),
        pytest.param(GOOD.replace("docs", "[{path: docs, include: [a]}]"), id="documents a list"),
        pytest.param(GOOD + "deadline: 06:00\nbudget: 12.50\n", id="deadline and budget"),
    ],
)
def test_what_is_accepted_fits_the_published_schema(tmp_path: Path, text: str) -> None:
    path = job_file(tmp_path, text)
    load(path)
    assert schema_errors(path) == []


@pytest.mark.parametrize("text", [GOOD + "deadlin: 8h\n", GOOD.replace(TASK, ""), GOOD.replace("docs", "[]")])
def test_the_published_schema_refuses_too(tmp_path: Path, text: str) -> None:
    assert schema_errors(job_file(tmp_path, text))


def test_the_schema_in_docs_is_the_one_of_this_version() -> None:
    assert json.loads((ROOT / "docs" / "reference" / "job.schema.json").read_text()) == json_schema()


def test_the_published_schema_is_a_schema_and_knows_every_field() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert set(schema["properties"]) == set(JobSpec.model_fields)
    assert "schema" in schema["$defs"]["Task"]["properties"]
    assert "output_schema" not in schema["$defs"]["Task"]["properties"]
