"""What refusals leave in the store: fields that a model does not take, and rows that wait for a mended request."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from orchestrator.core.model import JobId, RequestState
from orchestrator.policy.row_errors import is_passing
from orchestrator.store import Store
from orchestrator.store.records import RefusalHold
from orchestrator.store.refused_fields import BELIEVED_FOR, LearnedField
from tests.support.stored import CHAT, NOW, added, avoided, job, later, row, settle, sharded, succeeded

FIELD = LearnedField("openai", "gpt-9", CHAT, "stop", "unsupported_parameter", "'stop' is not supported", NOW)
HOLD = RefusalHold(JobId("contracts-1"), "gpu", "m", "t", "model_not_found", "no such model", NOW, later(1))


def waiting(store: Store, avoid: tuple[str, ...] = ()) -> list[int]:
    return [one.seq for one in store.rows.waiting(HOLD.job_id, avoid)]


# --- fields


def test_a_refused_field_is_known_of_its_model_and_endpoint_alone(store: Store) -> None:
    assert store.refused_fields.of("openai", "gpt-9", CHAT, NOW) == frozenset()
    assert store.refused_fields.put(FIELD) is True
    assert store.refused_fields.put(replace(FIELD, field="seed")) is True
    assert store.refused_fields.of("openai", "gpt-9", CHAT, NOW) == {"stop", "seed"}
    for backend, model, endpoint in (("azure", "gpt-9", CHAT), ("openai", "o9", CHAT), ("openai", "gpt-9", "/v1/x")):
        assert store.refused_fields.of(backend, model, endpoint, NOW) == frozenset()


def test_a_field_that_is_refused_again_is_no_news_and_keeps_its_time(store: Store) -> None:
    store.refused_fields.put(FIELD)
    assert store.refused_fields.put(replace(FIELD, message="still not", learned_at=later(24))) is False
    assert store.refused_fields.all(later(24)) == [FIELD]


def test_what_was_learned_later_was_not_known_before(store: Store) -> None:
    store.refused_fields.put(FIELD)
    assert store.refused_fields.of("openai", "gpt-9", CHAT, later(-1)) == frozenset()


def test_a_refused_field_is_forgotten_after_thirty_days(store: Store) -> None:
    store.refused_fields.put(FIELD)
    end = NOW + BELIEVED_FOR
    assert timedelta(days=30) == BELIEVED_FOR
    assert FIELD.until == end
    assert store.refused_fields.of("openai", "gpt-9", CHAT, end - timedelta(seconds=1)) == {"stop"}
    assert store.refused_fields.of("openai", "gpt-9", CHAT, end) == frozenset()
    assert store.refused_fields.all(end) == []
    assert store.refused_fields.put(replace(FIELD, learned_at=end)) is True, "it is news again"


def test_fields_are_forgotten_by_backend_model_and_name(store: Store) -> None:
    others = replace(FIELD, field="seed"), replace(FIELD, model="o9"), replace(FIELD, backend="azure")
    for one in (FIELD, *others):
        store.refused_fields.put(one)
    assert store.refused_fields.forget("openai", "gpt-9", "stop") == 1
    assert store.refused_fields.forget("openai", "gpt-9") == 1
    assert store.refused_fields.forget("openai") == 1
    assert store.refused_fields.forget("openai") == 0
    assert store.refused_fields.all(NOW) == [others[2]]


# --- holds


def test_held_rows_keep_away_from_the_backend_until_the_hold_is_lifted(store: Store) -> None:
    added(store)
    store.holds.put(replace(HOLD, message="no such model\0"))
    assert waiting(store) == []
    assert waiting(store, ("gpu",)) == [0, 1, 2]
    [hold] = store.holds.of(HOLD.job_id)
    assert hold == replace(HOLD, message="no such model\ufffd")
    store.holds.lift([hold])
    assert waiting(store) == [0, 1, 2]
    assert store.holds.of(HOLD.job_id) == []


def test_a_hold_is_about_one_task_and_one_model(store: Store) -> None:
    new = job()
    store.jobs.add(new, {})
    rows = [row(0), row(1, task="u"), row(2, model="n"), row(3)]
    store.rows.add(new.id, rows, {}, NOW)
    store.holds.put(HOLD)
    assert waiting(store) == [1, 2]
    assert waiting(store, ("gpu",)) == [0, 3]


def test_two_backends_that_refuse_do_not_pass_rows_to_and_fro(store: Store) -> None:
    added(store)
    store.holds.put(HOLD)
    store.holds.put(replace(HOLD, backend="cloud"))
    assert waiting(store, ("cloud", "gpu")) == [0, 1, 2]
    store.holds.lift([HOLD])
    assert waiting(store, ("cloud",)) == [0, 1, 2], "the other one still refuses"


def test_one_row_goes_ahead_as_a_probe(store: Store) -> None:
    added(store)
    store.holds.put(HOLD)
    assert store.holds.probe(HOLD, later(2)) is True
    assert waiting(store) == [0]
    assert waiting(store, ("gpu",)) == [1, 2]
    assert store.holds.of(HOLD.job_id)[0].probe_at == later(2)
    store.holds.put(replace(HOLD, times=2, held_at=later(1)))
    assert waiting(store, ("gpu",)) == [0, 1, 2]
    assert store.holds.of(HOLD.job_id)[0].times == 2


def test_no_row_is_probed_where_none_waits(store: Store) -> None:
    new = added(store)
    sharded(store, new)
    store.holds.put(HOLD)
    assert store.holds.probe(HOLD, later(2)) is False


def test_held_rows_end_with_the_providers_code_and_are_in_no_quarantine(store: Store) -> None:
    new = job()
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(0), row(1), row(2, task="u")], {}, NOW, twins={1: 0})
    store.jobs.mark_built(new.id, NOW)
    store.holds.put(HOLD)
    assert store.holds.end(HOLD, later(8)) == 2, "a row and its twin"
    assert store.holds.end(HOLD, later(8)) == 0
    found = list(store.rows.finished(new.id))
    assert [one.state for one in found] == [RequestState.FAILED, RequestState.FAILED, RequestState.PENDING]
    assert {one.error_code for one in found[:2]} == {"model_not_found"}
    assert list(store.quarantine.held("home", is_passing)) == []
    known = store.known.earlier([new.id], {"r0": "f0"})
    assert known == {}, "the next run asks it again"


def test_whether_a_backend_has_answered_rows_of_a_kind(store: Store) -> None:
    new = added(store)
    assert store.holds.has_answers(new.id, "gpu", "m", "t") is False
    settle(store, sharded(store, new), succeeded(0))
    assert store.holds.has_answers(new.id, "gpu", "m", "t") is True
    assert store.holds.has_answers(new.id, None, "m", "t") is True
    for backend, model, task in (("cloud", "m", "t"), ("gpu", "n", "t"), (None, "m", "u")):
        assert store.holds.has_answers(new.id, backend, model, task) is False


def test_holds_go_with_their_job(store: Store) -> None:
    new = added(store)
    store.holds.put(HOLD)
    store.jobs.discard(new.id)
    assert store.holds.of(new.id) == []
    assert avoided(store, new.id) == set()
