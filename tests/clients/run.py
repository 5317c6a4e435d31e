"""Real clients against a running server with the real model, each in a pinned environment of its own.

usage: python tests/clients/run.py [CLIENT …]    (all of them, if none is named)

Environments are made once under MINI_VLLM_CLIENTS (a cache folder), by the content of their pins: `pins/NAME.txt`, or
`node/package-lock.json`. What a client must be able to do stands in `checks/check_NAME.py` (or `.mjs`), which knows
nothing but the server's URL.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("MINI_VLLM_CLIENTS", Path.home() / ".cache" / "mini-vllm" / "clients"))
MODEL, KEY = "smollm2-135m", "secret"
CONTEXT = {"schemathesis": "96"}  # tokens; other clients get more. Junk requests may ask for all of it
SECONDS = 400  # for one client
CLIENTS = (
    *("openai", "node", "anthropic", "langchain-openai", "litellm", "instructor", "pydantic-ai", "llm", "lm-eval"),
    "openapi-python-client",
)
SERVE = "import sys; from mini_vllm.cli import main; sys.exit(main())"


def main(names: list[str]) -> int:
    """Run the checks of these clients; 1 if any fails."""
    chosen = names or [*CLIENTS, "schemathesis"]
    failed = []
    for context in sorted({CONTEXT.get(name, "2048") for name in chosen}, reverse=True):
        with serving(context) as url:
            for name in (name for name in chosen if CONTEXT.get(name, "2048") == context):
                begin = time.monotonic()
                is_good = check(name, url)
                print(f"{'ok  ' if is_good else 'FAIL'} {name} ({time.monotonic() - begin:.1f} s)", flush=True)
                failed += [] if is_good else [name]
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return bool(failed)


@contextlib.contextmanager
def serving(context: str) -> Iterator[str]:
    """The URL of a server, which ends with the block."""
    options = ["--port", "0", "--model", MODEL, "--max-model-len", context, "--api-key", KEY, "--shutdown-timeout", "1"]
    server = subprocess.Popen([sys.executable, "-c", SERVE, "serve", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if "is ready: " in line:
                yield line.split()[-1]
                break
        else:
            sys.exit("the server did not start")
    finally:
        server.terminate()
        server.wait(30)


def check(name: str, url: str) -> bool:
    """Whether a client does all that its script asks of it."""
    environment = {**os.environ, "MINI_VLLM_URL": url, "MINI_VLLM_KEY": KEY, "MINI_VLLM_MODEL": MODEL}
    environment.pop("PYTHONPATH", None)  # it is the server's
    if name == "node":
        shutil.copy(HERE / "checks" / "check_node.mjs", folder := make_node())
        return succeeds(["node", "check_node.mjs"], environment, folder)
    python = make_python(name)
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    with contextlib.ExitStack() as stack:
        folder = CACHE / f"run-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if not succeeds(
            [str(python), str(HERE / "checks" / f"check_{name.replace('-', '_')}.py")], environment, folder
        ):
            return False
        ours = HERE / "checks" / f"compare_{name.replace('-', '_')}.py"  # what needs our own engine beside it
        return not ours.exists() or succeeds([sys.executable, str(ours)], dict(os.environ), folder)


def succeeds(command: list[str], environment: dict[str, str], folder: Path) -> bool:
    """Run it; what it prints is shown if it fails."""
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired as error:
        print((error.stdout or b"").decode(errors="replace")[-8000:], f"not done after {SECONDS} s", sep="\n")
        return False
    if done.returncode:
        print(done.stdout.decode(errors="replace")[-8000:])
    return done.returncode == 0


def make_python(name: str) -> Path:
    """The interpreter of a client's environment."""
    pins = HERE / "pins" / f"{name}.txt"
    folder = CACHE / f"{name}-{digest(pins)}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if uv is not None:
            run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
            run(uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python), "-r", str(pins))
        else:
            run(sys.executable, "-m", "venv", str(folder))
            run(str(python), "-m", "pip", "install", "-qq", "--no-deps", "-r", str(pins))
        (folder / "complete").touch()
    return python


def make_node() -> Path:
    """The folder of the Node client."""
    lock = HERE / "node" / "package-lock.json"
    folder = CACHE / f"node-{digest(lock)}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(HERE / "node", folder)
        run("npm", "ci", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder))
        (folder / "complete").touch()
    return folder


def digest(path: Path) -> str:
    """Of what an environment is made from."""
    return hashlib.sha256(path.read_bytes() + sys.version.encode()).hexdigest()[:12]


def run(*command: str) -> None:
    """A step of making an environment."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
