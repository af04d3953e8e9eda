"""The commands and the Python of all pages, as they stand, in a home that has seen two nights.

Addresses and ids of jobs are those of the test. PAGES has what else a page takes for granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import openai
import pandas
import polars
import psycopg
import pyarrow
import pyarrow.parquet
import pytest

from tests.emulator.client import Emulator
from tests.emulator.clock import ClockFile
from tests.emulator.driving import chat_line, jsonl
from tests.support.aws import aws_environment, bedrock_told
from tests.support.cli import Orch, write_config
from tests.support.fakevllm import fake_vllm, model_folder
from tests.support.google import key_file, vertex_told
from tests.support.hostedjob import KEY, USUAL, settings_of, table
from tests.support.process import ROOT, Upstream, wait_until
from tests.support.raycluster import free_port
from tests.support.serving import serve
from tests.support.shell import Shell
from tests.support.signing import SECRET, event, signed
from tools import site

BLOCK = re.compile(r"^```(sh|console|python|sql)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SERVER = re.compile(r"^(orch (?:serve|up|view)\b[^#\n]*?) *(?:#.*)?$")
LOOKS_TYPED = re.compile(r"(\$|orch|curl|pip|export|python3?|gcloud|pg_dump|[A-Z_]+=\S+) (?!.*\bis up;)")
NIGHTS = (datetime(2026, 11, 20, 21, tzinfo=UTC), datetime(2026, 11, 21, 21, tzinfo=UTC))
SECONDS_A_SECOND = 60.0

NOT_TYPED = {
    r"(/opt/ray/bin/)?pip install |python3 -m venv ": "downloads; `make soak-release` installs every extra",
    r"gcloud ": "changes an account at Google",
    r"duckdb -c ": "a program of others",
    r"(podman|kubectl) ": "needs a builder of images, and a cluster",
    r"letters(\.search| = lancedb)": "`make soak-far` runs the same lines in the recipe",
}
"""Commands and Python that no test runs, and why."""

ELSEWHERE = {
    "docs/quickstart.md": "tests/acceptance/test_first_night_page.py",
    "docs/reference/python.md": "tests/acceptance/test_library_page.py",
    "docs/how-to/libraries.md": "tests/soak/test_library_recipes.py",
    "integrations/README.md": "tests/soak/test_integrations.py",  # the recipe for Airflow, without its delay
    "docs/how-to/recipes/*.md": "tests/acceptance/test_recipes.py",
    "docs/how-to/serve-vllm.md": "tests/acceptance/test_serve_engines.py",  # needs GPUs
    "docs/how-to/ray.md": "tests/soak/test_ray.py",  # needs Ray
    "docs/reference/emulator.md": "tests/emulator/test_faults.py",  # a sketch of a test
}
"""Pages whose blocks another test runs, or commands like theirs."""

PYTHON = {
    "README.md": "tests/acceptance/test_library_page.py",
    "docs/how-to/vectors-and-labels.md": "test_vectors_are_read_as_the_page_says",
    "docs/reference/results.md": "test_tables_are_read_as_the_page_says",
    "docs/reference/server/extensions.md": "test_a_webhook_is_verified_as_the_page_says",
    "docs/reference/server/files.md": "test_a_large_file_is_uploaded_as_the_page_says",
}
"""Pages of PAGES with Python or SQL, and the test that runs it."""

HOME = """
home = "state"

[backends.local]
upstreams = ["{upstream}"]
location = "local"
idle = true

{told}
[models]
small = {{local = "default", {backend} = "{model}"}}

[[budgets]]
name = "legal"
amount = 120
period = "month"
tag = "team=legal"
"""
FOLDERS = """
mkdir -p documents letters
for name in a b p7; do echo "Contract $name ends on 30 November 2026." > documents/$name.txt; done
echo "Dear Ms Aster, the roof leaks. Tom Birch" > letters/birch.txt
for name in contracts summary; do
mkdir $name
cat > $name/job.yaml <<END
name: $name
documents: [{path: ../documents}, {path: ../letters}]
tags: {team: legal}
deadline: 8h
tasks:
  - {id: term, model: small, max_tokens: 40, prompt: "When does it end?"}
  - {id: facts, model: small, max_tokens: 80, prompt: "What is it?", schema: {type: object,
     properties: {topic: {type: string}, sender: {type: string}}, required: [topic]}}
END
done
sed 's/\\.\\.\\///g' contracts/job.yaml > job.yaml
"""
BROKEN = """
mkdir documents
for name in p1 x; do echo "not a PDF" > documents/$name.pdf; done
"""
RUN = "orch run job.yaml --fail-on new || true"
EDIT = "echo 'Contract b ends on 1 December 2026.' > documents/b.txt"
LOOKS_BACK = re.compile(
    r"(contracts|letters)-\w|orch (status|report|diff|fetch|gc|backup|acknowledge|quarantine|budget)"
)
"""Pages with such commands are for a home that has seen two nights."""
AWS_KEY, EMAIL = "AKIACOMMANDLINE", "night@project.iam.gserviceaccount.com"
SMALL = {"openai": "gpt-5-nano", "bedrock": "amazon.nova-micro-v1:0", "vertex": "gemini-2.5-pro"}
SCRIPT = """
import sys, time
from openai import OpenAI
client = OpenAI(api_key="none-needed")
file = client.files.create(file=open("in.jsonl", "rb"), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status != "completed":
    time.sleep(0.1)
    batch = client.batches.retrieve(batch.id)
print("batch", batch.id, batch.input_file_id)
"""
"""my_existing_batch_script.py"""
ENGINES = """
home = "state"

[backends.gpu]
kind = "engines"
location = "local"
cost_per_hour = 2.50
vllm_python = "{python}"
[backends.gpu.models]
small = {{model = "{folder}/small"}}
large = {{model = "{folder}/large"}}
"""
"""An orch.toml for engines, which a program plays."""
SERVED = "orch serve --upstream UPSTREAM\nexport URL=http://127.0.0.1:8080 OPENAI_BASE_URL=http://127.0.0.1:8080/v1\n"


class Page(msgspec.Struct):
    """What a page takes for granted: commands typed `before`, a `backend`, `changes` of its text, failed rows."""

    before: str = ""
    backend: str = ""
    changes: dict[str, str] = {}
    has_failures: bool = False


PAGES = {
    "deploy/README.md": Page(),
    "README.md": Page("rm orch.toml job.yaml", changes={"init contracts ": "init documents --upstream UPSTREAM "}),
    "docs/explanation/changes.md": Page(),
    "docs/explanation/planning.md": Page(),
    "docs/explanation/saving.md": Page("cp job.yaml triage.yaml"),
    "docs/how-to/bedrock.md": Page("for n in {1..100}; do echo Letter $n > letters/$n.txt; done", "bedrock"),
    "docs/how-to/bench.md": Page(changes={"--vs": "--minutes 0.1 --vs"}),
    "docs/how-to/budgets.md": Page(),
    "docs/how-to/checked-answers.md": Page(
        changes={"orch run job.yaml;": "! orch run job.yaml --new;"}, has_failures=True
    ),
    "docs/how-to/cost-reports.md": Page(),
    "docs/how-to/engines.md": Page("rm orch.toml; mv engines.toml orch.toml"),
    "docs/how-to/known-failures.md": Page(has_failures=True),
    "docs/how-to/long-documents.md": Page(changes={"JOB": "contracts"}),
    "docs/how-to/models.md": Page(),
    "docs/how-to/night-reports.md": Page(),
    "docs/how-to/nightly-runs.md": Page(changes={"--deadline 04:00": "--deadline 04:00 --name early"}),
    "docs/how-to/provider-webhooks.md": Page(changes={"whsec_...": SECRET}),
    "docs/how-to/retention-and-backup.md": Page(backend="postgres", changes={"pg_dump": "$BINARIES/pg_dump"}),
    "docs/how-to/serve.md": Page(),
    "docs/how-to/standby.md": Page("orch keys add night"),
    "docs/how-to/swapped-answers.md": Page(changes={"status letters": "status contracts"}, has_failures=True),
    "docs/how-to/telemetry.md": Page("LANGFUSE_PUBLIC_KEY=pk LANGFUSE_SECRET_KEY=sk"),
    "docs/how-to/try-a-job.md": Page(),
    "docs/how-to/vectors-and-labels.md": Page(),
    "docs/how-to/vertex.md": Page(backend="vertex"),
    "docs/how-to/web.md": Page(
        changes={
            "orch view  ": "orch view 127.0.0.1:0  ",
            "--web  ": "--web 127.0.0.1:0  ",
            "10.0.0.5:8091": "0.0.0.0:0",
        }
    ),
    "docs/reference/backends/README.md": Page(),
    "docs/reference/backends/bedrock.md": Page(),
    "docs/reference/backends/vertex.md": Page(),
    "docs/reference/results.md": Page("mkdir bucket"),
    "docs/reference/server/extensions.md": Page(
        f"{SERVED}ID=$(python my_existing_batch_script.py | cut -d ' ' -f 2)"
    ),
    "docs/reference/server/files.md": Page(
        f"{SERVED}FILE_ID=$(python my_existing_batch_script.py | cut -d ' ' -f 3)", changes={"FILE_ID": "$FILE_ID"}
    ),
}


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def commands(page: str) -> list[str]:
    """The commands of a page's blocks, without those that no test types."""
    found = []
    for language, code in blocks(page):
        lines = code.replace("\\\n", " ").splitlines()
        if language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        if language in ("sh", "console"):
            found += [line for line in lines if not any(re.match(one, line) for one in NOT_TYPED)]
    return found


def on_the_site() -> list[str]:
    """Every page of the documentation's site."""
    return [str(page.relative_to(ROOT)) for page, _ in site.pages() if page.suffix == ".md"]


def test_every_block_is_run_or_named() -> None:
    with_blocks = {page for page in on_the_site() if blocks(page)}
    elsewhere = {str(page.relative_to(ROOT)) for pattern in ELSEWHERE for page in ROOT.glob(pattern)}
    assert with_blocks - elsewhere == {*PAGES}
    assert not elsewhere & {*PAGES}
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
    assert {page for page in PAGES if {"python", "sql"} & {language for language, _ in blocks(page)}} == {*PYTHON}
    assert all((ROOT / test).is_file() or test in globals() for test in PYTHON.values())
    texts = [code for page in PAGES for _, code in blocks(page)]
    assert [
        one for one in NOT_TYPED if not any(re.search(f"^(?:\\$ )?(?:{one})", text, re.M) for text in texts)
    ] == []


def test_blocks_without_a_language_hold_no_commands() -> None:
    unlabelled = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    found = [
        f"{page}: {line}"
        for page in on_the_site()
        for language, code in unlabelled.findall((ROOT / page).read_text(encoding="utf-8"))
        if not language
        for line in code.splitlines()
        if LOOKS_TYPED.match(line)
    ]
    assert found == ["README.md: $ orch run orch-demo/job.yaml"], "what `orch demo` itself shows"


class Reader:
    """Somebody at a shell who has what the pages speak of."""

    def __init__(self, shell: Shell, folder: Path, page: Page, upstream: Upstream) -> None:
        self._shell, self._folder, self._page, self._upstream = shell, folder, page, upstream.base_url
        self._ports = {"8080": str(free_port()), "8090": str(free_port())}
        self._serves = False
        self._jobs: list[str] = []

    def prepare(self, clock: ClockFile, *, with_nights: bool) -> None:
        """Make the folders; run the job in two nights, the second with an edited document."""
        self._shell.type((BROKEN if self._page.has_failures else "") + FOLDERS)
        clock.set(NIGHTS[0], speed=SECONDS_A_SECOND)
        if with_nights:
            self._shell.type(f"{RUN}\n{EDIT}")
            clock.set(NIGHTS[1])
            self._jobs = re.findall(r'"(contracts-\w+)"', self._shell.type(f"{RUN}\norch status --all --json"))
            assert len({*self._jobs}) == 2

    def read(self, lines: list[str]) -> None:
        """Type the page's lines; servers run until the next one, or the end."""
        for line in self._page.before.splitlines():
            self._shell.type(self._typed(line))
        for line in lines:
            for old, new in self._page.changes.items():
                line = line.replace(old, new)
            self._shell.type(self._typed(line))
        self._stop()

    def _typed(self, line: str) -> str:
        line = re.sub(r"UPSTREAM|http://(127\.0\.0\.1|gpu\d):8000/v1", self._upstream, line)
        line = re.sub(r"letters-20261121-a1|(?:contracts|letters)-[0-9a-f]{4,8}\b", self._job, line)
        for old, new in self._ports.items():
            line = line.replace(old, new)
        line = line.replace("s3://bucket", f"file://{self._folder}/bucket").replace("sk-…", KEY)
        if (server := SERVER.match(line)) is None:
            return line
        self._stop()
        self._serves = True
        port = f" --port {self._ports['8080']}" if server[1].startswith("orch serve") else ""
        return (
            # Emptied first: the server's own redirection may come after the look, which then finds the last one.
            f": > server.log; {server[1]}{port} > server.log 2>&1 & SERVER=$!\n"
            "until grep -q 'is up;\\|pages at\\|OPENAI_API_KEY\\|with keys' server.log\n"
            "do kill -0 $SERVER || { cat server.log; break; }; sleep 0.1; done"
        )

    def _stop(self) -> None:
        if self._serves:
            self._serves = False
            self._shell.type("kill $SERVER; wait $SERVER")

    def _job(self, written: re.Match[str]) -> str:
        return self._jobs[-1 if written[0].endswith("3f2a") else 0]


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider") as running:
        running.settings(**USUAL)
        yield running


def write_home(folder: Path, upstream: Upstream, backend: str, facts: dict[str, Any]) -> None:
    """Write what a page finds in the folder: settings, batch files, a script."""
    told = f"[backends.{backend}]\n{table(facts)}"
    text = HOME.format(upstream=upstream.base_url, told=told, backend=backend, model=SMALL[backend])
    (folder / "orch.toml").write_text(text)
    for name in ("small", "large"):
        model_folder(folder / name)
    (folder / "engines.toml").write_text(ENGINES.format(python=fake_vllm(folder), folder=folder))
    lines = [chat_line(f"r{number}", "Name a city in Peru.", "default", max_tokens=20) for number in range(5)]
    lines[4]["body"]["messages"][0]["content"] += "[[fault:status:400]]"  # a row that fails
    for name in ("in.jsonl", "large.jsonl", "contracts.jsonl"):
        (folder / name).write_bytes(jsonl(lines))
    (folder / "my_existing_batch_script.py").write_text(SCRIPT)


@pytest.fixture
def reader(
    page: str, provider: Emulator, upstream: Upstream, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Reader]:
    folder, asked = tmp_path / "reader", PAGES[page]
    folder.mkdir()
    env = {"OPENAI_API_KEY": KEY, "OPENAI_WEBHOOK_SECRET": SECRET, "VLLM_KEY": KEY}
    backend = asked.backend if asked.backend in SMALL else "openai"
    provider.settings(models=[SMALL[backend]])
    match asked.backend:
        case "bedrock":
            facts = bedrock_told(provider.url_of("bedrock"), AWS_KEY, preflight=False)
            env |= aws_environment(AWS_KEY, tmp_path)
        case "vertex":
            facts = vertex_told(provider.url_of("vertex"), EMAIL, preflight=False)
            key = key_file(tmp_path, EMAIL, provider.url_of("vertex"))
            env |= {"NO_GCE_CHECK": "true", "GOOGLE_APPLICATION_CREDENTIALS": str(key)}
        case other:
            facts = settings_of(
                provider, "openai", api_key_env="OPENAI_API_KEY", webhook_secret_env="OPENAI_WEBHOOK_SECRET"
            )
            if other == "postgres":
                env["BINARIES"] = str(request.getfixturevalue("postgres").binaries)
                env["ORCH_DATABASE_URL"] = request.getfixturevalue("postgres_url").replace("+psycopg", "")
    write_home(folder, upstream, backend, facts)
    with Shell(folder, provider.clock.path, TZ="UTC", COLUMNS="120", **env) as shell:
        reader = Reader(shell, folder, asked, upstream)
        reader.prepare(provider.clock, with_nights=any(LOOKS_BACK.search(line) for line in commands(page)))
        yield reader


@pytest.mark.long
@pytest.mark.thinned(14)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_of_a_page_run_as_they_stand(page: str, reader: Reader) -> None:
    reader.read(commands(page))


def python_of(page: str) -> str:
    """The page's Python, without the lines that no test runs."""
    code = "".join(code for language, code in blocks(page) if language == "python")
    return "".join(line for line in code.splitlines(True) if not any(re.match(one, line) for one in NOT_TYPED))


def test_tables_are_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"task": "facts", "facts.topic": "roof", "facts.sender": {"name": "Tom Birch"}, "cost_usd": 0.1}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), "night.parquet")
    lines = python_of("docs/reference/results.md").splitlines()
    known = {"duckdb": duckdb, "pandas": pandas, "polars": polars}
    counts, names, sums = (eval(line, known) for line in lines)
    assert counts.to_dict() == {"roof": 1}
    assert names.item() == "Tom Birch"
    assert sums.fetchall() == [("roof", 1, 0.1)]


@pytest.mark.long
def test_vectors_are_read_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    page, size = "docs/how-to/vectors-and-labels.md", 1536
    near, far = ([0.1, place] + [0.0] * (size - 2) for place in (0.2, -0.9))
    columns = {"document": ["far", "near"], "task": ["vec", "vec"], "vec.vector": [far, near]}
    kind = pyarrow.list_(pyarrow.float32(), size)
    types = pyarrow.schema([("document", "string"), ("task", "string"), ("vec.vector", kind)])
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=types), "night.parquet")
    names: dict[str, Any] = {"duckdb": duckdb, "pyarrow": pyarrow, "query": near}
    code = python_of(page)
    shown = code.index("duckdb.sql(")
    exec(f"{code[:shown]}found = {code[shown:]}", names)
    assert names["rows"].column_names == ["document", "task", "vec_vector"]
    assert names["found"].fetchall() == [("near",), ("far",)]

    [sql] = [code for language, code in blocks(page) if language == "sql"]
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as database:
        database.execute("CREATE EXTENSION vector")
        database.execute(f"CREATE TABLE nights (document text, vec_vector vector({size}))")
        for document, vector in (("far", far), ("near", near)):
            database.execute("INSERT INTO nights VALUES (%s, %s)", [document, str(vector)])
        database.execute(f"PREPARE near(vector) AS {sql}")  # type: ignore[call-overload]
        assert database.execute(f"EXECUTE near('{near}')").fetchall() == [("near",), ("far",)]  # type: ignore[call-overload]


def test_a_webhook_is_verified_as_the_page_says() -> None:
    body = event("batch.completed", "batch_1")
    names = {"openai": openai, "SECRET": SECRET, "request_body": body.decode(), "request_headers": signed(body)}
    exec(python_of("docs/reference/server/extensions.md").replace("OpenAI(", "OpenAI(api_key='unused', "), names)
    assert names["event"].data.id == "batch_1"  # type: ignore[attr-defined]


def test_a_large_file_is_uploaded_as_the_page_says(
    run_orch: Orch, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(run_orch.home, [upstream.base_url])
    _, url = serve(run_orch, "--upstream", upstream.base_url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    Path("large.jsonl").write_bytes(jsonl([chat_line("r0", "Name a city in Peru.", "default")]))
    names: dict[str, Any] = {}
    exec(python_of("docs/reference/server/files.md"), names)
    wait_until(lambda: names["client"].batches.retrieve(names["batch"].id).status == "completed")
    names["client"].close()
