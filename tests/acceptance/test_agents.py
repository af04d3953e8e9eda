"""A coding agent's tools: what they give, and that they spend no more than was stated."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import orchestrator as orch
from orchestrator.library.agent_tools import AgentTools
from tests.support.cli import Orch, write_config
from tests.support.library import end_daemon, use_home
from tests.support.process import ROOT, Upstream

JOB = {
    "name": "letters",
    "documents": [{"path": "letters"}],
    "tasks": [{"id": "who", "model": "small", "prompt": "Who wrote this?"}],
}


@pytest.fixture
def job_file(tmp_path: Path, orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    write_config(orch_home, [upstream.base_url], extra='[models]\nsmall = "some-model"\n')
    use_home(orch_home, monkeypatch)
    (tmp_path / "letters").mkdir()
    for number in range(3):
        (tmp_path / "letters" / f"{number}.txt").write_text(f"Letter {number}.")
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))
    yield str(tmp_path / "job.yaml")
    end_daemon(orch_home)


@pytest.mark.long
def test_an_agent_plans_submits_and_reads_within_its_budget(job_file: str, upstream: Upstream) -> None:
    tools = AgentTools(Decimal(5))
    plan = tools.plan(job_file, deadline="8h")
    assert (plan["holds"], plan["to_send"]) == (True, 3)
    with pytest.raises(orch.RefusedError, match=r"\$5\.00 are left"):
        tools.submit(job_file, 6)
    assert upstream.requests() == []

    told = tools.submit(job_file, 4, "8h")

    assert told["how"] == "new"
    assert "up --quiet" in told["daemon"]
    orch.open_job(told["job"]).wait(progress=False)
    assert tools.status(told["job"])["requests"]["succeeded"] == 3
    assert [one["job"] for one in tools.status()["jobs"]] == [told["job"]]
    page = tools.rows("letters", first=1, limit=1)
    assert (page["total"], [row["document"] for row in page["rows"]]) == (3, ["letters/1.txt"])
    assert tools.submit(job_file, 1)["how"] == "unchanged", "costs nothing, and counts for nothing"
    Path(job_file).write_text(json.dumps({**JOB, "name": "others"}))
    with pytest.raises(orch.RefusedError, match=r"\$1\.00 are left"):
        tools.submit(job_file, 2)
    with pytest.raises(orch.UsageError, match="not an amount"):
        tools.submit(job_file, float("nan"))


@pytest.mark.long
def test_the_tools_are_served_by_the_protocol(job_file: str, orch_home: Path) -> None:
    mcp = pytest.importorskip("mcp")
    env = {"ORCH_HOME": str(orch_home), "ORCH_CONFIG": str(orch_home / "orch.toml")}
    env |= {"PYTHONPATH": ":".join([str(ROOT), *sys.path])}
    server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "orchestrator.cli", "mcp"], env=env)

    async def talk() -> tuple[set[str], Any, Any]:
        async with mcp.stdio_client(server) as (read, write), mcp.ClientSession(read, write) as session:
            await session.initialize()
            names = {tool.name for tool in (await session.list_tools()).tools}
            plan = await session.call_tool("plan", {"job_file": job_file})
            refused = await session.call_tool("submit", {"job_file": job_file, "budget": 1})
            return names, plan, refused

    names, plan, refused = asyncio.run(talk())
    assert names == {"plan", "submit", "status", "rows"}
    assert json.loads(plan.content[0].text)["to_send"] == 3
    assert refused.is_error
    assert '"code": "refused"' in refused.content[0].text


def test_without_the_library_the_command_says_what_to_install(run_orch: Orch, orch_home: Path) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    blocked = orch_home.parent / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text("import sys; sys.modules['mcp'] = None\n")
    done = run_orch("mcp", env={"PYTHONPATH": f"{blocked}:{ROOT}"}, prefix=["env"])
    assert done.returncode == 2, done.stderr
    assert "pip install 'orch-batch[mcp]'" in done.stderr


def test_the_page_for_agents_leads_to_pages_that_are_there() -> None:
    page = ROOT / "docs" / "llms.txt"
    links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert len(links) > 8
    assert [link for link in links if not (page.parent / link).is_file()] == []
