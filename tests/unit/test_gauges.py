"""What an upstream's metrics page says, of one engine or of many behind one address."""

from __future__ import annotations

from orchestrator.server.dispatch.concurrency_limiter import Gauges
from orchestrator.server.dispatch.gauges import read_gauges


def test_engines_behind_one_address_are_one_upstream() -> None:
    page = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.6
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.7
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:num_preemptions_total{engine="1",model_name="m"} 5.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="50"} 1.0
"""
    # Two caches that are two thirds full are not one that is more than full.
    assert read_gauges(page) == (Gauges(7, 2, 0.7, 6.0), 2400)


def test_a_router_tells_of_its_servers() -> None:
    page = b"""vllm:num_requests_running{server="http://10.0.0.1:8000"} 12.0
vllm:num_requests_running{server="http://10.0.0.2:8000"} 9.0
vllm:num_requests_waiting{server="http://10.0.0.1:8000"} 1.0
vllm:current_qps{server="http://10.0.0.1:8000"} 4.0
"""
    assert read_gauges(page) == (Gauges(21, 1, 0.0, 0.0), 0)


def test_a_page_of_something_else_has_no_gauges() -> None:
    assert read_gauges(b"http_requests_total 5\n") is None
