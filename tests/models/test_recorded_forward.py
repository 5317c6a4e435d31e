"""A recorder in the op table's place reads a forward pass as a list of op names."""

from models.checkpoints import ZeroCheckpoint, llama_config, llama_shapes
from models.recorder import Recorder
from parity.families import MemoryCheckpoint, make_model

from mini_vllm.kernels.table import ForwardContext
from mini_vllm.kernels.torch_ops import TorchDevice
from mini_vllm.models import load_model

CONTEXT = ForwardContext(token_ids="%ids", positions="%positions", logit_rows="%rows")

LLAMA_LAYER = ["rms_norm", "linear", "rope_store", "attend", "linear", "add"]
GATED_MLP = ["rms_norm", "linear", "silu_mul", "linear", "add"]


def _record(checkpoint):
    model = load_model(checkpoint, TorchDevice(), max_model_len=64).model
    recorder = Recorder()
    model.logits(recorder, model.hidden(recorder, CONTEXT))
    return recorder


def test_llama_reads_like_the_paper():
    recorder = _record(ZeroCheckpoint(llama_config(), llama_shapes()))
    assert recorder.calls == ["embed", *(LLAMA_LAYER + GATED_MLP) * 2, "take_rows", "rms_norm", "logits"]


def test_the_residual_goes_around_each_branch():
    recorder = _record(ZeroCheckpoint(llama_config(), llama_shapes()))
    adds = [arguments for call, arguments in zip(recorder.calls, recorder.arguments) if call == "add"]
    assert adds == [("%1", "%6"), ("%7", "%11"), ("%12", "%17"), ("%18", "%22")]
    assert recorder.arguments[recorder.calls.index("take_rows")] == ("%23", "%rows")


def test_qwen3_normalises_heads_before_it_rotates_them():
    calls = _record(MemoryCheckpoint(make_model("qwen3"))).calls
    assert calls[1:5] == ["rms_norm", "linear", "qk_norm", "rope_store"]


def test_gemma2_has_four_norms_a_layer():
    calls = _record(MemoryCheckpoint(make_model("gemma2"))).calls
    attention = ["rms_norm", "linear", "rope_store", "attend", "linear", "rms_norm", "add"]
    assert calls[1:14] == [*attention, "rms_norm", "linear", "gelu_mul", "linear", "rms_norm", "add"]


def test_gpt2_adds_learned_positions_and_rotates_nothing():
    recorder = _record(MemoryCheckpoint(make_model("gpt2")))
    assert recorder.calls[:3] == ["embed", "embed_positions", "add"]
    block = ["layer_norm", "linear", "rope_store", "attend", "linear", "add"]
    assert recorder.calls[3:14] == [*block, "layer_norm", "linear", "gelu", "linear", "add"]
    assert recorder.arguments[recorder.calls.index("rope_store")][1] is None
