"""Decisions about options that stand still: options that finish no rows now.

A few rows show when an option returns. Other rows wait for its return as long as other options could still do them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from orchestrator.policy.planner.batch_shares import BatchShare
from orchestrator.policy.planner.candidate_plans import CandidatePlan, arrival, chance_of
from orchestrator.policy.planner.capacity import Capacity, Rows
from orchestrator.policy.planner.search import Chosen
from orchestrator.policy.planner.types import MAX_PROBE_SHARE, PROBE_ROWS, BatchOption, Send

MIN_MOVE_SHARE = 0.03
"""Smallest share of the held rows that a move must involve, and smallest share of the cost that it must save."""
PROBE_SECONDS = 600.0
"""Minimum seconds that a probe's rows must be able to wait at an option that stands still."""
RETURN_SECONDS = 600.0
"""Rows wait for an option that stands still if other options could still do the rows this many seconds later."""
MAX_PROBE_LOSS = 0.002
"""Largest loss of P(in time) that a probe may cause if it leaves P(in time) below the target."""


def until_return(chosen: Chosen, ours: Capacity) -> tuple[Chosen, list[Send]]:
    """Move rows from dearer options to a cheaper option that stands still, where they wait for its return.

    Returns the plan, and the moves of rows that were already sent. Rows move only if the plan meets the target, and
    if the dearer options can surely do them later.
    """
    candidate, fallback = chosen.candidate, chosen.candidate.fallback
    still = next((place for place, low in enumerate(ours.lows[:fallback]) if not low), None)
    if still is None or not chosen.holds:
        return chosen, []
    instead = _instead_of_batches(candidate, still, ours)
    if instead is not None and rows_can_stay(instead, ours, 2 * RETURN_SECONDS):
        return replace(chosen, candidate=instead), []
    price, is_back = ours.sync_options[still].price, ours.sync_options[still].is_back(RETURN_SECONDS)
    pays = [
        place < fallback and is_back * (sync.price - price) >= MIN_MOVE_SHARE * sync.price
        for place, sync in enumerate(ours.sync_options)
    ]

    def waiting(rows: Rows) -> Rows:
        """Return the rows by option after moving those of `rows` for which waiting pays."""
        stay = [0 if waits else count for count, waits in zip(rows, pays, strict=True)]
        stay[still] += sum(rows) - sum(stay)
        return tuple(stay)

    before, new = candidate.before, waiting(candidate.new)
    held = tuple(a + b for a, b in zip(before, new, strict=True))
    waits = replace(candidate, new=new, held=held)
    everything = waiting(candidate.held)
    # The rows of a probe are not the last to be done.
    if everything[still] - candidate.held[still] > PROBE_ROWS and rows_can_stay(
        replace(candidate, held=everything), ours, 2 * RETURN_SECONDS
    ):
        return replace(chosen, candidate=waits), transfers(before, held, everything, ours)
    if new[still] - candidate.new[still] > PROBE_ROWS and rows_can_stay(waits, ours, RETURN_SECONDS):
        return replace(chosen, candidate=waits), []
    return chosen, []


def _instead_of_batches(candidate: CandidatePlan, still: int, ours: Capacity) -> CandidatePlan | None:
    """Return the plan with the rows of its new batches at the option `still`, or None if waiting does not pay.

    Waiting saves the difference in price if the option returns within `RETURN_SECONDS`. Otherwise, the batches are
    sent later, and fewer of them end in time. The rows of the late batches then go to the dearest option.
    """
    bets, sync = candidate.unsent, ours.sync_options[still]
    name, ends = sync.option.backend, candidate.reroute_after or ours.horizon
    if not bets or len(bets) < len(candidate.batch_shares) or any(source != name for source, _ in candidate.sources):
        return None
    dearest = max(one.price for one in ours.sync_options[: candidate.fallback])
    saved, lost, cost = 0.0, 0.0, 0.0
    for share in bets:
        saved += share.rows * sync.is_back(RETURN_SECONDS) * (share.price - sync.price)
        late = share.by(ends) - share.by(max(0.0, ends - RETURN_SECONDS))
        lost += share.rows * late * max(0.0, dearest - share.price)
        cost += share.rows * share.price
    if saved - lost < MIN_MOVE_SHARE * cost:
        return None
    rows = sum(share.rows for share in bets)
    new, held = list(candidate.new), list(candidate.held)
    held[still] += rows
    new[still] += rows
    return replace(candidate, batch_shares=(), bets=0, new=tuple(new), held=tuple(held), reroute_after=None)


def with_probe(chosen: Chosen, ours: Capacity, batches: Sequence[BatchOption], waiting: int) -> Chosen:
    """Move a few of the plan's new rows to a cheaper option without rows, to measure its present speed.

    The option stood still, or was too slow for more rows. The plan stays unchanged if no other option could take
    these rows over later.
    """
    candidate = chosen.candidate
    shares, new, held = list(candidate.batch_shares), list(candidate.new), list(candidate.held)
    to = max(range(len(new)), key=new.__getitem__, default=0)
    sent, price = (new[to], ours.sync_options[to].price) if any(new) else (0, 0.0)
    if candidate.bets and shares[-1].rows > sent:
        sent, price, to = shares[-1].rows, shares[-1].price, -1
    rows = min(PROBE_ROWS, int(MAX_PROBE_SHARE * sent))
    if not rows or ours.horizon < 2 * PROBE_SECONDS:
        return chosen
    if to >= 0:
        new[to], held[to] = new[to] - rows, held[to] - rows
    else:
        shares[-1] = replace(shares[-1], rows=sent - rows)
    rest = replace(candidate, batch_shares=tuple(shares), new=tuple(new), held=tuple(held))
    cheaper = enumerate(ours.sync_options[: candidate.fallback])
    place = next((at for at, sync in cheaper if sync.price < price and not held[at]), None)
    if place is None:
        in_bets = sum(share.rows for share in rest.unsent) + rows
        return _with_batch_probe(chosen, rest, rows, price, ours, batches) if in_bets <= waiting else chosen
    new[place], held[place] = new[place] + rows, held[place] + rows
    probed = replace(rest, new=tuple(new), held=tuple(held))
    chance = chance_of(probed, ours)
    if chosen.holds and not rows_can_stay(probed, ours, PROBE_SECONDS):
        return chosen
    if chance < min(ours.target, chosen.chance - MAX_PROBE_LOSS):
        return chosen
    return replace(chosen, candidate=probed, chance=min(chosen.chance, chance))


def _with_batch_probe(
    chosen: Chosen, rest: CandidatePlan, rows: int, price: float, ours: Capacity, batches: Sequence[BatchOption]
) -> Chosen:
    """Send `rows` rows in a batch to a cheaper backend that has no rows. `rest` is the plan without these rows."""
    taken = {share.option.backend for share in rest.batch_shares}
    cheaper = [
        one for one in batches
        if float(one.cost.p50) < price and one.backend not in taken and one.least <= rows <= (one.room or rows)
    ]  # fmt: skip
    if not cheaper or not rest.fallback:
        return chosen
    option = min(cheaper, key=lambda one: one.cost.p50)
    late = replace(rest, coming=rest.coming + rows, free_in=max(rest.free_in, option.cancel_seconds))
    chance = chance_of(late, ours)
    if chance < min(ours.target, chosen.chance - MAX_PROBE_LOSS):
        return chosen
    shares = (*rest.batch_shares, BatchShare(option, rows))
    probed = replace(rest, batch_shares=shares, bets=rest.bets + 1)
    return replace(chosen, candidate=probed, chance=min(chosen.chance, chance))


def rows_can_stay(candidate: CandidatePlan, ours: Capacity, seconds: float) -> bool:
    """Return True if other options could take the rows over after `seconds` and after rerouted rows arrive."""
    burden = candidate.coming + (0 if candidate.reroute_after is None else candidate.in_batches)
    later = max(seconds, arrival(candidate))
    return ours.horizon > 0 and ours.fits(burden, candidate.held, later, candidate.fallback)


def transfers(movable: Rows, before: Sequence[int], after: Sequence[int], ours: Capacity) -> list[Send]:
    """Return the moves that change the rows by option from `before` to `after`.

    An option gives at most the rows that it had before these orders (`movable`).
    """
    names = [sync.option.backend for sync in ours.sync_options]
    gives = {
        name: min(a - b, most)
        for name, a, b, most in zip(names, before, after, movable, strict=True)
        if a > b and most
    }
    sends = []
    for name, a, b in zip(names, before, after, strict=True):
        lacks = b - a
        for source, rows in gives.items():
            if lacks > 0 and (taken := min(lacks, rows)):
                sends.append(Send(taken, name, source))
                gives[source] -= taken
                lacks -= taken
    return sends
