"""The tokenizer metadata of a GGUF file, checked: types, lengths, ids in range, valid text.

Nothing here trusts the file. Must not know the `tokenizers` library.
"""

from collections.abc import Mapping
from typing import Any

from mini_vllm.errors import WeightsError
from mini_vllm.text.pieces import PieceType

_MAX_PIECES = 2**22
_PREFIX = "tokenizer.ggml."
_END_NAMES = ("eos_token_id", "eot_token_id", "eom_token_id")


class GGUFVocabulary:
    """A validated view of `tokenizer.*` keys.

    Attributes:
        kind: `gpt2` (byte-level BPE) or `llama` (SentencePiece), as the file says.
        pieces, types: vocabulary texts and `PieceType` numbers in id order.
        scores: for `llama`; empty otherwise.
        merges: pairs for `gpt2`; empty otherwise.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Check everything; the first fault is a `WeightsError` that names the key."""
        self._metadata = metadata
        self.kind = self._text("model", default=None)
        self.pre = self._text("pre", default="default")
        self.pieces = self._strings("tokens")
        self.types = self._types()
        self.scores = self._scores() if self.kind == "llama" else []
        self.merges = self._merges() if self.kind == "gpt2" else []
        self.end_ids = tuple(dict.fromkeys(found for name in _END_NAMES if (found := self.token_id(name)) is not None))

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean such as `add_bos_token`."""
        value = self._metadata.get(_PREFIX + name, default)
        if not isinstance(value, bool):
            raise _fault(name, f"{value!r}", "a boolean")
        return value

    def token_id(self, name: str) -> int | None:
        """A token id such as `bos_token_id`; None where the file has none (2^32 − 1 counts as none)."""
        value = self._metadata.get(_PREFIX + name)
        if value is None or value in (-1, 2**32 - 1):
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise _fault(name, f"{value!r}", "a token id")
        if not 0 <= value < len(self.pieces):
            raise _fault(name, str(value), f"below the vocabulary's {len(self.pieces)} tokens")
        return value

    def ids_of(self, *types: PieceType) -> list[int]:
        """Ids of the pieces of these types."""
        return [index for index, kind in enumerate(self.types) if kind in types]

    def chat_templates(self) -> dict[str, str]:
        """Name -> source; the unnamed one is `default`."""
        found: dict[str, str] = {}
        for key, value in self._metadata.items():
            if key != "tokenizer.chat_template" and not key.startswith("tokenizer.chat_template."):
                continue
            if not isinstance(value, str):
                raise WeightsError(f"{key} is {type(value).__name__}; it must be text", param="model")
            found[key.removeprefix("tokenizer.chat_template").removeprefix(".") or "default"] = value
        return found

    def _text(self, name: str, *, default: str | None) -> str:
        value = self._metadata.get(_PREFIX + name, default)
        if not isinstance(value, str):
            raise _fault(name, "missing" if value is None else f"{value!r:.40}", "text")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            raise _fault(name, "missing", "a list; this file has no usable tokenizer")
        items = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(items, list | tuple):
            raise _fault(name, f"{type(value).__name__}", "a list")
        return list(items)

    def _strings(self, name: str) -> list[str]:
        items = self._list(name)
        if not 0 < len(items) <= _MAX_PIECES:
            raise _fault(name, f"{len(items)} entries", f"between 1 and {_MAX_PIECES}")
        wrong = next((index for index, item in enumerate(items) if not isinstance(item, str)), None)
        if wrong is not None:
            raise _fault(f"{name}[{wrong}]", type(items[wrong]).__name__, "text")
        try:
            "".join(items).encode("utf-8")
        except UnicodeEncodeError:
            raise _fault(name, "not valid UTF-8", "UTF-8 text") from None
        if len(set(items)) != len(items):
            seen: set[str] = set()
            twice = next(item for item in items if item in seen or seen.add(item))  # type: ignore[func-returns-value]
            raise _fault(name, f"{twice!r} twice", "free of duplicates")
        return items

    def _types(self) -> list[int]:
        if self._metadata.get(_PREFIX + "token_type") is None:
            return [int(PieceType.NORMAL)] * len(self.pieces)
        items = self._list("token_type")
        self._check_length("token_type", items)
        if not all(type(item) is int for item in items):
            raise _fault("token_type", "not all integers", "integers 0 to 6")
        if min(items) < 0 or max(items) > max(PieceType):
            raise _fault("token_type", f"{min(items)} to {max(items)}", "integers 0 to 6")
        return [item or int(PieceType.NORMAL) for item in items]  # 0: undefined

    def _scores(self) -> list[float]:
        items = self._list("scores")
        self._check_length("scores", items)
        if not all(type(item) is float for item in items):
            raise _fault("scores", "not all floating point", "floating point")
        if any(item != item for item in items):
            raise _fault("scores", "not a number in places", "finite")
        return items

    def _merges(self) -> list[tuple[str, str]]:
        pairs = []
        known = set(self.pieces)
        items = self._list("merges")
        for index, item in enumerate(items):
            cut = item.find(" ", 1) if isinstance(item, str) else -1
            if cut < 0:
                raise _fault(f"merges[{index}]", f"{item!r:.40}", "two pieces with a space between")
            left, right = item[:cut], item[cut + 1 :]
            if left not in known or right not in known or left + right not in known:
                raise _fault(f"merges[{index}]", f"{item!r:.40}", "made of pieces of the vocabulary")
            pairs.append((left, right))
        return pairs

    def _check_length(self, name: str, items: list[Any]) -> None:
        if len(items) != len(self.pieces):
            raise _fault(name, f"{len(items)} entries", f"{len(self.pieces)}, one for each token")


def _fault(name: str, value: str, must: str) -> WeightsError:
    return WeightsError(f"{_PREFIX}{name} is {value}; it must be {must}", param="model")
