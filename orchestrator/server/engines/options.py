"""vLLM's own command-line options."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.errors import UsageError

OURS = {
    "--model": "the model is given by --vllm",
    "--host": "clients talk to orch, and orch to the engine: --host before the `--` is orch's",
    "--port": "clients talk to orch, and orch to the engine: --port before the `--` is orch's",
    "--uds": "clients talk to orch, and orch to the engine: --uds before the `--` is orch's",
    "--api-key": "the engine is reached by orch alone; `orch keys add` makes keys for orch",
    "--ssl-keyfile": "the engine is reached by orch alone, on loopback",
    "--ssl-certfile": "the engine is reached by orch alone, on loopback",
    "--root-path": "the engine is reached by orch alone",
    "--tensor-parallel-size": "write --tensor-parallel N before the `--`",
    "-tp": "write --tensor-parallel N before the `--`",
    "--pipeline-parallel-size": "orch starts one engine per GPU, or one per N GPUs with --tensor-parallel N",
    "-pp": "orch starts one engine per GPU, or one per N GPUs with --tensor-parallel N",
    "--data-parallel-size": "orch starts one engine per GPU, or one per N GPUs with --tensor-parallel N",
    "-dp": "orch starts one engine per GPU, or one per N GPUs with --tensor-parallel N",
}
"""Options that orch sets itself, each with advice on what to do instead."""


def value_of(options: Sequence[str], name: str) -> str | None:
    """Return an option's last value, as vLLM reads it (`--a-b`, `--a_b`, `--a-b=value`), or None if the option is
    missing.

    A bare flag has the value "".
    """
    found = None
    for place, option in enumerate(options):
        key, has_value, value = option.partition("=")
        if _plain(key) == name:
            following = options[place + 1] if place + 1 < len(options) else ""
            found = value if has_value else following if not following.startswith("-") else ""
    return found


def check_options(options: Sequence[str]) -> None:
    """Raise UsageError for options that orch must set itself."""
    if options and not options[0].startswith("-"):
        raise UsageError(f"{options[0]!r} is not an option of vLLM", hint="only vLLM's own options follow the `--`")
    for option in options:
        name = _plain(option.partition("=")[0])
        if name in OURS:
            raise UsageError(f"{name} cannot be given to vLLM here", hint=OURS[name])


def _plain(option: str) -> str:
    return option.replace("_", "-") if option.startswith("--") else option
