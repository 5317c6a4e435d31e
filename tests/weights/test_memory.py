"""How much memory it takes to pass a checkpoint through `get`: one copy of the weights, and little more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 200 * 2**20

# Copies every tensor, as a loader that packs them does; prints memory before, the peak after, and what was copied.
LOAD = """
import sys
from mini_vllm.quantization import convert
from mini_vllm.weights import open_checkpoint

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = memory("VmRSS")
checkpoint = open_checkpoint(sys.argv[1])
packed = []
for name in sorted(checkpoint.names()):
    tensor = checkpoint.get(name)
    packed.append(convert(tensor, sys.argv[2]).data if tensor.format != sys.argv[2] else tensor.data.copy())
print(before, memory("VmHWM"), sum(part.nbytes for part in packed))
"""


@pytest.fixture(scope="module")
def big_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bfloat16 tensors of 200 MiB: 24 of 8 MiB and one of 8 MiB less."""
    folder = tmp_path_factory.mktemp("big")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    header, offset = {}, 0
    for index in range(25):
        header[f"model.layers.{index}.w"] = {
            "dtype": "BF16",
            "shape": [1024, 4096],
            "data_offsets": [offset, offset + 8 * 2**20],
        }
        offset += 8 * 2**20
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for index in range(25):
            file.write(bytes([index + 1]) * (8 * 2**20))
    assert offset == SIZE
    return folder


@pytest.mark.parametrize("format", ["bf16", "f32"])
def test_peak_is_at_most_1_3_times_the_weights(format: str, big_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(big_folder), format], capture_output=True, text=True, check=True
    )
    before, peak, packed = map(int, done.stdout.split())
    assert packed == SIZE * (2 if format == "f32" else 1)
    assert peak - before <= 1.3 * packed
