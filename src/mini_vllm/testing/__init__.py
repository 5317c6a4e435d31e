"""Fakes for tests of this project and of programs that use it: small, deterministic, without weights."""

from mini_vllm.testing.byte_tokenizer import ByteTokenizer

__all__ = ["ByteTokenizer"]
