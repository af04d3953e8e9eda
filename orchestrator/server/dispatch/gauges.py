"""vLLM's gauges, parsed from its metrics page. Pure."""

from __future__ import annotations

import math
import re

from orchestrator.server.dispatch.concurrency_limiter import Gauges

_SAMPLE = re.compile(
    rb"^(vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc|num_preemptions_total"
    rb"|prefix_cache_queries_total|prefix_cache_hits_total|cache_config_info))(?:\{([^}\n]*)\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
_SHARES = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
_LABEL = re.compile(rb'(num_gpu_blocks|block_size)="(\d{1,12})"')
MOST = 1e12
"""Maximum plausible count. Larger figures are reduced to this number."""


def read_gauges(page: bytes) -> tuple[Gauges, int] | None:
    """Return the gauges and the KV cache size in tokens (0: not stated); None if the page is not vLLM's.

    Figures of several engines behind one address (data parallel, a router) are added up. Cache use is the exception:
    the fullest cache counts.
    """
    found: dict[bytes, float] = {}
    tokens = 0
    for name, labels, text in _SAMPLE.findall(page):
        if (value := _number(text)) is None:
            continue
        before = found.get(name, 0.0)
        found[name] = max(before, value) if name in _SHARES else min(MOST, before + value)
        if name == b"vllm:cache_config_info":
            cache = {label: int(number) for label, number in _LABEL.findall(labels)}
            tokens += cache.get(b"num_gpu_blocks", 0) * cache.get(b"block_size", 0)
    if b"vllm:num_requests_running" not in found:
        return None
    gauges = Gauges(
        int(found[b"vllm:num_requests_running"]),
        int(found.get(b"vllm:num_requests_waiting", 0)),
        found.get(b"vllm:kv_cache_usage_perc", found.get(b"vllm:gpu_cache_usage_perc", 0.0)),
        found.get(b"vllm:num_preemptions_total", 0.0),
        found.get(b"vllm:prefix_cache_queries_total", 0.0),
        found.get(b"vllm:prefix_cache_hits_total", 0.0),
    )
    return gauges, min(int(MOST), tokens)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return min(MOST, max(0.0, value)) if math.isfinite(value) else None
