"""What is otherwise at providers that speak OpenAI's protocol nearly, through the whole pipeline."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.backends.openai.profiles import PROFILES
from orchestrator.backends.profiles import window_for
from orchestrator.core.clock import now
from orchestrator.core.model import Usage
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.settings.backends import SyncBackend
from orchestrator.settings.config import Config, ModelPrice, Report
from orchestrator.settings.discovery import Place
from tests.support.hostedjob import HOUR, Desk, all_are, cost_of, plain, script

BATCH_CHAT = "https://batch.dashscope.aliyuncs.com/compatible-mode/v1"
REALTIME = "https://dashscope.aliyuncs.com/compatible-mode/v1"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["zhipu", "siliconflow"])
def test_trap_d_a_lost_create_is_found_in_each_spelling(desk: Desk, name: str) -> None:
    desk.backend(name)
    script(desk, "cut_after", verb="create")
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


def test_trap_d_zhipu_is_told_to_keep_the_input_file_and_orch_deletes_it(desk: Desk) -> None:
    desk.backend("zhipu")
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.later(HOUR / 60, job)
    assert [file["is_there"] for file in desk.provider.state()["files"]] == [True]
    desk.finish(job)
    assert not [file for file in desk.provider.state()["files"] if file["is_there"]]


@pytest.mark.parametrize(("hours", "window"), [(1, "24h"), (30, "24h"), (50, "48h"), (336, "336h"), (2000, "336h")])
def test_trap_d_alibaba_has_windows_of_whole_days_up_to_fourteen(hours: int, window: str) -> None:
    assert window_for(PROFILES["alibaba"], hours * 3600).text == window


@pytest.mark.parametrize(("url", "dollars", "is_estimate"), [(BATCH_CHAT, 3, True), (REALTIME, 6, False)])
def test_trap_d_alibabas_batch_chat_answers_at_once_for_half_the_price(
    url: str, dollars: int, is_estimate: bool, tmp_path: Path
) -> None:
    prices = {"qwen-plus": ModelPrice(input=Decimal(2), output=Decimal(4))}
    settings = Config(Place(None, tmp_path, "sqlite://", 10.0), {}, {}, prices, Report())
    backend = SyncBackend(kind="sync", base_url=url, api_key_env="K")
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    price = prices_of(backend, settings, now).at_most("qwen-plus", usage)
    assert (price.cost, price.estimated) == (Decimal(dollars), is_estimate)
