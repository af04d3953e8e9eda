"""/metrics of a home: what it tells, and that the board and the alert rules ask for what is there."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.cli.pages import PagesOptions, serve_pages
from orchestrator.core.listening import bound
from orchestrator.core.replica.who_is_active import seconds
from orchestrator.daemon.replica.status_file import ReplicaStatus, write_status
from orchestrator.library.context import opened
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import KeyRight, Keys
from orchestrator.settings.home import Home
from orchestrator.web.loop_health import LoopHealth, shared
from tests.support.process import wait_until
from tests.support.webhome import WebHome, web_home

ROOT = Path(__file__).resolve().parents[2]
BOARD, RULES, PAGE = (ROOT / "docs/reference" / name for name in ("grafana-nights.json", "alerts.yml", "metrics.md"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebHome]:
    root = tmp_path_factory.mktemp("metrics")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ORCH_CONFIG": root / "orch.toml", "ORCH_HOME": root}.items():
            patch.setenv(name, str(value))
        patch.delenv("ORCH_DATABASE_URL", raising=False)
        patch.chdir(root)
        yield web_home(root, big=1000)


@pytest.fixture(scope="module")
def served(home: WebHome) -> Iterator[tuple[str, str]]:
    """The address of the metrics, and a key that opens them."""
    (home.root / "serve").mkdir()
    database = ServerDatabase(home.root / "serve" / FILE_NAME)
    _, secret = Keys(database).add("prometheus", right=KeyRight.VIEW)
    write_status(Home(home.root), ReplicaStatus(pid=1, url="file:///r", generation=3, sent_to=seconds(), as_of=0))
    listener = bound("127.0.0.1", 0)
    with shared() as file, opened() as context:
        LoopHealth(file.fileno()).beat()  # the daemon's; the pages have the file alone
        loop = LoopHealth(file.fileno())
        with serve_pages(listener, context, PagesOptions("127.0.0.1"), lambda: context, loop) as url:
            yield url, secret
    database.close()


@pytest.fixture(scope="module")
def scraped(served: tuple[str, str]) -> dict[str, dict[tuple[str, ...], float]]:
    url, secret = served
    told = httpx2.get(f"{url}/metrics", headers={"authorization": f"Bearer {secret}"})
    assert told.status_code == 200
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(told.text)
    }


@pytest.mark.long
def test_what_the_metrics_tell(home: WebHome, scraped: dict[str, dict[tuple[str, ...], float]]) -> None:
    assert scraped["orch_daemon_up"] == scraped["orch_engine_up"] == {(): 0}
    assert scraped["orch_replica_generation"] == {(): 3}
    assert scraped["orch_daemon_rounds"] == scraped["orch_engine_rounds"] == {(): 1}
    assert scraped["orch_jobs_open"] == {("stopped",): 2}, "no daemon runs"
    assert scraped["orch_job_rows"]["contracts", "succeeded"] == 60
    assert scraped["orch_job_rows"]["contracts", "failed"] == 4
    assert scraped["orch_job_new_failures"]["contracts",] == 4
    assert scraped["orch_job_state"]["invoices", "stopped"] == 1
    assert scraped["orch_job_foreseen_dollars"]["contracts", "0.95"] == 1.2
    assert scraped["orch_job_deadline_spare_seconds"]["contracts",] == pytest.approx(-3600, abs=1)
    assert scraped["orch_batches"]["gpu", "submitted"] == 2
    assert scraped["orch_backend_open_rows"] == {("gpu",): 258 + 1000}
    assert scraped["orch_spent_24h_dollars"]["gpu", ""] == pytest.approx(0.00246)
    assert scraped["orch_budget_amount_dollars"] == {("team",): 40}
    assert scraped["orch_budget_left_dollars"]["team",] < 40


def test_only_a_key_opens_them(served: tuple[str, str]) -> None:
    url, secret = served
    for header in ({}, {"authorization": "Bearer orch-nothing"}, {"authorization": f"Basic {secret}"}):
        assert httpx2.get(f"{url}/metrics", headers=header).status_code == 401
    assert httpx2.get(url, headers={"authorization": f"Bearer {secret}"}).status_code == 401, (
        "the pages want a cookie"
    )


def expressions() -> dict[str, str]:
    """Every query of the board and the rules, by what asks it."""
    panels = json.loads(BOARD.read_text())["panels"]
    found = {f"{one['title']} {each['refId']}": each["expr"] for one in panels for each in one["targets"]}
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found | {rule["alert"]: rule["expr"] for rule in rules}


def names(text: str) -> set[str]:
    return set(re.findall(r"\borch_[a-z0-9_]+", text))


def test_board_rules_and_page_name_metrics_that_are_there(home: WebHome, served: tuple[str, str]) -> None:
    url, secret = served
    text = httpx2.get(f"{url}/metrics", headers={"authorization": f"Bearer {secret}"}).text
    there = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert names("\n".join(expressions().values())) <= there
    assert names(PAGE.read_text()) == there


def test_the_board_is_one_that_grafana_loads() -> None:
    """What its schema asks of each panel; no panel lies on another."""
    board = json.loads(BOARD.read_text())
    assert board["schemaVersion"] >= 39
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.long
def test_every_query_is_one_that_a_real_prometheus_answers(
    home: WebHome, served: tuple[str, str], tmp_path: Path
) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip(
            "Prometheus is not installed (apt-get install prometheus): nobody asks it the queries of the board"
        )
    url, secret = served
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "key").write_text(secret)
    scrape = {
        "job_name": "orch", "scrape_interval": "1s", "honor_labels": True,
        "authorization": {"credentials_file": str(tmp_path / "key")},
        "static_configs": [{"targets": [url.removeprefix("http://")]}],
    }  # fmt: skip
    settings: dict[str, Any] = {"scrape_configs": [scrape], "rule_files": [str(RULES)]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    command = [prometheus, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log, stdout=log)
    try:
        asked: dict[str, Any] = {}

        def ask(query: str) -> Any:
            try:
                answer = httpx2.get(f"http://{address}/api/v1/query", params={"query": query})
            except httpx2.TransportError:
                return None
            if answer.status_code == 503:  # it reads its files first
                return None
            told = answer.json()
            assert told["status"] == "success", (query, told)
            return told["data"]["result"]

        wait_until(lambda: bool(ask("orch_job_rows")))
        for name, query in expressions().items():
            asked[name] = ask(query.replace("$job", ".*"))
        silent = {name for name, found in asked.items() if not found}
    finally:
        process.terminate()
        process.wait()
    rules = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    # A rule that is silent has nothing to tell; of the board, what this home has no figures for.
    assert asked["OrchDaemonDown"]
    assert asked["OrchDeadlineMissed"]
    assert asked["OrchNewFailures"]
    assert silent - rules <= {
        "Chance to keep the deadline A", "What came / what was forecast A", "Batches B",
    }  # fmt: skip
