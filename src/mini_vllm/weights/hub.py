"""Models of a Hugging Face hub: what the local cache has, else a download of just the files that are needed.

Everything goes through huggingface_hub, so its settings hold: HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN. It is
imported when a hub is really needed. Knows which files a model is made of; knows nothing of what is in them.
"""

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.errors import ModelError, ModelNotFoundError, UnsupportedModelError, WeightsError
from mini_vllm.weights.aliases import Progress
from mini_vllm.weights.download import folder_bytes, watched
from mini_vllm.weights.gguf_checkpoint import part_paths
from mini_vllm.weights.hf_checkpoint import weight_file_names

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.\-]{0,95})"
_REPO = re.compile(rf"({_PART}(?:/{_PART})?)(?::([\w.\-/]{{1,200}}))?", re.ASCII)
_WANTED = re.compile(r"[^/]+\.(json|safetensors|model|jinja|txt)|additional_chat_templates/[^/]+\.jinja", re.ASCII)
_UNWANTED = re.compile(r"consolidated.*|.*\.(fp16|fp32|bf16)\.safetensors|.*[\[\]*?].*")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_OFFLINE = "it is not (completely) in the local hub cache and HF_HUB_OFFLINE forbids to fetch it; unset that"
_SPLIT = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository id, and which of its GGUF files: a file name or a number format, None for safetensors."""

    repo: str
    choice: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo + (f":{self.choice}" if self.choice else "")


def parse_name(name: str, *, revision: str | None = None) -> HubName | None:
    """The parts of `owner/name`, `owner/name:file.gguf` or `owner/name:Q4_K_M`; None if it cannot be one."""
    match = _REPO.fullmatch(name)
    if match is None or ".." in name or "--" in match.group(1) or match.group(1).endswith((".git", ".", "-")):
        return None
    return HubName(match.group(1), match.group(2), revision)


def find_cached(name: HubName) -> Path | None:
    """The model if the hub cache has all of it. Never goes to the network."""
    folder = _snapshot(name)
    if folder is None:
        return None
    if name.choice is None and _is_complete(folder):
        return folder
    found = _pick(_gguf_files(folder), name, explain=False)
    if found is None:
        return None
    try:
        return part_paths(folder / found)[0]
    except WeightsError:
        return None  # some parts are missing


def find_cached_tokenizer(name: HubName) -> Path | None:
    """The snapshot folder if the hub cache has the repository's tokenizer. Never goes to the network."""
    folder = _snapshot(name)
    return folder if folder is not None and any((folder / file).exists() for file in _TOKENIZERS) else None


def download_tokenizer(name: HubName) -> Path:
    """Bring the tokenizer, its settings and chat templates into the hub cache, and no weights."""
    files = [file for file in _list_files(name) if _WANTED.fullmatch(file) and not file.endswith(".safetensors")]
    if not any(file in _TOKENIZERS for file in files):
        raise ModelNotFoundError(f"{name}: the repository has none of {', '.join(_TOKENIZERS)}", param="tokenizer")
    return Path(_guarded(name, _snapshot_download, name, files))


def download(name: HubName, *, progress: Progress | None = None) -> Path:
    """Bring the model into the hub cache; files that are there already are not fetched again."""
    sizes = _list_files(name)
    wanted, chosen = _choose(name, list(sizes))
    total = sum(sizes[file] or 0 for file in wanted) or None
    blobs = _cache_folder(name) / "blobs"
    if progress is not None:
        _hide_progress_bars()
    with watched(lambda: folder_bytes(blobs), total, progress):
        folder = Path(_guarded(name, _snapshot_download, name, wanted))
    if progress is not None:
        progress(total or 0, total)
    return folder / chosen if chosen else folder


def cached_names() -> list[str]:
    """Repository ids in the local hub cache."""
    folder = Path(_hub_cache())
    found = folder.glob("models--*") if folder.is_dir() else []
    return sorted(path.name.removeprefix("models--").replace("--", "/") for path in found)


def _hub_cache() -> str:
    # As huggingface_hub finds it; read here so that a look into the cache costs no import.
    env = os.environ
    home = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.expanduser(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub"))


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _is_offline() -> bool:
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


def _cache_folder(name: HubName) -> Path:
    return Path(_hub_cache()) / ("models--" + name.repo.replace("/", "--"))


def _snapshot(name: HubName) -> Path | None:
    """The cached snapshot folder of the revision: a commit, or what a branch or tag pointed to when last fetched."""
    folder = _cache_folder(name)
    revision = name.revision or "main"
    if ".." in revision or revision.startswith("/"):
        return None
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _is_complete(folder: Path) -> bool:
    try:
        names = weight_file_names(folder)
    except ModelError:
        return False
    has_tokenizer = any((folder / file).exists() for file in _TOKENIZERS)
    return has_tokenizer and (folder / "config.json").exists() and all((folder / file).exists() for file in names)


def _gguf_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))


def _choose(name: HubName, files: list[str]) -> tuple[list[str], str | None]:
    """Which files to fetch, and the GGUF file to open (None: the folder)."""
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    wanted = [file for file in files if _WANTED.fullmatch(file) and not _UNWANTED.fullmatch(file)]
    if name.choice is None and any(file.endswith(".safetensors") for file in wanted):
        if "config.json" not in files and "adapter_config.json" in files:
            raise UnsupportedModelError(f"{name}: this is a LoRA adapter; merge it into its base model and load that")
        return wanted, None
    if not ggufs:
        pickles = [file for file in files if file.endswith((".bin", ".pt", ".pth"))]
        reason = f"only {pickles[0]}, a pickle, which is refused" if pickles else "no weights that can be read"
        raise WeightsError(f"{name}: the repository has {reason}; choose one with safetensors or GGUF files")
    chosen = _pick(ggufs, name, explain=True)
    assert chosen is not None, "explain=True raises where nothing matches"
    stem = _SPLIT.sub("", chosen)
    parts = [file for file in ggufs if _SPLIT.sub("", file) == stem]
    return parts, parts[0]


def _pick(ggufs: list[str], name: HubName, *, explain: bool) -> str | None:
    """The one GGUF file that the name means: by its file name, by its number format, or because it is the only one."""
    stems = {_SPLIT.sub("", file): file for file in reversed(ggufs)}
    choice = (name.choice or "").lower()
    exact = [file for stem, file in stems.items() if choice in (stem.lower(), file.lower())]
    by_format = [
        file for stem, file in stems.items() if re.search(rf"(^|[-._/]){re.escape(choice)}\.gguf$", stem.lower())
    ]
    found = exact or by_format if choice else list(stems.values())
    if len(found) == 1:
        return found[0]
    if explain:
        shown = ", ".join(f"{name.repo}:{stem}" for stem in sorted(stems)[:8])
        problem = "has no such file" if not found else "has several GGUF files"
        raise ModelNotFoundError(f"{name}: the repository {problem}; choose one, as in {shown}")
    return None


def _list_files(name: HubName) -> dict[str, int | None]:
    """Every file of the repository with its size in bytes, if the hub tells it."""
    if _is_offline():
        raise ModelNotFoundError(f"{name}: {_OFFLINE}", param="model")
    info = _guarded(name, _model_info, name)
    return {sibling.rfilename: sibling.size for sibling in info.siblings or ()}


def _model_info(name: HubName) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=_endpoint()).model_info(name.repo, revision=name.revision, files_metadata=True)


def _hide_progress_bars() -> None:
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()


def _snapshot_download(name: HubName, files: list[str]) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(
        name.repo,
        revision=name.revision,
        cache_dir=_hub_cache(),
        endpoint=_endpoint(),
        allow_patterns=[glob.escape(file) for file in files],
    )


def _guarded(name: HubName, action: Any, *arguments: Any) -> Any:
    """Run a call of huggingface_hub and turn what it raises into one line that says what to do."""
    from huggingface_hub import errors

    try:
        return action(*arguments)
    except errors.GatedRepoError:
        problem = "the repository is gated; accept its terms on the hub and set HF_TOKEN"
    except errors.RepositoryNotFoundError:
        problem = "the hub has no such repository, or it is private and HF_TOKEN does not open it"
    except errors.RevisionNotFoundError:
        problem = f"the repository has no revision {name.revision!r}"
    except errors.OfflineModeIsEnabled:
        problem = _OFFLINE
    except Exception as error:  # the HTTP library beneath has changed between versions, and its errors with it
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        problem = f"the hub cannot be reached ({reason}); check the network, HF_ENDPOINT and proxies"
    raise ModelNotFoundError(f"{name}: {problem}", param="model")
