"""Which backends may run a job, and why not the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.policy.eligibility import Candidate, eligibility
from tests.support.examples import ample

GPU = Candidate("gpu", "local", "local", "idle, so free")
LAN = Candidate("lan", "local", "local", "$2.00 per upstream hour")
CLOUD = Candidate("cloud", "local", "hosted", "$3.00 per upstream hour")
KNOWN = {name: {"small": "m"} for name in ("gpu", "lan", "cloud")}
NOT_LOCAL = 'the job is local only, and this backend does not have location = "local"'

TABLE = {
    "the only one": (
        {"candidates": [GPU]},
        {"gpu": "the only one that fits; local, idle, so free"},
        {},
    ),
    "all of them, in the order of orch.toml": (
        {"candidates": [CLOUD, GPU]},
        {
            "cloud": "the only one that fits; hosted, $3.00 per upstream hour",
            "gpu": "the only one that fits; local, idle, so free",
        },
        {},
    ),
    "local only": (
        {"candidates": [CLOUD, GPU], "local_only": True},
        {"gpu": "the only one that fits; local, idle, so free"},
        {"cloud": NOT_LOCAL},
    ),
    "what the job allows": (
        {"candidates": [CLOUD, GPU, LAN], "allowed": ["lan", "gpu"]},
        {
            "gpu": "the only one that fits; local, idle, so free",
            "lan": "the only one that fits; local, $2.00 per upstream hour",
        },
        {"cloud": "the job allows lan, gpu"},
    ),
    "asked for": (
        {"candidates": [CLOUD, GPU], "wanted": "gpu"},
        {"gpu": "asked for; local, idle, so free"},
        {"cloud": "the job is for gpu alone"},
    ),
    "a model without a name there": (
        {"candidates": [CLOUD, GPU], "models": {"cloud": {"small": "m", "big": None}, "gpu": {"big": "b"}}},
        {"gpu": "the only one that fits; local, idle, so free"},
        {"cloud": "the model big has no name there; give it one:  models: {big: {cloud: NAME}}"},
    ),
    "a model without a name where a name is known": (
        {
            "candidates": [replace(GPU, example="tiny"), LAN],
            "models": {"gpu": {"small": None}, "lan": {"small": "m"}},
        },
        {"lan": "the only one that fits; local, $2.00 per upstream hour"},
        {"gpu": "the model small has no name there; give it one:  models: {small: {gpu: tiny}}"},
    ),
    "asked for, but hosted": (
        {"candidates": [CLOUD, GPU], "wanted": "cloud", "local_only": True},
        {},
        {"cloud": NOT_LOCAL, "gpu": "the job is for cloud alone"},
    ),
    "asked for, but not allowed": (
        {"candidates": [GPU], "wanted": "gpu", "allowed": ["lan"]},
        {},
        {"gpu": "the job allows lan"},
    ),
    "asked for, but not there": ({"candidates": [GPU], "wanted": "x"}, {}, {"gpu": "the job is for x alone"}),
    "nothing allowed": ({"candidates": [GPU], "allowed": []}, {}, {"gpu": "the job allows none"}),
    "no backends": ({"candidates": []}, {}, {}),
}


@pytest.mark.parametrize(("given_", "eligible", "objections"), TABLE.values(), ids=TABLE.keys())
def test_who_may_take_a_job_and_what_speaks_against_the_others(
    given_: dict, eligible: dict[str, str], objections: dict[str, str]
) -> None:
    found = eligibility(**{"allowed": None, "local_only": False, "wanted": None, "models": KNOWN, **given_})
    assert list(found.eligible) == list(eligible)
    assert {name: found.reason(name) for name in found.eligible} == eligible
    assert found.objections == objections


CANDIDATES = st.lists(
    st.builds(Candidate, st.sampled_from("abcde"), st.just(""), st.sampled_from(["hosted", "local"]), st.just("")),
    max_size=5, unique_by=lambda candidate: candidate.name,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(
    CANDIDATES,
    st.none() | st.lists(st.sampled_from("abcde"), max_size=3),
    st.booleans(),
    st.none() | st.sampled_from("abcde"),
    st.dictionaries(st.sampled_from("abcde"), st.dictionaries(st.sampled_from("xy"), st.none() | st.just("m"))),
)
def test_each_backend_is_eligible_or_has_an_objection_and_a_local_job_stays_local(
    candidates: list[Candidate], allowed: list[str] | None, local_only: bool, wanted: str | None,
    models: dict[str, dict[str, str | None]],
) -> None:  # fmt: skip
    found = eligibility(candidates, allowed=allowed, local_only=local_only, wanted=wanted, models=models)
    assert sorted([*found.eligible, *found.objections]) == sorted(candidate.name for candidate in candidates)
    assert all(found.objections.values())
    for candidate in found.eligible.values():
        assert candidate.location == "local" or not local_only
        assert allowed is None or candidate.name in allowed
        assert wanted in (None, candidate.name)
        assert None not in models.get(candidate.name, {}).values()
