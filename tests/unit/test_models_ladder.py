"""Aliases that list models from cheap to strong: their rungs, what these are called where, and the next one up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.core.model import Job, JobKind
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.pipeline.plan.routes import check_eligible, eligibility_of, models_of, objections, standing_of
from orchestrator.policy.row_errors import BAD_ANSWERS
from orchestrator.settings.config import Config, load
from orchestrator.settings.discovery import Place
from orchestrator.settings.job_file import load as load_job
from orchestrator.settings.model_lists import (
    MOST,
    Names,
    RungStanding,
    Step,
    above,
    expand,
    rung_of,
    standing,
)
from tests.support.stored import CHAT, NOW
from tests.support.stored import job as a_job

ROOT = Path(__file__).resolve().parents[2]
HERE = ("gpu", "api", "flex")

RUNGS: dict[str, tuple[Any, dict[str, Names]]] = {
    "no list": ("nano", {"a": "nano"}),
    "no list, by backend": ({"gpu": "q"}, {"a": {"gpu": "q"}}),
    "one": (("nano",), {"a": {"gpu": "nano", "api": "nano", "flex": "nano"}}),
    "two": (
        ("nano", "mini"),
        {"a": dict.fromkeys(HERE, "nano"), "a@2": dict.fromkeys(HERE, "mini")},
    ),
    "a list as JSON has it": (["nano", {"api": "big"}], {"a": dict.fromkeys(HERE, "nano"), "a@2": {"api": "big"}}),
    "a cheap one that only one backend has": (
        ({"gpu": "q"}, "big"),
        {"a": {"gpu": "q", "api": "big", "flex": "big"}, "a@2": dict.fromkeys(HERE, "big")},
    ),
    "each backend its own": (
        ({"gpu": "q"}, {"api": "mini"}, {"api": "big", "flex": "big"}),
        {
            "a": {"gpu": "q", "api": "mini", "flex": "big"},
            "a@2": {"api": "mini", "flex": "big"},
            "a@3": {"api": "big", "flex": "big"},
        },
    ),
}


@pytest.mark.parametrize(("ladder", "rungs"), RUNGS.values(), ids=RUNGS.keys())
def test_a_list_becomes_rungs_with_the_names_of_each_backend(ladder: Any, rungs: dict[str, Names]) -> None:
    assert expand({"a": ladder}, HERE) == rungs


def test_the_rung_of_an_alias() -> None:
    named = {"a": ("a", 1), "a@2": ("a", 2), "a@9": ("a", 9), "a@1": ("a@1", 1), "m@20250929": ("m@20250929", 1)}
    assert {alias: rung_of(alias) for alias in named} == named


def steps(ladder: Any, alias: str, backend: str, usable: tuple[str, ...] = HERE) -> RungStanding:
    return standing(alias, backend, expand({"a": ladder}, HERE), usable)


LOCAL_FIRST = ({"gpu": "q"}, {"api": "mini"}, {"api": "big", "flex": "big"})
NEXT: dict[str, tuple[RungStanding, RungStanding]] = {
    "no list": (steps("nano", "a", "gpu"), RungStanding()),
    "a model's own name": (steps("nano", "gpt-5@20250929", "gpu"), RungStanding()),
    "one of a list": (steps(("nano",), "a", "gpu"), RungStanding()),
    "the next": (steps(("nano", "mini"), "a", "gpu"), RungStanding(step=Step("a@2", ("mini",), ()))),
    "the last": (steps(("nano", "mini"), "a@2", "gpu"), RungStanding()),
    "the same model twice": (
        steps(("nano", "nano", "mini"), "a", "gpu"),
        RungStanding(step=Step("a@3", ("mini",), ())),
    ),
    "not here": (steps(LOCAL_FIRST, "a", "gpu"), RungStanding(step=Step("a@2", ("big", "mini"), ("gpu",)))),
    "passed over": (
        steps(LOCAL_FIRST, "a", "api"),  # there the first rung was asked of `mini` already
        RungStanding(step=Step("a@3", ("big",), ("gpu",))),
    ),
    "nothing stronger anywhere": (steps(LOCAL_FIRST, "a", "flex"), RungStanding()),
    "no backend that may take it": (
        steps(LOCAL_FIRST, "a", "gpu", ("gpu",)),
        RungStanding(is_alone=True),
    ),
    "none but one is as strong": (
        steps(({"gpu": "q", "flex": "q"}, {"api": "big"}), "a@2", "api"),
        RungStanding(lacks=frozenset({"flex", "gpu"}), is_alone=True),
    ),
    "from two backends to a third": (
        steps(({"gpu": "q", "flex": "q"}, {"api": "big"}), "a", "flex"),
        RungStanding(step=Step("a@2", ("big",), ("flex", "gpu"))),
    ),
}


@pytest.mark.parametrize(("found", "wanted"), NEXT.values(), ids=NEXT.keys())
def test_where_rows_stand_and_where_they_go_next(found: RungStanding, wanted: RungStanding) -> None:
    assert found == wanted


NAMES = st.sampled_from(["q", "mini", "big"])
LADDERS = st.lists(NAMES | st.dictionaries(st.sampled_from(HERE), NAMES, min_size=1), min_size=1, max_size=MOST)


@given(ladder=LADDERS, usable=st.sets(st.sampled_from(HERE), min_size=1), data=st.data())
def test_rows_that_always_fail_climb_to_an_end_and_are_never_asked_of_the_same_model_again_there(
    ladder: list[Names], usable: set[str], data: st.DataObject
) -> None:
    models = expand({"a": ladder}, HERE)
    alias, kept, asked = "a", set[str](), 0
    while True:
        named = models[alias]
        assert isinstance(named, dict)
        places = sorted((usable & named.keys()) - kept)
        if alias == "a" and not places:
            return  # no backend may take the job: it is refused at its submit
        assert places, "rows climb only to where they can go"
        backend = data.draw(st.sampled_from(places))
        asked += 1
        found = standing(alias, backend, models, usable)
        if found.step is None:
            break
        higher = models[found.step.alias]
        assert isinstance(higher, dict)
        assert found.step.alias in above(alias, models)
        assert higher.get(backend) != named[backend]
        alias, kept = found.step.alias, set(found.step.avoid)
        assert kept.isdisjoint(higher)
    assert asked <= len(ladder)


# --- orch.toml and the job file

TOML = """\
[backends.gpu]
upstreams = ["http://127.0.0.1:8000/v1"]
location = "local"
idle = true
[backends.api]
kind = "openai"
api_key_env = "OPENAI_API_KEY"
discount = 0.5
[prices.nano]
input = 1
output = 1
[prices.big]
input = 5
output = 5
[models]
analyst = [{gpu = "q"}, {api = "nano"}, {api = "big"}]
"""


def settings(folder: Path, text: str = TOML) -> Config:
    path = folder / "orch.toml"
    path.write_text(text, encoding="utf-8")
    return load(Place(path, folder, "sqlite:///x", 1.0))


def job(**spec: Any) -> Job:
    task = {"id": "t", "prompt": "?", "model": "analyst"}
    return a_job(spec={"name": "n", "documents": [{"path": "d"}], "tasks": [task], **spec})


def shard(model: str, backend: str) -> Shard:
    return Shard(ShardId("s"), job().id, 1, backend, CHAT, model, ShardState.ENDED, "", 1, 1, NOW)


def test_a_jobs_own_list_goes_before_that_of_orch_toml_as_a_whole(tmp_path: Path) -> None:
    config = settings(tmp_path)
    assert list(models_of(config, job())) == ["analyst", "analyst@2", "analyst@3"]
    assert models_of(config, job(models={"analyst": ["x", {"api": "y"}]})) == {
        "analyst": {"gpu": "x", "api": "x"},
        "analyst@2": {"api": "y"},
    }
    assert models_of(config, job(models={"analyst": "x"})) == {"analyst": "x"}


def test_a_model_of_a_fleet_needs_no_alias_in_a_job_file(tmp_path: Path) -> None:
    fleets = "".join(
        f'[backends.{name}]\nkind = "ray"\nray_python = "p"\n[backends.{name}.models.{model}]\nmodel = "/m"\n'
        "cost_per_hour = 1\n"
        for name, model in (("one", "qwen"), ("two", "qwen"), ("three", "analyst"))
    )
    config = settings(tmp_path, TOML + fleets)
    names = models_of(config, job())
    assert names["qwen"] == {"one": "qwen", "two": "qwen"}
    assert "three" not in names["analyst"], "an alias of that name goes before it"
    task = {"id": "t", "prompt": "?", "model": "qwen"}
    assert list(eligibility_of(config, job(tasks=[task])).eligible) == ["one", "two"]
    assert "qwen" not in models_of(config, a_job(kind=JobKind.BATCH, spec=None)), (
        "a batch file's rows may go to whoever has that name"
    )


def test_rows_of_a_local_model_go_on_at_a_provider_unless_the_job_is_local_only(tmp_path: Path) -> None:
    config = settings(tmp_path)
    up = Step("analyst@2", ("nano",), ("gpu",))
    assert standing_of(config, job(), shard("analyst", "gpu")) == RungStanding(step=up)
    local = job(allow={"location": "local"})
    assert standing_of(config, local, shard("analyst", "gpu")) == RungStanding(is_alone=True)


def test_a_rung_without_a_price_speaks_against_its_backend_before_anything_is_sent(tmp_path: Path) -> None:
    config = settings(tmp_path, TOML.replace("[prices.big]", "[prices.other]"))
    assert list(objections(config, job())) == ["api"]
    assert "big" in objections(config, job())["api"]


def test_a_model_of_a_list_that_no_backend_has_is_told_at_the_submit(tmp_path: Path) -> None:
    config = settings(tmp_path, TOML.replace('{api = "big"}]', '{azure = "big"}]'))
    with pytest.raises(InputError) as raised:
        check_eligible(config, job())
    told = f"model 3 of the list is for azure, and {tmp_path / 'orch.toml'} has no such backend"
    assert raised.value.message == told
    assert raised.value.hint == "known: gpu, api; name one of them, or take the model out of the list"
    check_eligible(settings(tmp_path), job())
    assert list(eligibility_of(settings(tmp_path), job()).eligible) == ["gpu", "api"]


BAD = {
    "an alias with a rung": ('"a@2" = "m"\n', "a@2"),
    "an empty list": ("a = []\n", "models.a"),
    "too many": (f"a = {json.dumps(['m'] * (MOST + 1))}\n", "models.a"),
    "a list in a list": ('a = [["m"]]\n', "models.a"),
}


@pytest.mark.parametrize(("line", "told"), BAD.values(), ids=BAD.keys())
def test_a_list_that_is_none_is_told_with_its_place(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(InputError) as raised:
        settings(tmp_path, TOML + line)
    assert told in str(raised.value)
    assert raised.value.line == len(TOML.splitlines()) + 1


def test_a_job_file_lists_models_too(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: n\ndocuments: d\ntasks: [{id: t, model: a, prompt: hm}]\nmodels: {a: [nano, {api: big}]}\n",
        encoding="utf-8",
    )
    spec = load_job(path)
    assert spec.models == {"a": ("nano", {"api": "big"})}
    assert spec.model_dump(mode="json")["models"] == {"a": ["nano", {"api": "big"}]}


def test_the_page_for_users_has_every_code_of_a_bad_answer() -> None:
    page = (ROOT / "docs/reference/row-errors.md").read_text(encoding="utf-8")
    table = page.partition("<!-- answers -->\n")[2].partition("<!-- end -->")[0]
    told = [line for line in table.splitlines() if line.startswith("| `")]
    assert told == [f"| `{code}` | {why} | {advice} |" for code, (why, advice) in BAD_ANSWERS.items()]
