"""Rooflines and fitted models."""

from pathlib import Path

import pytest

from mini_vllm.errors import ConfigError
from mini_vllm.scheduling import LinearCosts, StepLoad
from mini_vllm.simulation import costs, fitted, roofline
from mini_vllm.simulation.fitted import Measured
from mini_vllm.simulation.hardware import SHAPES, SHEETS


def decode(batch: int, history: int) -> StepLoad:
    return StepLoad(batch, batch, batch * history, batch * history)


def prefill(length: int) -> StepLoad:
    return StepLoad(length, 1, length, length * (length + 1) // 2)


def test_shapes_have_the_parameters_that_their_names_say() -> None:
    billions = {name: shape.parameters / 1e9 for name, shape in SHAPES.items()}
    assert billions["8b"] == pytest.approx(8.03, rel=0.01)
    assert billions["70b"] == pytest.approx(70.6, rel=0.01)
    assert billions["moe"] == pytest.approx(46.7, rel=0.01)
    assert billions["135m"] == pytest.approx(0.1345, rel=0.01)


def test_one_token_is_bound_by_memory_and_a_long_prompt_by_arithmetic() -> None:
    model, sheet = roofline.parse("H100:8B"), SHEETS["h100"]
    shape = SHAPES["8b"]
    read = 2 * (shape.parameters - shape.head_weights) / (sheet.bandwidth * sheet.memory_efficiency)
    assert model.seconds(decode(1, 100)) - sheet.overhead == pytest.approx(read, rel=0.01)
    operations = 2 * 4096 * (shape.parameters - 2 * shape.head_weights) + 4 * 32 * 4096 * 4096 * 4097 / 2
    most = operations / (sheet.flops * sheet.compute_efficiency)
    assert model.seconds(prefill(4096)) - sheet.overhead == pytest.approx(most, rel=0.01)
    assert model.seconds(decode(32, 100)) < 1.2 * model.seconds(decode(1, 100)), "batching is nearly free"


def test_tensor_parallelism_divides_the_work_and_costs_communication() -> None:
    one, four = (roofline.parse(f"H200:70B:w8:tp{n}") for n in (1, 4))
    load = decode(64, 2000)
    work, overhead = one.seconds(load) - 1e-3, 1e-3
    ring = 2 * 80 * (12e-6 + 1.5 * 64 * 8192 * 2 / 450e9)
    assert four.seconds(load) == pytest.approx(work / 4 + ring + overhead, rel=1e-6)
    assert four.num_kv_tokens > 4 * one.num_kv_tokens


def test_a_mixture_of_experts_reads_those_that_are_asked() -> None:
    model = roofline.parse("A100:MoE:tp2")
    one, many = model._weights_read(1), model._weights_read(1000)
    assert many / one == pytest.approx(46.6 / 12.8, rel=0.02)
    assert roofline.parse("A100:MoE:tp2").seconds(decode(1, 10)) < roofline.parse("A100:70B:tp2:w8").seconds(
        decode(1, 10)
    )


def test_more_work_never_costs_less() -> None:
    for name in ("L4:8B:w8", "4090:8B:w4", "CPU:135M", "H100:70B:tp4"):
        model = roofline.parse(name)
        times = [model.seconds(load) for load in (decode(1, 50), decode(8, 50), decode(8, 500), prefill(600))]
        assert times == sorted(times), name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TPU:8B", "cost model 'TPU:8B' is unknown; write a file"),
        ("H100", "is unknown"),
        ("H100:8B:x2", "'x2' is neither tpN nor wBITS"),
        ("H100:8B:w3", "weights of 3 bits are unknown"),
        ("CPU:135M:tp2", "CPU has no link"),
    ],
)
def test_unknown_names_are_refused_with_the_choices(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        costs.load_costs(name)


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="70B at 16 bits needs 141 GB, which 1 × H100 of 80 GB do not hold"):
        costs.num_blocks(roofline.parse("H100:70B"), 16)


def steps_of(truth: LinearCosts) -> list[Measured]:
    loads = [decode(batch, history) for batch in (1, 2, 3, 4, 6, 8, 16, 32) for history in (20, 300, 1500)]
    loads += [prefill(length) for length in (16, 30, 64, 100, 200, 500, 1000, 2000)]
    loads += [decode(8, 200).with_chunk(start, 64, samples=False) for start in (0, 300, 900)]
    return [Measured(load, truth.seconds(load)) for load in loads]


def test_a_fit_finds_the_model_that_made_the_steps() -> None:
    truth = LinearCosts(step=1.2e-3, token=0.25e-3, sample=0.1e-3, context=4e-7, attended=3e-9)
    model = fitted.fit(steps_of(truth), model="truth")
    for load in (decode(5, 700), decode(24, 100), prefill(300), decode(8, 500).with_chunk(100, 90, samples=True)):
        assert model.seconds(load) == pytest.approx(truth.seconds(load), rel=0.03)
    assert model.about["relative_error"]["p90"] < 0.02 and model.about["model"] == "truth"


def test_a_fit_follows_a_bend_between_memory_and_arithmetic() -> None:
    def seconds(load: StepLoad) -> float:
        return max(5e-3, 0.2e-3 * load.num_tokens)

    steps = [Measured(decode(batch, 50), seconds(decode(batch, 50))) for batch in range(1, 65)]
    steps += [Measured(prefill(length), seconds(prefill(length))) for length in (100, 200, 400, 800)]
    model = fitted.fit(steps)
    assert model.seconds(decode(4, 50)) == pytest.approx(5e-3, rel=0.05)
    assert model.seconds(decode(60, 50)) == pytest.approx(12e-3, rel=0.05)
    assert model.seconds(prefill(600)) == pytest.approx(120e-3, rel=0.1)


def test_a_fitted_model_survives_its_file(tmp_path: Path) -> None:
    model = fitted.fit(steps_of(LinearCosts(step=1e-3, token=1e-4)), num_blocks=500, block_size=16, max_model_len=2048)
    path = tmp_path / "folder" / "costs.json"
    model.save(path)
    again = costs.load_costs(str(path))
    assert again == model and costs.num_blocks(again, 32) == 250 and costs.max_model_len(again) == 2048


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "x"}', '{"kind": "mini-vllm cost model", "version": 1}'])
def test_a_file_that_is_no_cost_model(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"c\.json is no cost model"):
        costs.load_costs(str(path))
