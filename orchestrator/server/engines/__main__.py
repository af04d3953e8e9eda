"""`python -m orchestrator.server.engines install`: install a vLLM engine for the CPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.server.engines.install import install
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.steps import run_command, say


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python -m orchestrator.server.engines",
        description="A vLLM engine on the CPU, in an environment of its own.",
    )
    verbs = whole.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("install", help="install the engine (once, about 2.4 GB)")
    verb.add_argument("--dir", type=Path, default=Path(".engine"), help="the engine's folder (.engine)")
    return whole


def main(argv: Sequence[str]) -> int:
    engine = EngineDir.at(parser().parse_args(argv).dir)

    def work() -> None:
        if not install(engine):
            say(f"the engine is installed already: {engine.venv}")

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
