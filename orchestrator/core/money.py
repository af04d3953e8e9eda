"""Money in words: one way for what something costs, one for what somebody set."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal


def money(cost: Decimal) -> str:
    """Dollars, with as many digits as a small sum needs."""
    if cost < 0:
        return f"-{money(-cost)}"
    if cost == 0:
        return "$0"
    if cost >= 1:
        return f"${cost:,.2f}"
    return f"${cost:.4f}" if cost >= Decimal("0.001") else f"${cost:.{1 - cost.adjusted()}f}"


def up_to(most: Decimal) -> str:
    """The most that something may cost: never told as less than it is."""
    return money(most.quantize(Decimal("0.01" if most >= 1 else "0.0001"), ROUND_CEILING))


def amount(dollars: Decimal | None) -> str:
    """An amount as it was set, without the zeros that TOML adds; `no amount` where none was."""
    return "no amount" if dollars is None else f"${dollars.normalize():f}"


def per_hour(dollars: Decimal | None) -> str:
    """The price of an upstream; None is one that is idle anyway."""
    return "idle, so free" if dollars is None else f"{amount(dollars)} per upstream hour"
