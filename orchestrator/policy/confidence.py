"""Confidence in a label: the model's probability, and how often labels with that probability were right. Pure.

A model's probability of a label is the product of its tokens' probabilities. Models are overconfident, each in its
own way. If known answers show which labels were right, a logistic curve is fitted to them. It turns the model's
probability into the share of labels that are right. The method is Platt's (Probabilistic Outputs for Support Vector
Machines, 1999). Its priors ensure that no finite number of known answers makes a label certain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.finish_reasons import first_choice
from orchestrator.core.json_decoders import json_decoder

ENOUGH = 20
"""Minimum number of known answers for a calibration."""
_MOST_SURE = 1 - 1e-6
_STEPS = 50
_SMALL = 1e-9
_LABEL = re.compile(rb'"label"\s*:\s*"((?:[^"\\]|\\.)*")')


class _Token(msgspec.Struct):
    logprob: float
    token: str = ""
    utf8: list[int] | None = msgspec.field(name="bytes", default=None)

    @property
    def raw(self) -> bytes:
        """UTF-8 bytes of the token. A token that is part of a character has bytes but no text."""
        try:
            return bytes(self.utf8) if self.utf8 else self.token.encode("utf-8", "replace")
        except ValueError:
            return b""


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None
    index: Any = None


class _Part(msgspec.Struct):
    logprobs: list[_Token] | None = None


class _Item(msgspec.Struct):
    content: list[_Part] | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    output: list[_Item] | None = None


_decode_body = json_decoder(_Body).decode


def label_probability(body: msgspec.Raw, text: str) -> float | None:
    """Return the probability, up to 1, of the label in the answer `text`; None if the body states no probabilities.

    The quotation mark after the label counts too, because it distinguishes `bill` from `billing`.
    """
    tokens = _tokens(body)
    whole = b"".join(token.raw for token in tokens)
    # A server may strip whitespace around the text.
    shift = whole.find(text.encode())
    found = _LABEL.search(text.encode())
    if not tokens or shift < 0 or found is None:
        return None
    first, last = found.start(1) + shift, found.end(1) + shift
    ends = list(accumulate(len(token.raw) for token in tokens))
    starts = [0, *ends[:-1]]
    of_label = [
        token.logprob for token, start, end in zip(tokens, starts, ends, strict=True) if start < last and end > first
    ]
    return min(1.0, math.exp(min(0.0, math.fsum(of_label))))


def _tokens(body: msgspec.Raw) -> list[_Token]:
    try:
        parsed = _decode_body(body)
    except JSON_ERRORS:
        return []
    if parsed.choices:
        choice = first_choice(parsed.choices)
        return (choice.logprobs and choice.logprobs.content) or []
    parts = [part for item in parsed.output or () for part in item.content or ()]
    return [token for part in parts for token in part.logprobs or ()]


class ConfidenceCurve(Struct, frozen=True):
    """Calibration curve of a task. The chance that a label is right is `1 / (1 + exp(-(slope * logit + offset)))`.

    `logit` is the log-odds of the model's probability p: `log(p / (1 - p))`.
    """

    slope: float
    offset: float
    known: int

    def confidence(self, probability: float) -> float:
        """Return the share (0 to 1) of labels with this probability that are right."""
        return _logistic(self.slope * _logit(probability) + self.offset)


def fitted_curve(known: Sequence[tuple[float, bool]]) -> ConfidenceCurve | None:
    """Fit a curve to labels whose probability and correctness are known. None if there are too few.

    If a model is right less often when it is more certain, its probability says nothing. Then all labels get the
    overall share of right labels.
    """
    if len(known) < ENOUGH:
        return None
    right = sum(is_right for _, is_right in known)
    wrong = len(known) - right
    targets = ((right + 1) / (right + 2), 1 / (wrong + 2))
    points = [(_logit(probability), targets[0] if is_right else targets[1]) for probability, is_right in known]
    base = _logit(math.fsum(target for _, target in points) / len(points))
    if max(at for at, _ in points) - min(at for at, _ in points) < _SMALL:
        return ConfidenceCurve(0.0, base, len(known))
    slope, offset = _fitted(points, base)
    return ConfidenceCurve(slope, offset, len(known)) if slope > 0 else ConfidenceCurve(0.0, base, len(known))


def _fitted(points: Sequence[tuple[float, float]], base: float) -> tuple[float, float]:
    """Return the most likely slope and offset, by Newton's method. Steps are halved until they improve the fit."""
    here, loss = (0.0, base), _loss(points, 0.0, base)
    for _ in range(_STEPS):
        step = _newton(points, *here)
        scale = 1.0
        while scale > _SMALL:
            there = here[0] - scale * step[0], here[1] - scale * step[1]
            found = _loss(points, *there)
            if found < loss:
                break
            scale /= 2
        else:
            break
        gained, here, loss = loss - found, there, found
        if gained < _SMALL:
            break
    return here


def _newton(points: Sequence[tuple[float, float]], slope: float, offset: float) -> tuple[float, float]:
    """Return the gradient times the inverse Hessian; a ridge keeps the Hessian from being singular."""
    gradient_slope = gradient_offset = 0.0
    slopes, both, offsets = _SMALL, 0.0, _SMALL
    for at, target in points:
        chance = _logistic(slope * at + offset)
        gap, weight = chance - target, chance * (1 - chance)
        gradient_slope += gap * at
        gradient_offset += gap
        slopes += weight * at * at
        both += weight * at
        offsets += weight
    determinant = slopes * offsets - both * both
    return (
        (offsets * gradient_slope - both * gradient_offset) / determinant,
        (slopes * gradient_offset - both * gradient_slope) / determinant,
    )


def _loss(points: Sequence[tuple[float, float]], slope: float, offset: float) -> float:
    def one(at: float, target: float) -> float:
        value = slope * at + offset
        return max(value, 0.0) + math.log1p(math.exp(-abs(value))) - target * value

    return math.fsum(one(at, target) for at, target in points)


def _logit(probability: float) -> float:
    kept = min(max(probability, 1 - _MOST_SURE), _MOST_SURE)
    return math.log(kept / (1 - kept))


def _logistic(value: float) -> float:
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    power = math.exp(value)
    return power / (1 + power)


def is_right(expected: Any, label: str) -> bool | None:
    """True if a label is the expected label; None if the known answer has no label."""
    wanted = expected.get("label") if isinstance(expected, dict) else expected
    return wanted == label if isinstance(wanted, str) else None
