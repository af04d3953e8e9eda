"""Entry point of `python -m orchestrator`, the same as `orch`."""

from orchestrator.cli.__main__ import run_as_module

if __name__ == "__main__":
    run_as_module()
