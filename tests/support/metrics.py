"""The /metrics page under vLLM's names."""

from __future__ import annotations

from collections import Counter

from tests.support.engine import Engine


def metrics_page(engine: Engine, model: str, finished: Counter[str], tokens: Counter[str]) -> bytes:
    labels = f'engine="0",model_name="{model}"'
    gauges = {
        "num_requests_running": engine.running,
        "num_requests_waiting": len(engine.waiting),
        # Each slot is as much cache as one request takes, so the share in use is the share of slots.
        "kv_cache_usage_perc": engine.running / engine.slots,
    }
    counters = {
        # Nothing is preempted here: a slot, once given, is kept.
        "num_preemptions_total": 0,
        "prefix_cache_queries_total": engine.cache.queries,
        "prefix_cache_hits_total": engine.cache.hits,
        "prompt_tokens_total": tokens["prompt"],
        "generation_tokens_total": tokens["generation"],
    }
    lines = [_sample("gauge", name, labels, value) for name, value in gauges.items()]
    lines += [_sample("counter", name, labels, value) for name, value in counters.items()]
    lines.append("# TYPE vllm:request_success_total counter\n")
    reasons = {"stop": finished["stop"], "length": finished["length"], "abort": engine.aborted}
    for reason, value in reasons.items():
        lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(value)}\n')
    return "".join(lines).encode()


def _sample(kind: str, name: str, labels: str, value: float) -> str:
    return f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {float(value)}\n"
