"""`orch mcp`: offers this home's jobs to a coding agent as tools, by the Model Context Protocol on stdin and
stdout.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import wraps
from importlib import import_module
from typing import Any

import click

from orchestrator.cli.options import Dollars
from orchestrator.core import extras
from orchestrator.core.errors import OrchError


@click.command()
@click.option(
    "--budget", type=Dollars(), default=Decimal(0), metavar="DOLLARS",
    help="What all jobs that the agent submits may cost together. Default: 0, so it can only look and plan.",
)  # fmt: skip
def mcp(budget: Decimal) -> int:
    """Offer plan, submit, status and rows to a coding agent as tools (Model Context Protocol, stdio)."""
    extras.require("mcp", "`orch mcp`")
    from orchestrator.library.agent_tools import INSTRUCTIONS, AgentTools

    server: Any = import_module("mcp.server").MCPServer("orch", instructions=INSTRUCTIONS)
    error: type[Exception] = import_module("mcp.server.mcpserver.exceptions").ToolError
    tools = AgentTools(budget)
    for tool in (tools.plan, tools.submit, tools.status, tools.rows):
        server.tool()(_with_errors(tool, error))
    server.run("stdio")
    return 0


def _with_errors(tool: Callable[..., dict[str, Any]], error: type[Exception]) -> Callable[..., dict[str, Any]]:
    from orchestrator.cli.failed_commands import error_json

    @wraps(tool)
    def call(*arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return tool(*arguments, **named)
        except OrchError as problem:
            raise error(json.dumps(error_json(problem), default=str)) from None

    return call
