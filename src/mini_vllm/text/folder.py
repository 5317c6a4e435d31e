"""A tokenizer from a Hugging Face style folder.

tokenizer.json where there is one; else a SentencePiece tokenizer.model; else vocab.json with merges.txt. Settings come
from tokenizer_config.json, special_tokens_map.json and added_tokens.json. Must not know models or GGUF.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.errors import ModelNotFoundError, UnsupportedModelError, WeightsError
from mini_vllm.text.parts import TokenizerParts
from mini_vllm.text.pretokenizers import build_normalizer, build_pre_tokenizer, recipe_of
from mini_vllm.text.sentencepiece_model import SentencePieceModel, read_sentencepiece_model
from mini_vllm.text.sentencepiece_tokenizer import PrefixRule, build_sentencepiece
from mini_vllm.text.template_files import folder_templates, read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ADDS = ("add_bos_token", "add_eos_token")
_EXTRA = ("additional_special_tokens", "extra_special_tokens")


def parts_from_folder(folder: Path) -> TokenizerParts:
    """Build from the files in a folder.

    Raises:
        ModelNotFoundError: no tokenizer files; says which are looked for.
        WeightsError: a file cannot be read.
        UnsupportedModelError: a kind of tokenizer whose text cannot be rebuilt token by token.
    """
    config = _settings(folder)
    if (folder / "tokenizer.json").is_file():
        backend = _read_backend(folder / "tokenizer.json")
        for setting in _ADDS:  # the file has its own post-processor, which is what was trained with
            config.pop(setting, None)
    elif (folder / "tokenizer.model").is_file():
        model = read_sentencepiece_model(folder / "tokenizer.model")
        backend = build_sentencepiece(model, prefix=_prefix_rule(model, config))
        config = _sentencepiece_defaults(model) | config
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        backend = _from_vocab_and_merges(folder, config)
    else:
        raise ModelNotFoundError(
            f"{folder} has no tokenizer: looked for tokenizer.json, tokenizer.model, and vocab.json with merges.txt",
            param="tokenizer",
        )
    _add_tokens(backend, folder, config)
    byte_level, byte_fallback, strips = _decoding(backend, folder)
    named = {name: text for name in _NAMES if (text := _content(config.get(name))) is not None}
    bos, eos = _id(backend, named.get("bos_token")), _id(backend, named.get("eos_token"))
    prefix, suffix = _affixes(backend)
    if config.get("add_bos_token") and bos is not None:
        prefix = (bos,)
    if config.get("add_eos_token") and eos is not None:
        suffix = (eos,)
    return TokenizerParts(
        backend=backend,
        byte_level=byte_level,
        byte_fallback=byte_fallback,
        strips_leading_space=strips,
        prefix_ids=prefix,
        suffix_ids=suffix,
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
        named_tokens=named,
        chat_templates=folder_templates(folder),
    )


def _settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        found = read_json(folder / name)
        config.update({key: value for key, value in found.items() if value is not None or key not in config})
    return config


def _read_backend(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise WeightsError(f"{path} cannot be read ({error}); download it again", param="tokenizer") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _prefix_rule(model: SentencePieceModel, config: dict[str, Any]) -> PrefixRule:
    if not config.get("add_prefix_space", model.add_dummy_prefix):
        return "never"
    return "first" if config.get("legacy") is False else "always"


def _sentencepiece_defaults(model: SentencePieceModel) -> dict[str, Any]:
    """BOS and EOS as the vocabulary names them; BOS is added unless the configuration says otherwise."""
    ends = {"bos_token": model.bos_id, "eos_token": model.eos_id}
    named = {name: model.pieces[index] for name, index in ends.items() if 0 <= index < len(model.pieces)}
    return {**named, "add_bos_token": True}


def _from_vocab_and_merges(folder: Path, config: dict[str, Any]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models

    qwen = str(config.get("tokenizer_class", "")).startswith("Qwen")
    recipe = recipe_of("qwen2" if qwen else "gpt-2")
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # as above
        raise WeightsError(
            f"vocab.json and merges.txt in {folder} cannot be read ({error}); download them again", param="tokenizer"
        ) from error
    backend = Tokenizer(model)
    if (normalizer := build_normalizer(recipe)) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = build_pre_tokenizer(recipe, add_prefix_space=bool(config.get("add_prefix_space", False)))
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_tokens(backend: "Tokenizer", folder: Path, config: dict[str, Any]) -> None:
    """Tokens that only the settings name: added_tokens_decoder, added_tokens.json and the named special tokens."""
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    named = {text for key in _NAMES if (text := _content(config.get(key))) is not None}
    for _, entry in sorted(_numbered(config.get("added_tokens_decoder"))):
        if (text := _content(entry)) is not None and text not in known:
            flags = {key: bool(entry.get(key)) for key in ("lstrip", "rstrip", "single_word", "normalized")}
            special = bool(entry.get("special")) or text in named
            backend.add_tokens([AddedToken(text, special=special, **flags)])
            known.add(text)
    plain = sorted(read_json(folder / "added_tokens.json").items(), key=lambda item: str(item[1]).zfill(12))
    backend.add_tokens([AddedToken(text, normalized=False) for text, _ in plain if text not in known | named])
    special_texts = [*sorted(named), *_extra_tokens(config)]
    backend.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in dict.fromkeys(special_texts) if text not in known]
    )


def _numbered(entries: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for key, entry in (entries if isinstance(entries, dict) else {}).items():
        if str(key).isdigit() and isinstance(entry, dict):
            yield int(key), entry


def _extra_tokens(config: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for key in _EXTRA:
        value = config.get(key) or []
        entries = value.values() if isinstance(value, dict) else value
        found.extend(text for entry in entries if (text := _content(entry)) is not None)
    return found


def _content(entry: Any) -> str | None:
    """A token is written as its text or as an object with `content`."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) and text else None


def _id(backend: "Tokenizer", text: str | None) -> int | None:
    found: int | None = None if text is None else backend.token_to_id(text)
    return found


def _affixes(backend: "Tokenizer") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the file's post-processor puts before and after a text, found by encoding one."""
    for probe in ("a", "0", "▁"):
        bare = backend.encode(probe, add_special_tokens=False).ids
        full = backend.encode(probe, add_special_tokens=True).ids
        for start in range(len(full) - len(bare) + 1):
            if bare and full[start : start + len(bare)] == bare:
                return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _decoding(backend: "Tokenizer", folder: Path) -> tuple[bool, bool, bool]:
    """(byte-level, byte fallback, strips the leading space), read from the backend's decoder."""
    spec = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {"type": None}
    steps = spec.get("decoders", [spec])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return True, False, False
    if "Metaspace" in kinds or "Replace" in kinds:
        strips = any(
            (step["type"] == "Strip" and step.get("start", 0) > 0)
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )
        return False, "ByteFallback" in kinds, strips
    raise UnsupportedModelError(
        f"the tokenizer in {folder} decodes with {', '.join(sorted(map(str, kinds)))}; this engine reads "
        "byte-level BPE and SentencePiece vocabularies",
        param="tokenizer",
    )
