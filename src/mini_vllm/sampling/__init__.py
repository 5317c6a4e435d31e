"""From raw logits to token ids and logprobs. Doors: `Sampler`, `make_sampler`, `derive_noise_key`."""

from mini_vllm.sampling.logprobs import LOGPROB_FLOOR
from mini_vllm.sampling.noise import derive_noise_key
from mini_vllm.sampling.sampler import Sampler, make_sampler

__all__ = ["LOGPROB_FLOOR", "Sampler", "derive_noise_key", "make_sampler"]
