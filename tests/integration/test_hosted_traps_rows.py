"""What befalls single rows in result files, and what they cost, through the whole pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from tests.emulator.driving import chat_line
from tests.support.hostedjob import Desk, all_are, cost_of, plain, row, script

OUTCOMES: dict[str, tuple[Sequence[str], str, int]] = {
    "a row twice in the output": (["duplicate"], "succeeded", 1),
    "a line of an unknown id beside it": (["unknown_id"], "succeeded", 1),
    "a body that is JSON in a string": (["body_string"], "succeeded", 1),
    "a row in both files": (["both_files"], "succeeded", 1),
    "a failure before the answer": (["fails_first"], "succeeded", 1),
    "a failure before the answer, in both files": (["fails_first", "both_files"], "succeeded", 1),
    "a broken line, once": (["broken_line:1"], "succeeded", 2),
    "a row in no file, once": (["missing:1"], "succeeded", 2),
    "a row in no file, ever": (["missing"], "failed: missing_result", 3),
    "status 0, once": (["status:0:1"], "succeeded", 2),
    "status 0, always": (["status:0"], "failed: http_0", 3),
    "a failed row in the output file": (["status:400", "in_output"], "failed: invalid_value", 1),
    "a failed row with a body in a string": (["status:400", "body_string"], "failed: invalid_value", 1),
    "a server error, once": (["status:500:1"], "succeeded", 2),
    "a server error, always": (["status:500"], "failed: http_500", 3),
    "too long for the model": (["context_length_exceeded"], "failed: context_length_exceeded", 1),
    "a content filter": (["content_filter"], "failed: content_filter", 1),
    "a word of expiry in a batch that is completed": (["expired:1"], "succeeded", 2),
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("fault", OUTCOMES)
def test_trap_a7_what_becomes_of_a_row_among_others(desk: Desk, fault: str) -> None:
    faults, end, attempts = OUTCOMES[fault]
    # Enough good rows for an odd one to be told as odd.
    job = desk.run([*plain(20), row("odd", *faults)])
    assert desk.ends(job) == {**all_are("succeeded", 20), "odd": end}
    assert desk.attempts(job)["odd"] == attempts
    assert len(desk.batches()) == attempts
    assert {name: number for name, number in desk.billed().items() if name != "odd"} == all_billed(20)


@pytest.mark.long
def test_trap_1_22_a_row_refused_alone_where_all_others_are_answered_is_not_tried_for_ever(desk: Desk) -> None:
    job = desk.run([*plain(20), row("odd", "status:429:2")])
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.attempts(job)["odd"] > 1
    assert len(desk.batches()) == 3


def all_billed(count: int) -> dict[str, int]:
    return {f"r{number}": 1 for number in range(count)}


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("fault", ["status:429", "resource_unavailable", "status:503", "status:498"])
def test_trap_1_22_rows_that_wait_for_capacity_burn_no_attempt(desk: Desk, fault: str) -> None:
    job = desk.run([row(f"r{number}", f"{fault}:4") for number in range(3)])
    assert desk.ends(job) == all_are("succeeded", 3)
    assert len(desk.batches()) == 5
    assert set(desk.attempts(job).values()) == {1}


def test_trap_a5_results_come_in_any_order(desk: Desk) -> None:
    script(desk, "shuffled")
    job = desk.run(plain(30))
    assert list(desk.ends(job).items()) == list(all_are("succeeded", 30).items())
    contents = [found["output"] for found in desk.rows(job).values()]
    assert len(set(contents)) == 30


@pytest.mark.long
def test_trap_1_26_an_output_file_that_is_cut_in_its_last_line_loses_that_row_alone(desk: Desk) -> None:
    script(desk, "cut_tail")
    job = desk.run(plain(5))
    assert desk.ends(job) == all_are("succeeded", 5)
    assert [batch["rows"] for batch in desk.batches()] == [5, 1]
    assert "1 line that is not a result" in desk.events(job, "collected")[0]


@pytest.mark.long
def test_trap_1_25_rows_that_never_arrive_are_counted_and_named(desk: Desk) -> None:
    script(desk, "rows", row="missing", lines=[1, 4])
    job = desk.run(plain(6))
    assert desk.ends(job) == all_are("succeeded", 6)
    [first, *_] = desk.events(job, "collected")
    assert first.startswith(
        "4 succeeded, 2 continue in another batch, 2 for no result, up to 2 answers may come there"
    )
    assert [shard["reason"] for shard in desk.detail(job)["shards"]][1].endswith("; tried 1 time before")
    assert sum(desk.billed().values()) == 8, "the provider bills what it has not returned: only it can know"


@pytest.mark.long
def test_trap_1_33_counts_are_those_of_the_rows_whatever_the_provider_counts(desk: Desk) -> None:
    job = desk.run([*plain(3), row("zero", "status:0"), row("lost", "missing"), row("bad", "status:400")])
    requests = desk.detail(job)["requests"]
    assert (requests["total"], requests["succeeded"], requests["failed"], requests["pending"]) == (6, 3, 3, 0)
    assert len(desk.rows(job)) == 6
    assert [reason["rows"] for reason in desk.detail(job)["reasons"]] == [1, 1, 1]


def test_trap_1_30_a_custom_id_may_hold_anything(desk: Desk) -> None:
    ids = ["with spaces", "ünïcode 行", "x" * 300, 'quotes "and" \\ slashes/', "tab\tand\nline"]
    job = desk.run([row(name) for name in ids])
    assert desk.ends(job) == dict.fromkeys(ids, "succeeded")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fault", ["status:404", "status:405", "status:501"])
def test_trap_a6_a_row_that_this_backend_will_never_do_goes_to_another(desk: Desk, fault: str) -> None:
    desk.backends({"openai": {}, "azure": {}})
    desk.provider.script({"do": "rows", "match": {"flavour": "openai"}, "row": fault, "lines": [2], "times": None})
    job = desk.run(plain(3))
    assert desk.ends(job) == all_are("succeeded", 3)
    backends = [found["provenance"]["backend"] for found in desk.rows(job).values()]
    assert backends == ["openai", "azure", "openai"]


@pytest.mark.long
def test_trap_a6_a_row_is_not_passed_to_and_fro_between_backends(desk: Desk) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.run([*plain(2), row("odd", "status:404")])
    assert desk.ends(job) == {**all_are("succeeded", 2), "odd": "failed: http_404"}
    assert len(desk.batches()) == 3


def documents(folder: Path, texts: dict[str, str], more: str = "") -> Path:
    (folder / "documents").mkdir()
    for name, text in texts.items():
        (folder / "documents" / f"{name}.txt").write_text(text, encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(
        "name: letters\ndocuments: {path: documents}\nmodels: {small: m}\n"
        "tasks:\n  - {id: sum, model: small, max_tokens: 60, prompt: Summarise.}\n" + more,
        encoding="utf-8",
    )
    return path


def test_trap_a7_an_answer_cut_to_nothing_fails_and_says_what_to_raise(desk: Desk, tmp_path: Path) -> None:
    path = documents(tmp_path, {"a": "A letter.", "b": "Another. [[fault:length]]", "c": "Bad. [[fault:filtered]]"})
    job = desk.run(path)
    found = {found["document"]: found for found in desk.rows(job).values()}
    assert found["documents/a.txt"]["status"] == "succeeded"
    assert found["documents/b.txt"]["error"]["code"] == "truncated"
    assert "raise max_tokens" in found["documents/b.txt"]["error"]["message"]
    assert found["documents/c.txt"]["error"]["code"] == "content_filter"
    assert len(desk.batches()) == 1, "what was answered is not asked again"
    assert desk.cost(job) == cost_of(desk.provider.bill()), "and it is paid, if in vain"


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("model", "bound"), [("m", 400), ("gpt-4o", 20_000)])
def test_an_answer_that_ended_well_before_the_bound_that_was_sent_met_its_context_window(
    desk: Desk, tmp_path: Path, model: str, bound: int
) -> None:
    """The bound is the one that was sent: gpt-4o writes at most 16,384 tokens, and is asked for no more."""
    path = documents(tmp_path, {"a": "A letter.", "b": "Another. [[fault:length]]", "c": "Long. [[fault:window]]"})
    job_file = path.read_text(encoding="utf-8").replace("max_tokens: 60", f"max_tokens: {bound}")
    path.write_text(job_file.replace("small: m}", f"small: {model}}}"), encoding="utf-8")
    job = desk.run(path)
    codes = {row["document"][-5:]: (row["error"] or {}).get("code") for row in desk.rows(job).values()}
    assert codes == {"a.txt": None, "b.txt": "truncated", "c.txt": "context_full"}


# --- prices


@pytest.mark.thinned(2)
@pytest.mark.parametrize("faults", [[], ["cached"], ["reasoning"], ["cached", "reasoning"]], ids="+".join)
def test_trap_1_39_a_batch_row_costs_its_batch_price_once_discounted(desk: Desk, faults: list[str]) -> None:
    """The answers say `service_tier: default`: they were served in a batch all the same."""
    job = desk.run([row("r0", *faults, max_tokens=40)])
    bill = desk.provider.bill()
    [line] = bill["lines"]
    tokens = desk.rows(job)["r0"]["provenance"]["tokens"]
    assert tokens == {name: line[name] for name in ("input", "cached", "cache_write", "output", "reasoning")}
    assert (line["cached"] > 0, line["reasoning"] > 0) == ("cached" in faults, "reasoning" in faults)
    assert desk.cost(job) == cost_of(bill) > 0
    assert desk.rows(job)["r0"]["provenance"]["tier"] == "default"


def test_trap_d_reasoning_that_is_not_in_the_completion_tokens_is_paid(desk: Desk) -> None:
    job = desk.run([row("r0", "reasoning_outside")])
    assert desk.cost(job) == cost_of(desk.provider.bill()) > 0


def test_trap_1_38_every_row_is_booked_once_though_lines_are_doubled_and_broken(desk: Desk) -> None:
    job = desk.run([*plain(3), row("twice", "duplicate"), row("beside", "unknown_id"), row("string", "body_string")])
    assert desk.cost(job) == cost_of(desk.provider.bill())
    [total] = desk.store.ledger.totals("job")
    assert total.rows == 6
    [event] = desk.events(job, "collected")
    assert event == (
        "6 succeeded, 1 second line for a row, 1 line of an unknown custom_id, "
        "an unknown id is 'nobody-asked-for-this-beside'"
    )


def test_trap_f1_a_model_whose_batch_price_nobody_knows_is_not_sent(desk: Desk) -> None:
    desk.backend(provider="nobody", discount=0)
    job = desk.submit([chat_line("a", "text", "unpriced")])
    desk.settle(job)
    assert "is known for nobody:unpriced" in desk.said[0]
    assert desk.provider.calls("upload") == {}
    desk.backends({"openai": {}}, "[prices.unpriced]\ninput = 1\noutput = 1\nbatch = {input = 1, output = 1}\n")
    desk.finish(job)
    assert desk.ends(job) == {"a": "succeeded"}
    assert desk.cost(job) > 0


def test_trap_f1_half_of_a_realtime_price_is_an_estimate_and_says_so(desk: Desk) -> None:
    desk.backends({"openai": {}}, "[prices.listed]\ninput = 1\noutput = 1\n")
    job = desk.run([chat_line("a", "text", "listed")])
    [total] = desk.store.ledger.totals("job")
    [line] = desk.provider.bill()["lines"]
    assert total.estimated
    assert desk.cost(job) == Decimal(line["input"] + line["output"]) / 2_000_000


@pytest.mark.long
def test_trap_1_38_what_is_reported_is_the_rows_and_the_rows_are_the_bill(desk: Desk) -> None:
    script(desk, "expires", share=0.5)
    job = desk.run([*plain(6), row("cached", "cached"), row("bad", "status:400")])
    bill = desk.provider.bill()
    told = [Decimal(found["provenance"]["cost_usd"]) for found in desk.rows(job).values()]
    assert desk.cost(job) == cost_of(bill) == sum(told)
