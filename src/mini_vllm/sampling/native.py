"""Binding of csrc/sampler.cpp: the same choices as `transforms`, row by row in C++.

This module must not know models, requests or the scheduler.
"""

from mini_vllm.sampling.sampler import SamplerBackend


def load_backend(*, required: bool) -> SamplerBackend | None:
    """The native sampler; None (or an error, if required) where our library is absent."""
    if required:
        raise NotImplementedError
    return None
