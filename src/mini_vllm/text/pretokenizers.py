"""How byte-level BPE cuts text into words before merging, by the name that GGUF files use.

Each recipe is what the model family's own tokenizer does. Must not know files or vocabularies.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mini_vllm.errors import UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"  # what may lead a word in the vocabularies that split at case changes
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CASED}{_UPPER}*{_LOWER}+|{_CASED}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_GPT4O = (
    rf"{_CASED}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_CASED}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_FALLBACK = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{10C7}\x{10CD}\x{10D0}-\x{10FF}]]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Split patterns applied one after another, and what goes with them."""

    patterns: tuple[str, ...]
    nfc: bool = False  # compose characters first
    whole_words: bool = False  # a word that is in the vocabulary is one token, whatever the merges say
    add_bos: bool = False  # where the file does not say


_DIGITS = Recipe((r"\p{N}", _GPT2))
_NAMES: dict[str, Recipe] = {
    "default": Recipe(_FALLBACK),
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "jais", "trillion", "mellum", "a.x-4.0", "gigachat"), Recipe((_GPT2,))),
    **dict.fromkeys(("olmo", "mpt", "dolly"), Recipe((_GPT2,), nfc=True)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2"),
        Recipe((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Recipe((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "qwen3", "deepseek-r1-qwen", "megrez"), Recipe((_QWEN2,), nfc=True)),
    "qwen35": Recipe((_QWEN35,), nfc=True),
    **dict.fromkeys(("stablelm2", "hunyuan"), Recipe((_QWEN2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    "tekken": Recipe((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Recipe((_GPT4O,))),
    "falcon": Recipe(_FALCON),
    "deepseek-llm": Recipe(_DEEPSEEK_LLM),
    "deepseek-coder": Recipe(_DEEPSEEK_CODER),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Recipe(_DEEPSEEK3)),
}


def recipe_of(name: str) -> Recipe:
    """The recipe of a pre-tokenizer name; an unknown one is an `UnsupportedModelError` that lists the known."""
    try:
        return _NAMES[name]
    except KeyError:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer this engine does not know; known: "
            f"{', '.join(sorted(_NAMES))}. Use the model's safetensors folder, which has its tokenizer.json",
            param="model",
        ) from None


def build_pre_tokenizer(recipe: Recipe, *, add_prefix_space: bool) -> "PreTokenizer":
    """Splits, then the byte-level alphabet."""
    from tokenizers import Regex, pre_tokenizers

    splits: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in recipe.patterns]
    if add_prefix_space:  # the space must be there before words are cut
        splits = [pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False), *splits]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def build_normalizer(recipe: Recipe) -> "Normalizer | None":
    """NFC where the family composes characters, else none."""
    from tokenizers import normalizers

    return normalizers.NFC() if recipe.nfc else None
