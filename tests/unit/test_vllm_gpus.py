"""Which GPUs there are, which engines they make, and whether a model fits them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError, RefusedError, UsageError
from orchestrator.server.engines import EngineUnavailable
from orchestrator.server.engines.gpu_memory import GIB, can_judge, judge, utilization_of, weights_bytes
from orchestrator.server.engines.gpus import MIB, Gpu, find_gpus, group, parse
from orchestrator.server.engines.launch import FIRST_PORT, LAST_PORT, Wish, engine_ports, plan_engines
from orchestrator.server.engines.options import check_options, value_of
from tests.support.fakevllm import fake_nvidia_smi, fake_vllm, model_folder


def gpu(index: int = 0, total: float = 80, free: float | None = None) -> Gpu:
    return Gpu(index, int(total * GIB), int((total if free is None else free) * GIB))


def test_what_nvidia_smi_says() -> None:
    assert parse("0, 143771, 143100\n1, 143771, 5\n\n") == [
        Gpu(0, 143771 * MIB, 143100 * MIB),
        Gpu(1, 143771 * MIB, 5 * MIB),
    ]
    assert parse("0, [N/A], [N/A]") == [Gpu(0, None, None)]
    with pytest.raises(EngineUnavailable, match="which is not a GPU"):
        parse("Driver problem")


def test_the_gpus_of_this_machine(tmp_path: Path) -> None:
    assert find_gpus({"PATH": str(tmp_path)}) == []
    path = fake_nvidia_smi(tmp_path, "0, 1000, 900", "1, 1000, 800")
    assert [found.index for found in find_gpus({"PATH": path})] == [0, 1]
    assert [found.index for found in find_gpus({"PATH": path, "CUDA_VISIBLE_DEVICES": "1"})] == [1]
    assert find_gpus({"PATH": path, "CUDA_VISIBLE_DEVICES": ""}) == []
    with pytest.raises(UsageError, match="--gpus"):
        find_gpus({"PATH": path, "CUDA_VISIBLE_DEVICES": "GPU-8932f937"})
    assert find_gpus({"PATH": fake_nvidia_smi(tmp_path, "No devices were found")}) == []
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho driver gone\nexit 9\n")
    with pytest.raises(EngineUnavailable, match="driver gone"):
        find_gpus({"PATH": path})


def test_engines_of_gpus() -> None:
    four = [gpu(index) for index in range(4)]
    assert group(four, None, 1) == [(one,) for one in four]
    assert group(four, None, 2) == [(four[0], four[1]), (four[2], four[3])]
    assert group(four[:3], None, 2) == [(four[0], four[1])]
    assert group(four, [3, 1], 1) == [(four[3],), (four[1],)]
    assert group(four, [3, 1], 2) == [(four[3], four[1])]
    assert group([], None, 1) == [()]


@pytest.mark.parametrize(
    ("there", "wanted", "size", "said"),
    [
        (2, [0, 5], 1, "GPU 5 is not on this machine; there are: 0, 1"),
        (0, [0], 1, "GPU 0 is not on this machine; there are: none"),
        (2, [1, 1], 1, "twice"),
        (0, None, 2, "needs 2 GPUs for each engine; there are: none"),
        (2, None, 4, "needs 4 GPUs"),
        (4, [0, 1, 2], 2, "needs 2 GPUs"),
    ],
)
def test_gpus_that_cannot_be_had(there: int, wanted: list[int] | None, size: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        group([gpu(index) for index in range(there)], wanted, size)


def test_what_fits() -> None:
    assert judge(60 * GIB, (gpu(),), 0.92) is None
    assert judge(140 * GIB, (gpu(0, 141),) * 2, 0.92) is None
    assert judge(None, (gpu(),), 0.92) is None
    assert judge(10**15, (Gpu(0, None, None),), 0.92) is None
    assert judge(10**15, (), 0.92) is None


def test_what_does_not_fit_is_told_with_its_numbers() -> None:
    found = judge(140 * GIB, (gpu(3, 80),), 0.92)
    assert found is not None
    assert found.reason == (
        "the model does not fit GPU 3: its weights of 140.0 GiB need 155.0 GiB, "
        "and vLLM may use 73.6 GiB of it (0.92 of 80.0 GiB)"
    )
    assert found.hint.startswith("more GPUs for each engine (--tensor-parallel 4)")
    pair = judge(140 * GIB, (gpu(0), gpu(1)), 0.92)
    assert pair is not None
    assert "over 2 GPUs need 78.0 GiB" in pair.reason


def test_memory_that_others_hold_counts() -> None:
    found = judge(10 * GIB, (gpu(0, 80, free=40),), 0.92)
    assert found is not None
    assert found.reason == "GPU 0 is not free: vLLM takes 73.6 GiB (0.92 of 80.0 GiB), and 40.0 GiB are free"
    assert found.hint.endswith("-- --gpu-memory-utilization 0.49")
    assert judge(10 * GIB, (gpu(0, 80, free=40),), 0.49) is None
    full = judge(30 * GIB, (gpu(0, 80, free=20),), 0.92)
    assert full is not None
    assert "--gpu-memory-utilization" not in full.hint


@given(
    weights=st.integers(0, 4000 * GIB),
    size=st.integers(1, 8),
    total=st.integers(8, 200),
    utilization=st.floats(0.1, 1.0),
)
def test_a_refusal_never_names_too_few_gpus(weights: int, size: int, total: int, utilization: float) -> None:
    refusal = judge(weights, (gpu(0, total),) * size, utilization)
    fits = weights / size * 1.1 + GIB <= total * GIB * utilization + 1
    assert (refusal is None) == fits
    if refusal is not None and "--tensor-parallel" in refusal.hint:
        more = int(refusal.hint.split("--tensor-parallel ")[1].split(")")[0])
        assert more > size
        assert more > 64 or judge(weights, (gpu(0, total),) * more, utilization) is None


def test_the_size_of_the_weights(tmp_path: Path) -> None:
    plain = model_folder(tmp_path / "plain", 5000)
    assert weights_bytes(str(plain), (), {}) == 5000
    (plain / "consolidated.safetensors").write_bytes(bytes(5000))  # the same once more, for another program
    assert weights_bytes(str(plain), (), {}) == 5000
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    for name in set(shards.values()):
        (plain / name).write_bytes(bytes(2000))
    (plain / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert weights_bytes(str(plain), (), {}) == 4000
    (plain / "model.safetensors.index.json").write_text("[" * 100_000)
    assert weights_bytes(str(plain), (), {}) == 9000
    for path in plain.glob("*.safetensors"):
        path.unlink()
    (plain / "pytorch_model.bin").write_bytes(bytes(700))
    (plain / "training_args.bin").write_bytes(bytes(90))
    assert weights_bytes(str(plain), (), {}) == 700
    assert weights_bytes(str(plain / "pytorch_model.bin"), (), {}) == 700


def test_weights_of_32_bits_are_loaded_in_16(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", 5000)
    (folder / "config.json").write_text('{"torch_dtype": "float32"}')
    assert weights_bytes(str(folder), (), {}) == 2500
    assert weights_bytes(str(folder), ("--dtype", "float32"), {}) == 5000


def test_a_model_of_the_hub_that_is_on_this_disk(tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--org--name"
    model_folder(cache / "snapshots" / "abc", 123)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    assert weights_bytes("org/name", (), {"HF_HOME": str(tmp_path)}) == 123
    assert weights_bytes("org/name", ("--revision", "abc"), {"HF_HUB_CACHE": str(tmp_path / "hub")}) == 123
    assert weights_bytes("org/other", (), {"HF_HOME": str(tmp_path)}) is None


def test_options_as_vllm_reads_them() -> None:
    assert value_of(("--a-b", "1", "--a_b=2"), "--a-b") == "2"
    assert value_of(("--flag", "--other"), "--flag") == ""
    assert value_of((), "--a") is None
    assert utilization_of(("--gpu_memory_utilization", "0.5")) == 0.5
    assert utilization_of(()) == 0.92
    assert can_judge(("--max-model-len", "100"))
    assert not can_judge(("--quantization=fp8",))


@pytest.mark.parametrize("option", ["--port", "--model=x", "--tensor_parallel_size", "-tp", "--api-key", "word"])
def test_options_that_are_not_for_vllm(option: str) -> None:
    with pytest.raises(UsageError):
        check_options((option, "1"))


def plan(tmp_path: Path, *lines: str, options: tuple[str, ...] = (), **wish: object) -> list[tuple[str, str, str]]:
    """Name, options and GPUs of each engine."""
    environ = {"PATH": fake_nvidia_smi(tmp_path, *lines), "OPENAI_API_KEY": "secret"}
    given: dict[str, object] = {"model": str(tmp_path / "model"), "python": fake_vllm(tmp_path), **wish}
    fleet = plan_engines(Wish(options=options, **given), tmp_path / "serve", environ)  # type: ignore[arg-type]
    assert all("OPENAI_API_KEY" not in engine.launch.env for engine in fleet.engines)
    return [
        (engine.name, " ".join(engine.launch.command), engine.launch.env.get("CUDA_VISIBLE_DEVICES", ""))
        for engine in fleet.engines
    ]


def test_an_engine_for_each_gpu(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    first, second = plan(tmp_path, "0, 80000, 79000", "2, 80000, 79000", options=("--max-model-len", "99"))
    assert (first[0], first[2], second[0], second[2]) == ("GPU 0", "0", "GPU 2", "2")
    assert f"--model {tmp_path}/model --served-model-name model --host 127.0.0.1 --port" in first[1]
    assert "--scheduling-policy priority --enable-prefix-caching --enable-prompt-tokens-details" in first[1]
    assert "--disable-uvicorn-access-log" in first[1]
    assert "--enforce-eager" not in first[1]
    assert first[1].endswith("--max-model-len 99")


def test_an_engine_for_a_group(tmp_path: Path) -> None:
    model_folder(tmp_path / "model", 100 * GIB)
    ((name, command, gpus),) = plan(tmp_path, "0, 80000, 79000", "1, 80000, 79000", tensor_parallel=2)
    assert (name, gpus) == ("GPUs 0,1", "0,1")
    assert "--tensor-parallel-size 2" in command


def test_an_engine_on_the_cpu(tmp_path: Path) -> None:
    model_folder(tmp_path / "model", 100 * GIB)
    ((name, command, gpus),) = plan(tmp_path)
    assert (name, gpus) == ("the CPU", "")
    assert "--enforce-eager" in command


@pytest.mark.slow
def test_a_model_that_is_too_large_is_refused(tmp_path: Path) -> None:
    model_folder(tmp_path / "model", 100 * GIB)
    with pytest.raises(RefusedError, match="does not fit GPU 0"):
        plan(tmp_path, "0, 80000, 79000")
    assert plan(tmp_path, "0, 80000, 79000", options=("--quantization", "fp8"))
    assert plan(tmp_path, "0, 80000, 79000", model="org/name")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match=r"holds no config\.json"):
        plan(tmp_path)


def test_where_there_is_no_vllm(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    environ = {"PATH": "/usr/bin:/bin", "ORCH_ENGINE_DIR": str(tmp_path / "engine")}
    with pytest.raises(EngineUnavailable, match="there is no vLLM") as caught:
        plan_engines(Wish(str(tmp_path / "model")), tmp_path, environ)
    assert "pip install vllm" in str(caught.value)
    with pytest.raises(EngineUnavailable, match="has no vLLM"):
        plan_engines(Wish(str(tmp_path / "model"), python=Path("/usr/bin/false")), tmp_path, environ)


def test_ports_are_the_same_each_time(tmp_path: Path) -> None:
    ports = engine_ports(tmp_path, 3)
    assert ports == engine_ports(tmp_path, 3)
    assert len(set(ports)) == 3
    assert all(FIRST_PORT <= port < LAST_PORT for port in ports)
    assert ports != engine_ports(tmp_path / "other", 3)
