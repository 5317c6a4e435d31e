"""The same weights from a saved folder: every family gives the same logits, sharded, halved, with leftovers."""

import json

import numpy as np
import pytest
import torch
from parity.driver import Driver
from parity.families import (
    FAMILIES,
    MAX_LEN,
    MemoryCheckpoint,
    make_model,
    make_prompts,
    one_torch_thread,
    randomise,
    save_model,
)
from safetensors.torch import load_file, save_file

from mini_vllm.errors import WeightsError
from mini_vllm.kernels.registry import get_device
from mini_vllm.models import load_model
from mini_vllm.weights import open_checkpoint


@pytest.fixture(autouse=True)
def _one_thread():
    with one_torch_thread():
        yield


def _logits(checkpoint, device_name="native", **options):
    device = get_device(device_name, threads=1)
    driver = Driver.compile(device, load_model(checkpoint, device, max_model_len=MAX_LEN, **options))
    return driver.generate(make_prompts((19, 30)), 3, chunk=None)[1].logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_folder_gives_the_same_logits(family, tmp_path):
    folder = save_model(make_model(family), tmp_path, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    np.testing.assert_array_equal(_logits(open_checkpoint(folder)), _logits(MemoryCheckpoint(make_model(family))))


@pytest.mark.parametrize("device_name", ["torch", "native"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_half_precision_file_equals_its_widened_copy(device_name, dtype, tmp_path):
    """Weights are widened exactly, so what a 16-bit file gives is what its values give in float32."""
    folder = save_model(randomise(FAMILIES["llama"]()).to(getattr(torch, dtype)), tmp_path)
    widened = _logits(open_checkpoint(folder), device_name, dtype="float32")
    kept = _logits(open_checkpoint(folder), device_name, dtype="auto")
    # A device may round the inputs of 16-bit products, to bfloat16's 8 bits at worst.
    np.testing.assert_allclose(kept, widened, atol=0.05 * np.abs(widened).max())


def test_gpt2_of_the_hub_has_no_prefix_and_carries_masks(tmp_path):
    folder = save_model(make_model("gpt2"), tmp_path)
    expected = _logits(open_checkpoint(folder))
    state = load_file(folder / "model.safetensors")
    state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    save_file(state | {"h.0.attn.bias": torch.ones(1, 1, 8, 8)}, folder / "model.safetensors")
    np.testing.assert_array_equal(_logits(open_checkpoint(folder)), expected)


def test_lod_03_config_says_untied_but_the_folder_has_no_head(tmp_path):
    folder = save_model(make_model("llama-tied"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(WeightsError, match=r"lm_head\.weight although tie_word_embeddings is false"):
        _logits(open_checkpoint(folder))
