"""Whether two tokenizers mean the same by the same ids, as a model and its draft model must."""

from mini_vllm.errors import ConfigError
from mini_vllm.text.tokenizer import Tokenizer


def check_same_tokens(tokenizer: Tokenizer, other: Tokenizer, *, name: str) -> None:
    """`ConfigError` unless every id that both have stands for the same token. `name`: whose `other` is.

    One vocabulary may be longer than the other, by padding or by added tokens: those are never guessed, or never right.
    """
    shared = min(tokenizer.vocab_size, other.vocab_size)
    different = [i for i in range(shared) if tokenizer.piece(i) != other.piece(i)]
    if different:
        first = different[0]
        raise ConfigError(
            f"{name} has another vocabulary: {len(different)} of {shared} token ids differ, the first is {first} "
            f"({other.piece(first)!r}, in the model {tokenizer.piece(first)!r}); take a draft model of the same family",
            param="draft_model",
        )
