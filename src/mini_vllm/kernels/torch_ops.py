"""The op table over torch: computes at once, in float32, on a cpu, cuda or mps device. The reference implementation.

Written to be obviously right rather than fast: attention is a loop over sequences. Weights stay in the number format
they came in (float32, bfloat16, float16) and are widened where they are used; inputs of products with bfloat16 weights
are rounded to bfloat16, as on the native table. Must not know: models, scheduling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mini_vllm.errors import ConfigError
from mini_vllm.kernels.inputs import StepInputs
from mini_vllm.kernels.table import AttentionSpec, ForwardContext, KVShape, Model
from mini_vllm.kernels.tensors import HostTensor

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class TorchWeight:
    """A matrix [N, K] in its own number format, with an optional float32 bias [N]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class TorchRope:
    """cos and sin [max positions, R/2], float32."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(slots=True)
class TorchKVStore:
    """K and V per layer, each [num_blocks, block_size, num_kv_heads, head_dim]."""

    shape: KVShape
    keys: tuple[torch.Tensor, ...]  # of a "q8" store already multiplied by their scales, in float32
    values: tuple[torch.Tensor, ...]
    num_writes: int = 0  # calls of write since the store was made

    @classmethod
    def empty(cls, shape: KVShape, device: torch.device) -> "TorchKVStore":
        """Uninitialised."""
        size = (shape.num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        keys, values = (
            tuple(
                torch.empty(size, dtype=DTYPES.get(shape.dtype, torch.float32), device=device)
                for _ in range(shape.num_layers)
            )
            for _ in ("K", "V")
        )
        return cls(shape, keys, values)

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store rows key, value [T, num_kv_heads, head_dim] at flat slots [T], rounded to the store's format."""
        self.num_writes += 1
        for pool, rows in ((self.keys[layer], key), (self.values[layer], value)):
            rounded = round_to_codes(rows) if self.shape.dtype == "q8" else rows
            pool.flatten(0, 1)[slots] = rounded.to(pool.dtype)

    def read(self, layer: int, block_table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of positions 0 … length - 1 of one sequence, each [length, num_kv_heads, head_dim] in float32."""
        blocks = block_table[: math.ceil(length / self.shape.block_size)].long()
        key, value = (pool[blocks].flatten(0, 1)[:length].float() for pool in (self.keys[layer], self.values[layer]))
        return key, value


def round_to_codes(rows: torch.Tensor) -> torch.Tensor:
    """x [..., D] as int8 codes times a scale per last dimension hold it: scale = max |x| / 127."""
    peak = rows.float().abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(peak < 1e-30, 0.0, 127.0 / peak)
    return torch.round(rows.float() * inverse) * torch.where(peak < 1e-30, 0.0, peak / 127.0)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A `StepInputs` on the device; ragged bounds stay Python ints because they only slice."""

    token_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    slots: torch.Tensor  # [T]
    logit_rows: torch.Tensor  # [L]
    block_tables: torch.Tensor  # [R, blocks]
    query_starts: list[int]  # [R + 1]
    seq_lens: list[int]  # [R]

    @classmethod
    def from_inputs(cls, inputs: StepInputs, device: torch.device) -> "StepTensors":
        """Copy one step's arrays to the device."""

        def move(array: npt.NDArray[np.int32]) -> torch.Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(device)

        return cls(
            token_ids=move(inputs.token_ids),
            positions=move(inputs.positions),
            slots=move(inputs.slots),
            logit_rows=move(inputs.logit_rows),
            block_tables=move(inputs.block_tables),
            query_starts=inputs.query_starts.tolist(),
            seq_lens=inputs.seq_lens.tolist(),
        )


def attend_sequence(
    q: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    spec: AttentionSpec,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(scale q k^T) v over one sequence, causal, within the window. All float32.

    q [n, num_heads, D] at absolute positions [n]; key and value [m, num_kv_heads, D] at 0 … m - 1. Query head h uses
    K/V head h // (num_heads / num_kv_heads). `sinks` [num_heads] are scores of a key with value 0 that every row sees.
    Returns [n, num_heads, D].
    """
    group = spec.num_heads // spec.num_kv_heads
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)  # [m, heads, D]
    scores = torch.einsum("nhd,mhd->hnm", q, key) * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    k_pos, q_pos = torch.arange(key.shape[0], device=q.device)[None, :], positions[:, None]
    visible = k_pos <= q_pos
    if spec.window:
        visible &= k_pos > q_pos - spec.window
    scores = scores.masked_fill(~visible, -math.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, q.shape[0], 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[0]]
    return torch.einsum("hnm,mhd->nhd", weights, value)


def attend_step(
    q: torch.Tensor, store: TorchKVStore, step: StepTensors, spec: AttentionSpec, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """`attend_sequence` for each sequence of a step, over its blocks. q and result: [T, num_heads, D], float32."""
    out = torch.empty_like(q)
    for r, length in enumerate(step.seq_lens):
        rows = slice(step.query_starts[r], step.query_starts[r + 1])
        key, value = store.read(spec.layer, step.block_tables[r], length)
        out[rows] = attend_sequence(q[rows], key, value, step.positions[rows], spec, sinks)
    return out


class TorchOps:
    """The op table of one step. Activations are float32 tensors [rows, width]."""

    def __init__(self, store: TorchKVStore, step: StepTensors) -> None:
        self._store = store
        self._step = step

    def embed(self, token_ids: torch.Tensor, weight: TorchWeight, *, scale: float = 1.0) -> torch.Tensor:
        """See `OpTable.embed`."""
        rounded = torch.tensor(scale, dtype=weight.weight.dtype).item()
        return weight.weight[token_ids].float() * rounded

    def embed_positions(self, positions: torch.Tensor, weight: TorchWeight) -> torch.Tensor:
        """See `OpTable.embed_positions`."""
        return weight.weight[positions].float()

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """See `OpTable.add`."""
        return x + y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `OpTable.rms_norm`."""
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """See `OpTable.layer_norm`."""
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def qk_norm(
        self,
        qkv: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        eps: float,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        """See `OpTable.qk_norm`."""
        q, k, v = split_heads(qkv, spec)
        q, k = self.rms_norm(q, q_weight, eps), self.rms_norm(k, k_weight, eps)
        return torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), dim=-1)

    def linear(self, x: torch.Tensor, weight: TorchWeight) -> torch.Tensor:
        """See `OpTable.linear`."""
        return F.linear(_inputs(x, weight.weight), weight.weight.float(), weight.bias)

    def rope_store(
        self, qkv: torch.Tensor, rope: TorchRope | None, positions: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        """See `OpTable.rope_store`."""
        q, k, v = split_heads(qkv, spec)
        if rope is not None:
            cos, sin = rope.cos[positions][:, None, :], rope.sin[positions][:, None, :]  # [T, 1, R/2]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self._store.write(spec.layer, self._step.slots, k, v)
        return q.flatten(1)

    def attend(self, q: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """See `OpTable.attend`."""
        return attend_step(q.view(-1, spec.num_heads, spec.head_dim), self._store, self._step, spec).flatten(1)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `OpTable.silu_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `OpTable.gelu_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """See `OpTable.gelu`."""
        return F.gelu(x, approximate="tanh")

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """See `OpTable.take_rows`."""
        return x[rows]

    def logits(self, x: torch.Tensor, weight: TorchWeight, softcap: float = 0.0) -> torch.Tensor:
        """See `OpTable.logits`."""
        logits = self.linear(x, weight)
        return softcap * torch.tanh(logits / softcap) if softcap else logits


def _inputs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x as a product with this weight takes it, in float32."""
    return x.bfloat16().float() if weight.dtype == torch.bfloat16 else x


def split_heads(qkv: torch.Tensor, spec: AttentionSpec) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[T, (heads + 2 kv heads) D] → q [T, heads, D], k and v [T, kv heads, D]."""
    heads = qkv.view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
    q, k, v = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
    return q, k, v


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate dimension pairs (i, i + R/2) of x [T, heads, D]; dimensions from R on pass through."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


class TorchProgram:
    """A model bound to a store; `run` calls the model's own functions."""

    def __init__(self, model: Model, store: TorchKVStore, device: torch.device, max_logit_rows: int) -> None:
        self._model = model
        self._store = store
        self._device = device
        self._max_logit_rows = max_logit_rows
        self._ops: TorchOps | None = None
        self._hidden = torch.empty(0)

    @property
    def max_logit_rows(self) -> int:
        """How many rows one call of logits may ask for."""
        return self._max_logit_rows

    def progress(self) -> int:
        """See `Program.progress`: one per layer."""
        return self._store.num_writes

    def run(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """See `Program.run`."""
        with torch.inference_mode():
            step = StepTensors.from_inputs(inputs, self._device)
            self._ops = TorchOps(self._store, step)
            context = ForwardContext(token_ids=step.token_ids, positions=step.positions, logit_rows=step.logit_rows)
            self._hidden = self._model.hidden(self._ops, context)
            return to_numpy(self._hidden)

    def logits(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """See `Program.logits`."""
        assert self._ops is not None, "logits before run"
        assert stop - start <= self._max_logit_rows
        with torch.inference_mode():
            return to_numpy(self._model.logits(self._ops, self._hidden[start:stop]))


def to_numpy(x: torch.Tensor) -> npt.NDArray[np.float32]:
    """A C-contiguous float32 array on the host."""
    array: npt.NDArray[np.float32] = x.float().contiguous().cpu().numpy()
    return array


class TorchDevice:
    """Makes weights, KV stores and programs on one torch device. `device`: "cpu", "cuda", "cuda:1", "mps"."""

    name = "torch"
    weight_formats = frozenset(DTYPES)
    store_dtypes = frozenset(DTYPES)

    def __init__(self, device: str = "cpu", *, threads: int | None = None) -> None:
        kind = device.split(":")[0]
        if kind not in ("cpu", "cuda", "mps"):
            raise ConfigError(f"device is {device!r}; the torch op table runs on cpu, cuda or mps", param="device")
        if (kind == "cuda" and not torch.cuda.is_available()) or (
            kind == "mps" and not torch.backends.mps.is_available()
        ):
            raise ConfigError(f"device is {device!r}, which this torch cannot see; use --device cpu", param="device")
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = torch.device(device)

    def linear(self, parts: Sequence[HostTensor], bias: Sequence[HostTensor | None] | None = None) -> TorchWeight:
        """See `Device.linear`. Parts are copied one by one into the fused matrix; mixed formats become float32."""
        formats = {part.format for part in parts}
        dtype = DTYPES[formats.pop()] if len(formats) == 1 else torch.float32
        sizes = [part.shape[0] for part in parts]
        fused = torch.empty((sum(sizes), parts[0].shape[1]), dtype=dtype, device=self.device)
        for part, rows in zip(parts, torch.split(fused, sizes), strict=True):
            rows.copy_(to_torch(part))
        if bias is None or all(part is None for part in bias):
            return TorchWeight(fused)
        fused_bias = torch.zeros(sum(sizes), device=self.device)
        for host, rows in zip(bias, torch.split(fused_bias, sizes), strict=True):
            if host is not None:
                rows.copy_(to_torch(host))
        return TorchWeight(fused, fused_bias)

    def embedding(self, table: HostTensor) -> TorchWeight:
        """See `Device.embedding`."""
        return TorchWeight(to_torch(table).to(self.device))

    def vector(self, tensor: HostTensor, offset: float = 0.0) -> torch.Tensor:
        """See `Device.vector`."""
        return to_torch(tensor).to(self.device, torch.float32) + offset

    def rope(self, cos: npt.NDArray[np.float32], sin: npt.NDArray[np.float32]) -> TorchRope:
        """See `Device.rope`."""
        return TorchRope(torch.from_numpy(cos.copy()).to(self.device), torch.from_numpy(sin.copy()).to(self.device))

    def greedy_head_bytes(self, head_format: str, rows: int, cols: int) -> int:
        """See `Device.greedy_head_bytes`."""
        return 0

    def kv_store(self, shape: KVShape) -> TorchKVStore:
        """See `Device.kv_store`."""
        return TorchKVStore.empty(shape, self.device)

    def compile(
        self, model: Model, store: TorchKVStore, *, max_tokens: int, max_rows: int, max_logit_rows: int
    ) -> TorchProgram:
        """See `Device.compile`. Nothing is preallocated, so max_tokens and max_rows do not matter here."""
        return TorchProgram(model, store, self.device, max_logit_rows)

    def describe(self) -> dict[str, str]:
        """See `Device.describe`."""
        return {
            "op_table": "torch",
            "torch": torch.__version__,
            "device": str(self.device),
            "threads": str(torch.get_num_threads()),
            "compute": "float32",
        }


def to_torch(tensor: HostTensor) -> torch.Tensor:
    """A private copy on the CPU, in the tensor's own number format (the source may be a read-only, unaligned map)."""
    raw = torch.empty(tensor.data.nbytes, dtype=torch.uint8)
    raw.numpy()[:] = tensor.data.reshape(-1)
    return raw.view(DTYPES[tensor.format]).reshape(tensor.shape)
