"""Which backend runs a job, and why not the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.policy.eligibility import Candidate, Refusal, choose

GPU = Candidate("gpu", "local", "local", "idle, so free")
LAN = Candidate("lan", "local", "local", "$2 per upstream hour")
CLOUD = Candidate("cloud", "local", "hosted", "$3 per upstream hour")
KNOWN = {name: {"small": "m"} for name in ("gpu", "lan", "cloud")}
NOT_LOCAL = 'the job is local only, and this backend is not declared location = "local"'

TABLE = {
    "the only one": (
        {"candidates": [GPU]},
        "gpu",
        "the only one that fits; local, idle, so free",
        {},
    ),
    "the first in orch.toml": (
        {"candidates": [CLOUD, GPU]},
        "cloud",
        "the first that fits; hosted, $3 per upstream hour",
        {"gpu": "cloud stands before it in orch.toml"},
    ),
    "local only": (
        {"candidates": [CLOUD, GPU], "local_only": True},
        "gpu",
        "the only one that fits; local, idle, so free",
        {"cloud": NOT_LOCAL},
    ),
    "what the job allows": (
        {"candidates": [CLOUD, GPU, LAN], "allowed": ["lan", "gpu"]},
        "gpu",
        "the first that fits; local, idle, so free",
        {"cloud": "the job allows lan, gpu", "lan": "gpu stands before it in orch.toml"},
    ),
    "asked for": (
        {"candidates": [CLOUD, GPU], "wanted": "gpu"},
        "gpu",
        "asked for; local, idle, so free",
        {"cloud": "--backend gpu was given"},
    ),
    "a model without a name there": (
        {"candidates": [CLOUD, GPU], "models": {"cloud": {"small": "m", "big": None}, "gpu": {"big": "b"}}},
        "gpu",
        "the only one that fits; local, idle, so free",
        {"cloud": "the model big has no name there"},
    ),
    "asked for, but hosted": (
        {"candidates": [CLOUD, GPU], "wanted": "cloud", "local_only": True},
        None,
        None,
        {"cloud": NOT_LOCAL, "gpu": "--backend cloud was given"},
    ),
    "asked for, but not allowed": (
        {"candidates": [GPU], "wanted": "gpu", "allowed": ["lan"]},
        None,
        None,
        {"gpu": "the job allows lan"},
    ),
    "asked for, but not there": ({"candidates": [GPU], "wanted": "x"}, None, None, {"gpu": "--backend x was given"}),
    "nothing allowed": ({"candidates": [GPU], "allowed": []}, None, None, {"gpu": "the job allows none"}),
    "no backends": ({"candidates": []}, None, None, {}),
}  # fmt: skip


@pytest.mark.parametrize(("given_", "backend", "reason", "refused"), TABLE.values(), ids=TABLE.keys())
def test_a_route_and_its_reason(
    given_: dict, backend: str | None, reason: str | None, refused: dict[str, str]
) -> None:
    plan = choose(**{"allowed": None, "local_only": False, "wanted": None, "models": KNOWN, **given_})
    assert (plan.route.backend if plan.route else None) == backend
    assert (plan.route.reason if plan.route else None) == reason
    assert {refusal.backend: refusal.reason for refusal in plan.refused} == refused


CANDIDATES = st.lists(
    st.builds(Candidate, st.sampled_from("abcde"), st.just(""), st.sampled_from(["hosted", "local"]), st.just("")),
    max_size=5, unique_by=lambda candidate: candidate.name,
)  # fmt: skip


@settings(max_examples=200)
@given(
    CANDIDATES,
    st.none() | st.lists(st.sampled_from("abcde"), max_size=3),
    st.booleans(),
    st.none() | st.sampled_from("abcde"),
    st.dictionaries(st.sampled_from("abcde"), st.dictionaries(st.sampled_from("xy"), st.none() | st.just("m"))),
)
def test_each_backend_is_taken_or_refused_with_a_reason_and_a_local_job_stays_local(
    candidates: list[Candidate], allowed: list[str] | None, local_only: bool, wanted: str | None,
    models: dict[str, dict[str, str | None]],
) -> None:  # fmt: skip
    plan = choose(candidates, allowed=allowed, local_only=local_only, wanted=wanted, models=models)
    taken = [] if plan.route is None else [plan.route.backend]
    assert sorted(taken + [refusal.backend for refusal in plan.refused]) == sorted(c.name for c in candidates)
    assert all(isinstance(refusal, Refusal) and refusal.reason for refusal in plan.refused)
    if plan.route is not None:
        best = next(candidate for candidate in candidates if candidate.name == plan.route.backend)
        assert best.location == "local" or not local_only
        assert allowed is None or best.name in allowed
        assert wanted in (None, best.name)
        assert None not in models.get(best.name, {}).values()
