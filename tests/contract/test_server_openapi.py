"""The server's description of itself is whole and true: requests made from it are answered as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi import checks
from starlette.routing import Match

from orchestrator.core.batch_api import ENDPOINTS
from orchestrator.server.api.openapi import description
from orchestrator.server.app import build
from orchestrator.server.endpoints import KNOWN
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings
from tests.contract.conftest import over_tcp
from tests.support.batchapi import create, ended, row, sdk_at, upload
from tests.support.process import upstreams

load_all_checks()
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(description())
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
# A path alone cannot be wrong: every text is an id that somebody may ask for.
REFUSABLE = [
    label
    for label, operation in OPERATIONS.items()
    if operation.body or any(one.definition["schema"]["type"] == "integer" for one in operation.query)
]
EXAMPLES = 10
END = 600_000
"""A row that is answered after so many ms keeps its batch running as long as the tests take."""


@dataclass(frozen=True)
class Target:
    """A running server with things in it, and ids of theirs by the name of the path's parameter."""

    url: str
    ids: dict[str, list[str]]
    session: requests.Session


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("described")
    with upstreams(folder) as make:
        upstream = make(model="test-model")
        limits = Settings(upstreams=(upstream.base_url,), retry_delay=0.02, max_file_bytes=100_000)
        with over_tcp(folder, limits) as url, sdk_at(url) as sdk, requests.Session() as session:
            done = ended(sdk, create(sdk, [row("a"), row("b", "[[fault:status:400]]")]).id).batch
            running = create(sdk, [row("c"), row("d", f"[[fault:slow:{END}]]")])
            pending = session.post(f"{url}/v1/uploads", json=NEW_UPLOAD).json()
            ids = {
                "file_id": [upload(sdk, [row("a")]), done.output_file_id],
                "batch_id": [done.id, running.id],
                "upload_id": [pending["id"]],
                "model": ["test-model"],
            }
            yield Target(url, ids, session)


NEW_UPLOAD = {"bytes": 10, "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}


def answered_as_described(target: Target, label: str, mode: GenerationMode) -> None:
    """Send requests made from the description of one route, to things that are there and to things that are not."""
    operation = OPERATIONS[label]
    named = re.findall(r"{(\w+)}", operation.path)
    # Events of a batch that runs go on as long as it does.
    there = [{name: one} for name in named for one in target.ids[name][: 1 if label.endswith("/events") else None]]
    cases = [operation.as_strategy(mode, path_parameters=names) for names in [*there, None]]

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.one_of(cases), st.booleans())
    def run(case: Case, filled: bool) -> None:
        if filled and isinstance(case.body, dict) and "input_file_id" in case.body:
            case.body["input_file_id"] = target.ids["file_id"][0]
        case.call_and_validate(base_url=target.url, session=target.session, checks=CHECKS, timeout=20)

    run()


# All that is passed on goes one way.
ALIKE = {f"POST {path}" for path in KNOWN.difference(ENDPOINTS, {"/score"})}


@pytest.mark.slow
@pytest.mark.parametrize("label", [label for label in OPERATIONS if label not in ALIKE])
def test_good_requests(target: Target, label: str) -> None:
    answered_as_described(target, label, GenerationMode.POSITIVE)


@pytest.mark.slow
@pytest.mark.parametrize("label", [label for label in REFUSABLE if label not in ALIKE])
def test_bad_requests(target: Target, label: str) -> None:
    answered_as_described(target, label, GenerationMode.NEGATIVE)


def test_every_route_is_described_and_nothing_else_is(tmp_path: Path) -> None:
    app = build(Service(tmp_path, Settings(upstreams=())))
    reached = []
    for label in OPERATIONS:
        method, path = label.split(" ")
        scope = {"type": "http", "method": method, "path": re.sub(r"{\w+}", "some", path), "headers": []}
        route = next((route for route in app.routes if route.matches(scope)[0] is Match.FULL), None)
        assert route is not None, f"{label} is described, and there is no such route"
        reached.append(route)
    assert [route for route in app.routes if route not in reached] == [], "routes that are not described"


def test_the_description_is_served(target: Target) -> None:
    answer = target.session.get(f"{target.url}/openapi.json")
    assert answer.json() == description()
    assert answer.headers["content-type"] == "application/json"


def schemas_of(value: Any) -> Iterator[str]:
    """The names of the schemas that a part of the description refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].removeprefix("#/components/schemas/")
        for part in value.values():
            yield from schemas_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from schemas_of(part)


def test_the_description_is_valid_and_has_nothing_that_nobody_refers_to() -> None:
    SCHEMA.validate()
    found = description()
    assert set(schemas_of(found)) == set(found["components"]["schemas"])
    operations = [operation for path in found["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
