"""Where the K and V of every sequence lie: blocks, shared prefixes, eviction. Numbers only, no tensors."""

from mini_vllm.kvcache.blocks import BlockTable
from mini_vllm.kvcache.cache import Grant, KVCache, PagedCache, Refusal
from mini_vllm.kvcache.contiguous import ContiguousCache

__all__ = ["BlockTable", "ContiguousCache", "Grant", "KVCache", "PagedCache", "Refusal"]
