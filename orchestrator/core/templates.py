"""Prompts made of templates (Jinja2, sandboxed), in bounded time and memory whatever a template or a document holds.

Nearly all templates put fields into a text and no more: those are rendered here. A template with a loop, a sum or a
filter that may give more than it takes can run for ever or fill the memory, as `{{ 'a' * 10**12 }}` does when it is
merely compiled; those are compiled and rendered in a worker process with limits.
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

MAX_PROMPT = 64_000_000
"""Characters that a template may give."""
WORKER = Single(WorkerLimits(memory=1_000_000_000, seconds=10, patience=60.0, value=4 * MAX_PROMPT))
MOST_TRIPS = 3
"""A template that so many documents have tripped over is not tried with the next."""
MOST_STEPS = 100
"""Names, filters and comparisons of a template that is rendered here."""
MOST_CODE = 20_000
"""Characters between the braces of a template that is parsed here."""
MOST_MESSAGE = 300

_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
# What gives no more than a few times what it takes.
_STEPS = (nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test, nodes.Compare, nodes.Not, nodes.And,
          nodes.Or, nodes.CondExpr, nodes.Slice)  # fmt: skip
_PLAIN_NODES = (*_STEPS, nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Operand, nodes.If)
_PLAIN_FILTERS = frozenset(
    ("abs", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "int", "last", "length", "lower",
     "string", "title", "tojson", "trim", "upper")
)  # fmt: skip
# What compiling may raise besides its own errors: the code that Jinja2 makes has limits of Python's.
_RENDERING = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_COMPILING = (*_RENDERING, SyntaxError, AssertionError)


class TemplateProblem(Exception):
    """A template cannot be compiled, or gives no prompt for these fields; `line` is the line in it, if known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class Template:
    """A template, compiled. `variables` are the names that it takes from a document, `text` among them."""

    def __init__(self, source: str) -> None:
        """Raises TemplateProblem."""
        self._source = source
        tree = _looked_at(source)
        self._compiled: Compiled | None = None
        self._trips: list[TemplateProblem] = []
        if tree is not None and _is_plain(tree):
            self._compiled, self.variables = _compiled(source)
        else:
            self.variables = frozenset(self._elsewhere("check", source))

    def render(self, fields: Mapping[str, object]) -> str:
        """The prompt. Raises TemplateProblem, StorageError; Interrupted where this process is asked to end."""
        if self._compiled is not None:
            return _rendered(self._compiled, fields)
        if len(self._trips) >= MOST_TRIPS:
            raise self._trips[-1]
        used = {name: fields[name] for name in self.variables if name in fields}
        return "".join(self._elsewhere("render", self._source, used))

    def _elsewhere(self, function: str, *arguments: object) -> list[str]:
        """What a function of this module gives in a worker process."""
        found: list[str] = []
        try:
            for is_problem, value, line in WORKER.call(f"{__name__}:{function}", *arguments):
                if is_problem:
                    raise TemplateProblem(value, line)
                found.append(value)
        except Tripped as tripped:
            problem = TemplateProblem(_told(tripped))
            self._trips.append(problem)
            raise problem from None
        return found


@lru_cache(maxsize=256)
def template(source: str) -> Template:
    """A template, compiled once. Raises TemplateProblem."""
    return Template(source)


def check(source: str) -> Iterator[tuple[bool, str, int | None]]:
    """For a worker process: the names that a template uses, or what is wrong with it."""
    try:
        for name in sorted(_compiled(source)[1]):
            yield False, name, None
    except TemplateProblem as problem:
        yield True, problem.message, problem.line


def render(source: str, fields: Mapping[str, object]) -> Iterator[tuple[bool, str, int | None]]:
    """For a worker process: the prompt, or why there is none."""
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
        return environment.from_string(source), frozenset(meta.find_undeclared_variables(environment.parse(source)))
    except TemplateSyntaxError as error:
        raise TemplateProblem(_short(error.message or "broken"), error.lineno) from None
    except _COMPILING as error:
        raise TemplateProblem(_short(f"it is nested too deeply, or too long ({error})")) from None


def _looked_at(source: str) -> nodes.Template | None:
    """The template's parts; None where it is too large, or too broken, to be parsed here."""
    code = sum(len(found[0]) for found in _CODE.finditer(source)) if source.count("{") <= MOST_CODE else MOST_CODE + 1
    if code > MOST_CODE or re.search(r"\{[{%#]", _CODE.sub("", source)):
        return None
    try:
        return _environment().parse(source)
    except _COMPILING:
        return None


def _is_plain(tree: nodes.Template) -> bool:
    """Whether what a template gives, and how long that takes, is bounded by the fields and a small factor."""
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
                raise TemplateProblem(f"it gives more than {MAX_PROMPT:,} characters")
            pieces.append(piece)
    except _RENDERING as error:
        raise TemplateProblem(_short(str(error))) from None
    return "".join(pieces)


def _told(tripped: Tripped) -> str:
    match tripped.trip:
        case Trip.TIME:
            return f"it takes more than {WORKER.limits.seconds} seconds"
        case Trip.MEMORY:
            return f"it takes more than {WORKER.limits.memory:,} bytes of memory"
        case Trip.VALUE:
            return f"it gives more than {MAX_PROMPT:,} characters"
        case Trip.CRASH:
            return "it makes Jinja2 fail"


def _short(text: str) -> str:
    return text if len(text) <= MOST_MESSAGE else f"{text[: MOST_MESSAGE - 1]}…"
