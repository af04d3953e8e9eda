"""Profiles of Batch APIs: windows, limits, discounts. Data only; orch.toml may override profiles per backend."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.settings.backends import window_seconds

DAY = 86_400
MB, GB = 10**6, 10**9
MIB = 1024 * 1024
V1 = "/v1"
CHAT_ONLY = frozenset({"/v1/chat/completions"})


class BatchLimits(Struct, frozen=True):
    """Limits of one batch, and of all batches together. None means that a limit is unknown.

    The backend refuses a batch with fewer than `min_rows` rows. `max_inputs` counts the inputs of embedding rows.
    `enqueued_tokens` is the maximum number of prompt tokens that may wait at the backend, by model; `""` means all
    other models.
    """

    min_rows: int = 1
    max_rows: int = 50_000
    max_bytes: int = 200 * MIB
    max_inputs: int | None = None
    enqueued_tokens: dict[str, int] | None = None
    batches_per_hour: int | None = None

    def enqueued(self, model: str) -> int | None:
        """Return the maximum number of a model's prompt tokens that may wait at the backend; None if unknown."""
        known = self.enqueued_tokens or {}
        return known.get(model, known.get(""))


class Window(Struct, frozen=True):
    """A completion window, with its spelling at the provider."""

    seconds: int
    text: str


class Profile(Struct, frozen=True):
    """A provider's rules and habits.

    - `windows`: in the provider's spelling; empty if any window is accepted.
    - `provider`: the name in the price table.
    - `discount`: off the realtime price, for models without a batch price in the table.
    - `overruns`: a batch continues past its window instead of expiring.
    - `expires_after`: the requested lifetime of files, in seconds.
    - `appear_seconds`: the longest time until an unanswered create shows in a listing.
    - `endpoints`: allowed in batches; None if all may be tried.
    - `lists_models`: rows use the names in the provider's list of models.
    - `asks_directly`: the provider's synchronous endpoints accept the same rows as batches.
    - `tells_shards`: batches carry our shards' ids.
    - `names_rows`: results have row ids, and are read without the input file.
    - `reads_inputs`: input files can be read back.
    - `names_homes`: only the name of an input file can carry our home.
    - `one_file`: failed rows are among the results, not in an error file.
    - `cancels`: a running batch can be ended.
    - `stacks`: cached tokens cost less in a batch than in a synchronous call.
    - `path`: the start of the addresses of rows and of a create.
    - `create_fields`: sent with each create besides the standard fields.
    - `at_once_as_batch`: the synchronous endpoint has the batch price.
    - `is_orch`: our own server, whose lists are cheap and which offers the results of a running batch.
    """

    name: str
    windows: tuple[str, ...] = ("24h",)
    limits: BatchLimits = BatchLimits()
    provider: str | None = None
    discount: Decimal | None = Decimal("0.5")
    poll_seconds: float = 60.0
    overruns: bool = False
    expires_after: int | None = None
    appear_seconds: float = 600.0
    endpoints: frozenset[str] | None = None
    lists_models: bool = True
    asks_directly: bool = True
    tells_shards: bool = True
    names_rows: bool = True
    reads_inputs: bool = True
    one_file: bool = False
    names_homes: bool = False
    cancels: bool = True
    stacks: bool = True
    path: str = V1
    create_fields: tuple[tuple[str, Any], ...] = ()
    at_once_as_batch: bool = False
    is_orch: bool = False


# Our server accepts any window, and lists a batch from its creation on.
OWN_SERVER = Profile(
    "orch",
    windows=(),
    discount=None,
    poll_seconds=1.0,
    appear_seconds=1.0,
    asks_directly=False,
    is_orch=True,
)


def with_limits(
    profile: Profile,
    *,
    min_rows: int | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    max_inputs: int | None = None,
    enqueued_tokens: int | dict[str, int] | None = None,
    batches_per_hour: int | None = None,
) -> BatchLimits:
    """Return a profile's limits, overridden by the given limits from orch.toml."""
    enqueued = {"": enqueued_tokens} if isinstance(enqueued_tokens, int) else enqueued_tokens
    given: dict[str, Any] = {
        "min_rows": min_rows,
        "max_rows": max_rows,
        "max_bytes": max_bytes,
        "max_inputs": max_inputs,
        "enqueued_tokens": enqueued,
        "batches_per_hour": batches_per_hour,
    }
    return replace(profile.limits, **{name: value for name, value in given.items() if value is not None})


def window_for(profile: Profile, seconds_left: int) -> Window:
    """Return the longest window that fits the time left, or the shortest window if none fits.

    If the profile accepts any window, return exactly the time left, but at least a second.
    """
    if not profile.windows:
        return _exact(max(1, seconds_left))
    windows = sorted((Window(window_seconds(text), text) for text in profile.windows), key=lambda one: one.seconds)
    return next((window for window in reversed(windows) if window.seconds <= seconds_left), windows[0])


def _exact(seconds: int) -> Window:
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return Window(seconds, f"{seconds // length}{unit}")
    return Window(seconds, f"{seconds}s")
