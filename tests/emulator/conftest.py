"""One emulator for each module, as new for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import Customer


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as emulator:
        yield emulator


@pytest.fixture
def provider(emulator: Emulator) -> Emulator:
    emulator.reset()
    return emulator


@pytest.fixture
def customer(provider: Emulator) -> Iterator[Customer]:
    customer = Customer(provider, provider.url_openai)
    yield customer
    customer.close()
