"""`python -m tools.cpu_engine`: make a model for the CPU engine, serve it in the foreground."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.server.engines.cpu_launch import vllm_launch
from orchestrator.server.engines.install import require_installed
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.process import VllmProcess
from orchestrator.server.engines.steps import run_command, say
from tools.cpu_engine.models import RECIPES, find_model, make_model


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="python -m tools.cpu_engine",
        description="A vLLM engine on the CPU, in an environment of its own.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--dir", type=Path, default=Path(".engine"), help="where it all lies (.engine)")
    verbs = whole.add_subparsers(dest="verb", required=True)
    model = verbs.add_parser("model", parents=[common], help="fetch or make a model")
    model.add_argument("model", choices=sorted(RECIPES))
    serve = verbs.add_parser(
        "serve",
        parents=[common],
        help="start the engine, print its base URL, run until Ctrl-C",
        epilog="What follows `--` goes to vLLM as it is.",
    )
    serve.add_argument("--model", choices=sorted(RECIPES), required=True)
    serve.add_argument("--port", type=int, help="a free one if not given")
    serve.add_argument("--served-model-name", metavar="NAME", help="the model's name in requests")
    return whole


def run_model(arguments: argparse.Namespace) -> None:
    model = make_model(EngineDir.at(arguments.dir), arguments.model)
    sys.stdout.write(f"{model.path}\n")


def run_serve(arguments: argparse.Namespace, extra: Sequence[str]) -> None:
    engine = EngineDir.at(arguments.dir)
    require_installed(engine)
    model = find_model(engine, arguments.model)
    launch = vllm_launch(engine, model, port=arguments.port, served_name=arguments.served_model_name, extra=extra)
    log = engine.logs / f"{model.name}-{launch.port}.log"
    say(f"starting {launch.model}: half a minute to a minute and a half (log: {log})")
    with VllmProcess(launch, log=log) as process:
        sys.stdout.write(f"{process.base_url}\n")
        sys.stdout.flush()
        say(f"ready: model {launch.model}; Ctrl-C stops it")
        process.wait()
        process.check()


def main(argv: Sequence[str]) -> int:
    cut = argv.index("--") if "--" in argv else len(argv)
    arguments = parser().parse_args(argv[:cut])

    def work() -> None:
        if arguments.verb == "model":
            run_model(arguments)
        else:
            run_serve(arguments, argv[cut + 1 :])

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
