"""Templates of prompts: what they give, and that none of them takes more than it may."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from orchestrator.core import templates
from orchestrator.core.bounded.process import WorkerLimits
from orchestrator.core.bounded.single import Single
from orchestrator.core.errors import InputError
from orchestrator.core.templates import Template, TemplateProblem, template
from orchestrator.documents.types import Document
from orchestrator.policy.requests import Builder, reduce_line
from orchestrator.settings import job_file
from orchestrator.settings.job_spec import JobSpec


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    """One second and 200 MB; the process for templates is this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        few = WorkerLimits(memory=200_000_000, seconds=1, value=4 * templates.MAX_PROMPT)
        patch.setattr(templates, "WORKER", worker := Single(few))
        yield
        worker.close()


FIELDS = {"text": "It was agreed.", "name": "a.txt", "size": 14, "rows": [{"a": 1}, {"a": 2}], "n": 1 << 40}

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "a repeated field": "{{ text * n }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a power of a field": "{{ n ** n }}",
    "a filter": "{{ text | center(10**12) }}",
    "a format": "{{ '%1000000000000d' % size }}",
    "another format": "{{ '{:1000000000000}'.format(size) }}",
    "an indent": "{{ text | indent(10**12) }}",
    "doubling": "{% set ns = namespace(x=text) %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "replacing": "{{ (text * 9999) | replace('', text * 9999) }}",
    "a list": "{{ range(99999) | list | string * 99999 }}",
    "joining": "{{ range(99999) | join(text * 999) }}",
    "many texts": "{{ text }}" * 3_000_000,
}


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_template_without_end_has_one(source: str) -> None:
    with pytest.raises(TemplateProblem, match=r"takes more than|has more than|range|Range|too long|too large"):
        template(source).render(FIELDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if x %}" * 500 + "{% endif %}" * 500,
        "{% for x in y %}" * 50 + "{% endfor %}" * 50,
        "{{ " + "9" * 5000 + " }}",
        "{{ x" + ".a" * 50_000 + " }}",
        "{{ " + "not " * 50_000 + "x }}",
        "{{ x" + "|upper" * 50_000 + " }}",
        "{{ " + "[" * 5000 + "]" * 5000 + " }}",
        "{{ [" + "1," * 50_000 + "] }}{{",
        "{{ '\\ud800\\u' }}",
        "{{ x | nothing }}",
        "{% nothing %}",
        "{{",
        "{% for x in y %}",
        "{#" * 100_000,
        "{{ '" + "{{" * 100_000,
    ],
    ids=range(16),
)
def test_what_is_no_template_is_told(source: str) -> None:
    with pytest.raises(TemplateProblem) as told:
        Template(source)
    assert len(told.value.message) <= templates.MOST_MESSAGE


@pytest.mark.long
def test_a_template_that_never_ends_is_not_tried_with_every_document() -> None:
    endless = Template(ENDLESS["nested loops"])
    messages = set()
    for _ in range(1000):  # at a second each, this test would not end in time
        with pytest.raises(TemplateProblem) as told:
            endless.render(FIELDS)
        messages.add(told.value.message)
    assert messages == {"it takes more than 1 seconds"}


EXPRESSIONS = st.sampled_from(
    ["text", "name|upper", "size", "rows[0].a", "rows", "text[:5]", "missing|default('none')", "name|length",
     "missing", "rows[7]", "name == 'a.txt'", "size > 3 and name", "'x' if size else 'y'", "not size", "n",
     "rows|first|tojson", "name is defined", "name in text", "name.__class__", "'<b>'|e"]
)  # fmt: skip
PIECES = st.one_of(
    EXPRESSIONS.map(lambda inside: "{{ " + inside + " }}"),
    EXPRESSIONS.map(lambda inside: "{% if " + inside + " %}yes{% else %}no{% endif %}"),
    st.sampled_from(["some words\n", "{# a remark #}", "{% raw %}{{ kept }}{% endraw %}", "{", "}}", "\n"]),
)
LOOPS = st.sampled_from(
    ["{% for row in rows %}{{ row.a }}{% endfor %}", "{{ size + 1 }}", "{{ name ~ size }}", "{{ rows|length * 2 }}",
     "{% set x = name %}{{ x }}", "{{ rows|map(attribute='a')|join(',') }}", "{{ 1 / 0 }}"]
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(PIECES | LOOPS, max_size=5).map("".join))
def test_it_gives_what_jinja_gives(source: str) -> None:
    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)

    def outcome(render: Callable[[], str], errors: tuple[type[Exception], ...]) -> str:
        try:
            return render()
        except errors as error:
            return f"error: {error}"[:290]

    expected = outcome(
        lambda: environment.from_string(source).render(FIELDS),
        (TemplateError, ArithmeticError, LookupError, TypeError, ValueError),
    )
    assert outcome(lambda: Template(source).render(FIELDS), (TemplateProblem,)) == expected


@given(st.text(st.sampled_from("{}%# \nabtext|.()[]'\"0123456789*~-+<>=!,ifor:"), max_size=60))
def test_no_text_makes_the_compiler_fail(source: str) -> None:
    try:
        Template("{{ " + source + " }}{% " + source).render(FIELDS)
    except TemplateProblem as told:
        assert told.message is not None  # noqa: PT017 (either outcome is right)


@pytest.mark.slow
def test_only_what_may_take_long_goes_to_a_worker_process() -> None:
    templates.WORKER.close()
    for source in (
        "{{ text }}",
        "{% if size %}{{ name|upper }}{% endif %}",
        "Words.",
        "{{ rows[0].a|default('x') }}",
    ):
        Template(source).render(FIELDS)
    assert not templates.WORKER.is_started
    assert Template("{% for row in rows %}{{ row.a }}{% endfor %}").render(FIELDS) == "12"
    assert templates.WORKER.is_started


@pytest.mark.long
def test_a_document_that_a_template_trips_over_fails_its_rows_alone() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "j",
            "documents": "docs",
            "tasks": [
                {"id": "bad", "prompt": ENDLESS["a repeated field"], "model": "m"},
                {"id": "good", "prompt": "{{ name }}", "model": "m"},
            ],
        }
    )
    bad, good = Builder(spec).build(Document("a", "a", "text", "d", 4, {"name": "a", "n": 1 << 40}))
    assert bad.row.problem is not None
    assert bad.row.problem[0] == "template"
    assert good.row.problem is None
    asked = {"id": "t", "prompt": "?", "model": "m", "long": {"reduce": "{{ answers[0] * 10**12 }}"}}
    (task,) = JobSpec.model_validate({"name": "j", "documents": "d", "tasks": [asked]}).tasks
    told = reduce_line(
        JobSpec.model_validate({"name": "j", "documents": "d", "tasks": [task]}).tasks[0], "r", 9, ["a"]
    )
    assert isinstance(told, tuple)
    assert told[0] == "template"


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("field", ["prompt", "system"])
def test_a_template_that_cannot_be_compiled_is_told_with_its_line(tmp_path: Path, field: str) -> None:
    task = {"prompt": '"{{ text }}"', "system": "words", field: '"{{ 9 ** (9 ** 9) }}"'}
    lines = "\n".join(f"    {name}: {value}" for name, value in task.items())
    path = tmp_path / "job.yaml"
    path.write_text(f"name: j\ndocuments: d\ntasks:\n  - id: t\n    model: m\n{lines}\n")
    with pytest.raises(InputError) as told:
        job_file.load(path)
    assert told.value.line == {"prompt": 6, "system": 7}[field]
    assert told.value.field == f"tasks[0].{field}"


IN_A_WORKER = "{% for word in text.split() %}{{ word }} {% endfor %}"


def _rendered_in_a_fork(name: str) -> list[str]:
    return [template(IN_A_WORKER).render({"text": f"{name} {number}"}) for number in range(200)]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forks_of_a_process_that_has_a_worker_get_their_own_prompts() -> None:
    assert template(IN_A_WORKER).render({"text": "parent 1"}) == "parent 1 "
    assert templates.WORKER.is_started
    names = ["a", "b", "c"]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.map(_rendered_in_a_fork, names, chunksize=1)
    assert found == [[f"{name} {number} " for number in range(200)] for name in names]
    assert template(IN_A_WORKER).render({"text": "parent 2"}) == "parent 2 ", "its worker is left to it"
