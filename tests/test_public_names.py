"""What `mini_vllm` shows to the world, and what importing it costs."""

import os
import subprocess
import sys

import pytest

import mini_vllm

PUBLIC = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "errors",
    "weights",
]


def test_the_public_names_are_these():
    assert mini_vllm.__all__ == PUBLIC
    assert dir(mini_vllm) == sorted([*PUBLIC, "__version__"])


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name):
    assert getattr(mini_vllm, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        mini_vllm.LMM  # noqa: B018


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def _seconds(code: str) -> float:
    """CPU time of a fresh interpreter that runs this, the least of three."""
    times = []
    for _ in range(3):
        before = os.times()
        _python(code)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(times)


def test_importing_the_package_costs_at_most_200_ms_and_imports_nothing_heavy():
    assert _seconds("import mini_vllm") - _seconds("pass") <= 0.2
    code = "import sys, mini_vllm; print(sorted(sys.modules))"
    heavy = {"numpy", "torch", "transformers", "fastapi", "tokenizers", "jinja2", "typer", "msgspec", "asyncio"}
    assert not heavy & set(eval(_python(code)))


def test_the_python_doors_need_neither_torch_nor_transformers():
    code = "import sys; from mini_vllm import LLM, AsyncLLM, SamplingParams; print(sorted(sys.modules))"
    assert not {"torch", "transformers", "fastapi", "typer"} & set(eval(_python(code)))
