"""The crash matrix of hosted batches: no row lost, none paid twice, and the provider's bill is our ledger."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store import Store
from tests.support.hosted_crashes import Providers, Run, providers
from tests.support.schedules import drawn

SEEDS = 200
CHUNK = 20


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Providers]:
    with providers(tmp_path_factory.mktemp("providers")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_schedule(there, tmp_path, first):
    for seed in range(first, first + CHUNK):
        folder = tmp_path / str(seed)
        folder.mkdir()
        report = Run(there, drawn(seed), folder, f"sqlite:///{folder}/orch.db").to_the_end()
        assert report.broken == []
