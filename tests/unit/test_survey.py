"""Surveys of a batch's result files: those of each file say as much as one of all, wherever they say anything."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy import results

ROWS = ("a", "A", "b", "c-1", "07", "7")
GOOD = {"response": {"status_code": 200, "body": {}}}
BAD = {"response": {"status_code": 400, "body": {}}}
EXPIRED = {"error": {"code": "batch_expired", "message": "x"}}
LINES = st.tuples(st.sampled_from([*ROWS, "B", " c-1", "nobody", None]), st.sampled_from([GOOD, BAD, EXPIRED]))
FILES = st.lists(st.one_of(LINES, st.just("no JSON")), max_size=5)


def survey(folder: Path, rows: list[str], *files: list[object]) -> results.Survey:
    paths = []
    for number, lines in enumerate(files):
        paths.append(folder / f"{number}.jsonl")
        texts = (one if isinstance(one, str) else json.dumps({"custom_id": one[0], **one[1]}) for one in lines)  # type: ignore[index]
        paths[-1].write_text("".join(f"{text}\n" for text in texts))
    return results.survey(paths, rows)


@given(st.lists(st.sampled_from(ROWS), unique=True), FILES, FILES)
def test_surveys_of_each_file_say_what_one_of_both_does(
    rows: list[str], output: list[object], errors: list[object]
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        each = [survey(folder, rows, one) for one in (output, errors)]
        whole = survey(folder, rows, output, errors)
    found = results.together(each)
    if found is not None:
        assert found.is_plain
        assert whole.is_plain
        assert (found.told, found.executed, found.answered) == (whole.told, whole.executed, whole.answered)
    assert results.together(each[:1]) is each[0]


@given(st.lists(st.sampled_from(ROWS), unique=True), FILES)
def test_a_plain_file_names_each_of_its_rows_once_and_nobody_else(rows: list[str], lines: list[object]) -> None:
    with TemporaryDirectory() as name:
        found = survey(Path(name), rows, lines)
    names = [one[0] if isinstance(one, tuple) else None for one in lines]
    is_odd = None in names or len({*names}) < len(names) or not {*names} <= {*rows}
    has_alike = {"a", "A"} <= {*rows} or {"07", "7"} <= {*rows}
    assert found.is_plain is not (is_odd or has_alike)
    if found.is_plain:
        assert found.told == {*names}
        assert not found.recognised.ambiguous
        assert all(found.recognised.row(one) == one for one in names)


def test_surveys_of_files_that_share_a_row_do_not_say_which_line_counts(tmp_path: Path) -> None:
    each = [survey(tmp_path, ["b", "c-1"], [("b", GOOD)]), survey(tmp_path, ["b", "c-1"], [("b", BAD)])]
    assert all(one.is_plain for one in each)
    assert results.together(each) is None
    assert results.together([]) is None
