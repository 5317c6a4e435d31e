"""From raw logits to token ids and logprobs. Doors: `Sampler`, `make_sampler`, `num_accepted`, `derive_noise_key`."""

from mini_vllm.sampling.logprobs import LOGPROB_FLOOR
from mini_vllm.sampling.noise import derive_noise_key
from mini_vllm.sampling.sampler import Sampler, make_sampler
from mini_vllm.sampling.state import SamplingStates
from mini_vllm.sampling.verify import num_accepted

__all__ = ["LOGPROB_FLOOR", "Sampler", "SamplingStates", "derive_noise_key", "make_sampler", "num_accepted"]
