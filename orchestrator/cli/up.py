"""`orch up`: the engine of a home for as long as it runs."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from typing import Any

import click

from orchestrator import hooks
from orchestrator.cli.context import log_to, opened, quiet_option, say
from orchestrator.cli.running import interruptible
from orchestrator.clock import now
from orchestrator.console import money
from orchestrator.engine import Engine
from orchestrator.enginelock import engine_lock
from orchestrator.errors import UsageError
from orchestrator.interrupts import Interrupted
from orchestrator.pipeline import house
from orchestrator.scheduler import Scheduler


class _Address(click.ParamType[tuple[str, int]]):
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", str(value))
        if found is None or int(found[3]) > 65535:
            self.fail(f"{value!r} is no address such as 127.0.0.1:8090 or [::1]:8090", param, ctx)
        return found[1] or found[2], int(found[3])


@click.command()
@click.option(
    "--webhooks", type=_Address(), metavar="HOST:PORT", help="Take providers' webhooks here, at /webhooks/BACKEND."
)
@quiet_option
def up(webhooks: tuple[str, int] | None, quiet: bool) -> int:
    """Be the engine until stopped (Ctrl-C or SIGTERM): run queued jobs, any that come, and what is scheduled.

    With --webhooks, batches that a provider says are over are looked at at once. Port 0 takes a free one.
    """
    with (
        opened() as context,
        interruptible() as interrupted,
        engine_lock(context.home) as holder,
        ExitStack() as stack,
    ):
        if holder is not None:
            raise UsageError(f"{holder} is this home's engine already")
        log_to(context.home)
        engine = stack.enter_context(Engine(context.config, context.store))
        if webhooks is not None:
            secrets = hooks.secrets_of(context.config)
            url = stack.enter_context(hooks.listening(*webhooks, secrets, engine.pipeline.looks.push))
            for name in secrets:
                say(f"orch: webhooks of {name} are taken at {url}{name}")
        scheduler = Scheduler(context.store, context.home, context.config, now)
        daily = house.Daily(context.store, context.home, context.config.retention)
        said: dict[str, str] = {}

        def nights() -> None:
            for text in scheduler.tick():
                if not quiet:
                    say(f"orch: {text}")

        def tick(engine: Engine) -> None:
            nights()
            daily.tick(now())
            if (engine.problem or "") != said.get("", "") and not quiet:
                said[""] = engine.problem or ""
                say(f"orch: {engine.problem or 'all is well again'}")
            for line in context.lines():
                text = f"{line.job.id}: {line.state}"
                if said.setdefault(line.job.id, text if line.state.is_final else "") != text:
                    said[line.job.id] = text
                    if not quiet:
                        say(f"orch: {text}, {line.done:,}/{line.counts.total:,} rows, {money(line.cost)}")

        say(f"orch: engine of {context.home.root} is up; Ctrl-C stops it")
        with suppress(Interrupted):
            # Before any round: a job that a night had made when it was cut off is the night's, not another's.
            nights()
            engine.run(interrupted, tick)
    say("orch: stopped; nothing is lost")
    return 0
