"""Fakes for tests of this project and of programs that use it: small, deterministic, without weights."""

from mini_vllm.testing.byte_tokenizer import ByteTokenizer
from mini_vllm.testing.fake_executor import FakeExecutor

__all__ = ["ByteTokenizer", "FakeExecutor"]
