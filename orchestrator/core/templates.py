"""Prompts from templates (Jinja2, sandboxed), in bounded time and memory for any template or document.

Nearly all templates only put fields into a text; these are rendered in this process. A template with a loop, a sum
or an expanding filter can run forever or fill the memory; compiling `{{ 'a' * 10**12 }}` is enough. Such templates
are compiled and rendered in a worker process with limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2 import Template as Compiled
from jinja2.sandbox import SandboxedEnvironment

from orchestrator.core.bounded.process import Trip, Tripped, WorkerLimits
from orchestrator.core.bounded.single import Single
from orchestrator.core.sanitize import cut

MAX_PROMPT = 64_000_000
"""Maximum number of characters of a prompt."""
WORKER = Single(WorkerLimits(memory=1_000_000_000, seconds=10, patience=60.0, value=4 * MAX_PROMPT))
MOST_TRIPS = 3
"""Number of documents on which a template may exceed its limits before orch gives up on it."""
MOST_STEPS = 100
"""Maximum number of names, filters and comparisons of a template that is rendered in this process."""
MOST_CODE = 20_000
"""Maximum number of characters between the braces of a template that is parsed in this process."""
MOST_MESSAGE = 300

_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
# Nodes whose output is at most a few times their input.
_STEPS = (nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test, nodes.Compare, nodes.Not, nodes.And,
          nodes.Or, nodes.CondExpr, nodes.Slice)  # fmt: skip
_PLAIN_NODES = (*_STEPS, nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Operand, nodes.If)
_OTHERS = (nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport)
_PLAIN_FILTERS = frozenset(
    ("abs", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "int", "last", "length", "lower",
     "string", "title", "tojson", "trim", "upper")
)  # fmt: skip
# Compiling raises more than Jinja2's own errors: its generated code is subject to Python's limits.
_RENDERING = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_COMPILING = (*_RENDERING, SyntaxError, AssertionError)


class TemplateProblem(Exception):
    """A template cannot be compiled, or gives no prompt for these fields. `line` is the line of the mistake, if
    known.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class Template:
    """A compiled template. `variables` are the names that the template takes from a document, including `text`."""

    def __init__(self, source: str) -> None:
        """Compile a template. Raises TemplateProblem."""
        self._source = source
        tree = _parsed_here(source)
        self._compiled: Compiled | None = None
        self._trips: list[TemplateProblem] = []
        if tree is not None and _is_plain(tree):
            self._compiled, self.variables = _compiled(source)
        else:
            self.variables = frozenset(self._in_worker("check", source))

    def render(self, fields: Mapping[str, object]) -> str:
        """Return the prompt. Raises TemplateProblem or StorageError, or Interrupted if the process was asked to
        stop.
        """
        if self._compiled is not None:
            return _rendered(self._compiled, fields)
        if len(self._trips) >= MOST_TRIPS:
            raise self._trips[-1]
        used = {name: fields[name] for name in self.variables if name in fields}
        return "".join(self._in_worker("render", self._source, used))

    def _in_worker(self, function: str, *arguments: object) -> list[str]:
        found: list[str] = []
        try:
            for is_problem, value, line in WORKER.call(f"{__name__}:{function}", *arguments):
                if is_problem:
                    raise TemplateProblem(value, line)
                found.append(value)
        except Tripped as tripped:
            problem = TemplateProblem(_limit_words(tripped))
            self._trips.append(problem)
            raise problem from None
        return found


@lru_cache(maxsize=256)
def template(source: str) -> Template:
    """Compile a template, or return it from the cache. Raises TemplateProblem."""
    return Template(source)


def check(source: str) -> Iterator[tuple[bool, str, int | None]]:
    """Yield each variable of a template, or its mistake, as (is a mistake, text, line). Runs in a worker process."""
    try:
        for name in sorted(_compiled(source)[1]):
            yield False, name, None
    except TemplateProblem as problem:
        yield True, problem.message, problem.line


def render(source: str, fields: Mapping[str, object]) -> Iterator[tuple[bool, str, int | None]]:
    """Yield the prompt, or the template's mistake, as (is a mistake, text, line). Runs in a worker process."""
    try:
        yield False, _rendered(_compiled(source)[0], fields), None
    except TemplateProblem as problem:
        yield True, problem.message, problem.line


@cache
def _environment() -> SandboxedEnvironment:
    return SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


@lru_cache(maxsize=32)
def _compiled(source: str) -> tuple[Compiled, frozenset[str]]:
    environment = _environment()
    try:
        tree = environment.parse(source)
        if (other := next(tree.find_all(_OTHERS), None)) is not None:
            raise TemplateProblem(
                "the template uses another template, which is not supported: write that template's text here",
                other.lineno,
            )
        return environment.from_string(source), frozenset(meta.find_undeclared_variables(tree))
    except TemplateSyntaxError as error:
        raise TemplateProblem(cut(error.message or "broken", MOST_MESSAGE), error.lineno) from None
    except _COMPILING as error:
        raise TemplateProblem(cut(f"it is nested too deeply, or too long ({error})", MOST_MESSAGE)) from None


def _parsed_here(source: str) -> nodes.Template | None:
    """Parse a template; None if it is too large or too broken to be parsed in this process."""
    code = sum(len(found[0]) for found in _CODE.finditer(source)) if source.count("{") <= MOST_CODE else MOST_CODE + 1
    if code > MOST_CODE or re.search(r"\{[{%#]", _CODE.sub("", source)):
        return None
    try:
        return _environment().parse(source)
    except _COMPILING:
        return None


def _is_plain(tree: nodes.Template) -> bool:
    """True if a template's output and time are at most a small multiple of its fields."""
    steps = 0
    try:
        for node in tree.find_all(nodes.Node):
            steps += isinstance(node, _STEPS)
            if not isinstance(node, _PLAIN_NODES) or steps > MOST_STEPS:
                return False
            if isinstance(node, nodes.Filter) and node.name not in _PLAIN_FILTERS:
                return False
    except RecursionError:
        return False
    return True


def _rendered(compiled: Compiled, fields: Mapping[str, object]) -> str:
    pieces: list[str] = []
    size = 0
    try:
        for piece in compiled.root_render_func(compiled.new_context(dict(fields))):
            size += len(piece)
            if size > MAX_PROMPT:
                raise TemplateProblem(f"its prompt has more than {MAX_PROMPT:,} characters")
            pieces.append(piece)
    except _RENDERING as error:
        raise TemplateProblem(cut(str(error), MOST_MESSAGE)) from None
    return "".join(pieces)


def _limit_words(tripped: Tripped) -> str:
    match tripped.trip:
        case Trip.TIME:
            return f"it takes more than {WORKER.limits.seconds} seconds"
        case Trip.MEMORY:
            return f"it takes more than {WORKER.limits.memory:,} bytes of memory"
        case Trip.VALUE:
            return f"its prompt has more than {MAX_PROMPT:,} characters"
        case Trip.CRASH:
            return "it makes Jinja2 fail"
