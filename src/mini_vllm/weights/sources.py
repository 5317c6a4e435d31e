"""From the name of a model to a path on this machine: alias, folder, GGUF file or hub repository, in that order.

Knows where to look; knows nothing of what a model is made of.
"""

import difflib
from pathlib import Path

from mini_vllm.errors import ModelNotFoundError, UnsupportedModelError, WeightsError
from mini_vllm.weights.aliases import ALIASES, Progress

_MAX_NAME = 1000
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def resolve(name: str, *, revision: str | None = None) -> Path:
    """The local path of a model: a folder or a .gguf file. Fetches it if this machine does not have it.

    `name` is an alias ("smollm2-135m"), a folder, a GGUF file, or a hub repository: "owner/name",
    "owner/name:file.gguf", "owner/name:Q4_K_M". `revision` is a branch, tag or commit, for repositories only.
    """
    return pull(name, revision=revision)


def pull(name: str, *, revision: str | None = None, progress: Progress | None = None) -> Path:
    """As `resolve`; `progress(bytes so far, bytes in all or None)` is called while something is fetched."""
    _check_name(name)
    if (path := _existing(name)) is not None:
        return _model_in(path)
    if name in ALIASES:
        from mini_vllm.weights import download

        return download.fetch(ALIASES[name], progress=progress)
    if (name.endswith(".gguf") and ":" not in name) or name.startswith((".", "/", "~")) or "\\" in name:
        raise ModelNotFoundError(f"{name}: no such file or folder{_near(name)}", param="model")
    return _from_hub(name, revision, progress)


def resolve_tokenizer(name: str, *, revision: str | None = None) -> Path:
    """As `resolve`, but of a hub repository only the tokenizer's files are fetched."""
    from mini_vllm.weights import hub

    _check_name(name)
    hub_name = hub.parse_name(name, revision=revision)
    if _existing(name) is not None or name in ALIASES or hub_name is None or hub_name.choice is not None:
        return resolve(name, revision=revision)
    return hub.find_cached_tokenizer(hub_name) or hub.download_tokenizer(hub_name)


def _from_hub(name: str, revision: str | None, progress: Progress | None) -> Path:
    from mini_vllm.weights import hub

    hub_name = hub.parse_name(name, revision=revision)
    if hub_name is None:
        raise ModelNotFoundError(
            f"{name}: no such file, folder or alias, and not a hub repository id such as owner/name{_near(name)}",
            param="model",
        )
    if (path := hub.find_cached(hub_name)) is not None:
        return path
    try:
        return hub.download(hub_name, progress=progress)
    except ModelNotFoundError as error:
        tried = "no such file or folder, no alias, not in the local hub cache"
        raise ModelNotFoundError(f"{error} (tried: {tried}){_near(name)}", param="model") from error


def _check_name(name: str) -> None:
    if not name or len(name) > _MAX_NAME or any(ord(character) < 32 for character in name):
        shown = name[:40] + "…" if len(name) > 40 else name
        raise ModelNotFoundError(
            f"{shown!r} is no name of a model: it must have 1 to {_MAX_NAME} printable characters", param="model"
        )


def _existing(name: str) -> Path | None:
    """The local path of that name. An alias or repository id is meant unless something of that name is really there."""
    try:
        path = Path(name).expanduser()
        if path.is_file() or (path.is_dir() and (name not in ALIASES or _is_model(path))):
            return path
    except (OSError, RuntimeError, ValueError):
        pass  # too long for this system, no such user, …: not a path
    return None


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists() or any(folder.glob("*.gguf"))


def _model_in(path: Path) -> Path:
    if path.is_dir():
        return _folder(path)
    if path.name.endswith(_PICKLES):
        raise WeightsError(
            f"{path}: a pickle can run code when it is opened and is refused; "
            "take a safetensors or GGUF version of the model"
        )
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            hint = "; give the folder that it lies in" if path.suffix in (".safetensors", ".json") else ""
            raise UnsupportedModelError(f"{path}: is not a GGUF file{hint}", param="model")
    return path


def _folder(folder: Path) -> Path:
    """The folder itself, or the one GGUF model in it if it is no Hugging Face folder."""
    from mini_vllm.weights.gguf_checkpoint import part_paths

    if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
        return folder
    models = sorted({part_paths(file)[0] for file in folder.glob("*.gguf")})
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:8])
        raise ModelNotFoundError(f"{folder}: there are several GGUF files; name one of {names}", param="model")
    return models[0] if models else folder


def _near(name: str) -> str:
    """A hint at names that look alike: aliases, cached repositories, neighbours of a missing file."""
    from mini_vllm.weights import hub

    known = [*ALIASES, *hub.cached_names()]
    try:
        parent = Path(name).expanduser().parent
        known += [str(path) for path in list(parent.iterdir())[:1000] if path.is_dir() or path.suffix == ".gguf"]
    except (OSError, RuntimeError):
        pass
    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else f"; known aliases: {', '.join(ALIASES)}"
