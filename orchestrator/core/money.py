"""Formatting of costs and of amounts that a user has set, and corrections for amounts with a currency."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from orchestrator.core.lazy_patterns import regex

_DOLLARS = r"US ?\$|\$|USD|(?:US )?dollars?"
_SIGNS = rf"{_DOLLARS}|[€£¥₹]|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|CZK|euros?|pounds?|francs?"
_STATED = regex(rf"\s*({_SIGNS})?\s*(\d[\d.,_ ']*?)\s*({_SIGNS})?(?:\s*(?:/|per |an? )\s*[a-z]+)?\s*", re.IGNORECASE)
"""Matches an amount with an optional currency before or after it, and an optional unit such as `per hour`."""


def money(cost: Decimal) -> str:
    """Format dollars: two decimals from $1 up, more for smaller amounts."""
    if cost < 0:
        return f"-{money(-cost)}"
    if cost == 0:
        return "$0"
    if cost >= 1:
        return f"${cost:,.2f}"
    return f"${cost:.4f}" if cost >= Decimal("0.001") else f"${cost:.{1 - cost.adjusted()}f}"


def spent_words(spent: Decimal, running: Decimal) -> str:
    """Format the money spent. `running`, the cost of running batches so far, is part of `spent`."""
    if not running:
        return f"{money(spent)} spent"
    return f"{money(spent)} spent ({money(spent - running)} paid, {money(running)} in running batches)"


def plain(dollars: Decimal) -> Decimal:
    """Return an amount as people write it: `0` instead of `0E-12`, and no trailing zeros."""
    found = dollars.normalize()
    return found if int(found.as_tuple().exponent) <= 0 else found.quantize(Decimal(1))


def up_to(most: Decimal) -> str:
    """Format an upper limit of a cost. It is rounded up to a cent, or below $1 to a hundredth of a cent."""
    return money(most.quantize(Decimal("0.01" if most >= 1 else "0.0001"), ROUND_CEILING))


def amount(dollars: Decimal | None) -> str:
    """Format an amount that a user set, with at least two decimals and no further trailing zeros. None becomes `no
    amount`.
    """
    if dollars is None:
        return "no amount"
    found = dollars.normalize()
    return f"${found.quantize(Decimal('0.01')) if int(found.as_tuple().exponent) > -2 else found:,f}"


def per_hour(dollars: Decimal | None) -> str:
    """Format the hourly price of an upstream; None means that the upstream would be idle otherwise."""
    return "idle, so free" if dollars is None else f"{amount(dollars)} per upstream hour"


def amount_cure(text: str, form: str) -> str | None:
    """Return how to correct an amount that names a currency; None if `text` is something else.

    `form` is the corrected line, with `{}` in place of the number.
    """
    found = _STATED.fullmatch(text)
    currency = found and (found[1] or found[3])
    if found is None or not currency:
        return None
    line = form.format(_number(found[2]))
    if re.fullmatch(_DOLLARS, currency, re.IGNORECASE):
        return f"write  {line}  (amounts are in US dollars)"
    return f"amounts are in US dollars, not {currency}: convert the amount, and write only the number, as in  {line}"


def _number(text: str) -> str:
    """Return a number as a program writes it: without thousands separators, and with a decimal point."""
    digits = re.sub(r"[_ ']", "", text).rstrip(".,")
    whole, mark, part = digits, "", ""
    if found := re.fullmatch(r"(.*)([.,])(\d+)", digits):
        whole, mark, part = found[1], found[2], found[3]
    is_thousands = len(part) == 3 and (mark == "," or mark in whole) and not {",", "."} - {mark} & {*whole}
    whole = re.sub(r"[.,]", "", whole)
    return whole + part if is_thousands or not part else f"{whole}.{part}"
