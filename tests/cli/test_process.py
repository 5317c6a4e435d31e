"""The command line as a process: quick help, Ctrl-C, closed pipes, terminals that cannot show every character."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from mini_vllm.cli.render import complain, make_lossless, note, progress, write

PROGRAM = [sys.executable, "-c", "import sys; from mini_vllm.cli import main; sys.exit(main())"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "MINI_VLLM_THREADS": "1", **more}


def start(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), **options
    )


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from mini_vllm.cli.app import main; main(['--help']);"
        "heavy = {'numpy', 'torch', 'transformers', 'fastapi', 'uvicorn', 'tokenizers', 'jinja2', 'huggingface_hub'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
        times.append(time.perf_counter() - begin)
        assert ran.stdout.splitlines()[-1] == "[]", ran.stderr
    assert min(times) < 1.5  # 0.2 s on an idle machine


@pytest.mark.parametrize(
    "arguments",
    [["generate", "-p", "The fox", "-n", "3"], ["generate", "-p", "x", "--speculative", "self"], ["inspect"]],
)
def test_nothing_of_torch_is_needed(model, arguments) -> None:
    code = """if True:
        import sys
        from mini_vllm.cli import main
        class Without:
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] in ("torch", "transformers", "safetensors", "gguf", "sentencepiece"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Without())
        sys.exit(main())"""
    command = [sys.executable, "-c", code, *arguments, "-m", model]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert ran.returncode == 0, ran.stderr
    assert "finish reason: length" in ran.stderr or "op_table native" in ran.stdout


def test_ctrl_c_is_clean_while_the_program_is_being_imported() -> None:
    code = """if True:
        import sys
        from mini_vllm.cli import main
        class Interrupting:
            def find_spec(self, name, path, target=None):
                if name == "typer":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupting())
        sys.exit(main())"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "interrupted\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["inspect"], ["generate", "-n", "3", "-p", "The fox"], ["--help"]])
def test_a_full_disk_is_one_line(model, arguments) -> None:
    more = ["-m", model] if len(arguments) > 1 or arguments == ["inspect"] else []
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*PROGRAM, *arguments, *more], stdout=full, stderr=subprocess.PIPE, env=environment())
    lines = ran.stderr.decode().splitlines()
    assert (ran.returncode, lines[-1]) == (1, "error: cannot write the output: No space left on device")
    assert "Traceback" not in ran.stderr.decode()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_as_good_as_the_null_device(model, closed) -> None:
    line = 'exec "$0" "$@" ' + closed
    arguments = ["tokenize", "-m", model, "-"]
    ran = subprocess.run(
        ["sh", "-c", line, *PROGRAM, *arguments], input=b"The fox", capture_output=True, env=environment()
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert bool(ran.stdout) is (closed in ("<&-", "2>&-"))


@pytest.mark.parametrize("command", ["generate", "batch"])
def test_ctrl_c_is_clean(model, command) -> None:
    arguments = ["-m", model, "-n", "100000", "--ignore-eos", "--no-kv-cache"]
    if command == "generate":
        process = start("generate", *arguments, "-p", "The fox")
    else:
        process = start("batch", *arguments, "-", "--concurrency", "2", stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b"The fox\n" * 2000)
        process.stdin.close()
        process.stdin = None
    assert process.stdout is not None
    assert process.stdout.read(1)  # the first text or line is out, and much is still to come
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "interrupted"
    assert b"Traceback" not in err


def test_a_closed_pipe_is_no_error(model) -> None:
    with start("generate", "-m", model, "-n", "200", "--ignore-eos", "-p", "The fox") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=20) == 0
    assert b"Traceback" not in err and b"BrokenPipe" not in err


@pytest.mark.parametrize("command", ["generate", "batch", "inspect", "tokenize", "chat"])
def test_cli_07_an_ascii_terminal_never_fails_a_request(model, command) -> None:
    text = "日本語 🫠 é"
    arguments = {
        "generate": ["-p", text, "-n", "12", "--ignore-eos", "--chat"],
        "batch": ["-", "-n", "12", "--ignore-eos"],
        "tokenize": ["-p", text],
        "chat": ["-n", "4", "--footer"],
        "inspect": [],
    }[command]
    ran = subprocess.run(
        [*PROGRAM, command, "-m", model, *arguments],
        input=text.encode("utf-8") if command in ("batch", "chat") else b"",
        capture_output=True,
        env=environment(LC_ALL="C", PYTHONIOENCODING="ascii:surrogateescape", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    )
    assert b"Traceback" not in ran.stderr
    assert ran.stdout.isascii() and ran.stderr.isascii()
    assert ran.returncode == 0, ran.stderr
    if command == "tokenize":
        assert b"round trip: yes" in ran.stdout and b"\\u65e5" in ran.stdout


def test_cli_07_output_under_an_ascii_encoding_is_escaped(model) -> None:
    ran = subprocess.run(
        [*PROGRAM, "tokenize", "-m", model, "-p", "日本 é"],
        capture_output=True,
        env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="1"),
    )
    assert ran.returncode == 0, ran.stderr
    assert b"text: '\\u65e5\\u672c \\xe9'" in ran.stdout
    assert b"round trip: yes" in ran.stdout


def test_cli_07_a_failing_print_is_not_an_error(monkeypatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left")

    monkeypatch.setattr("sys.stderr", Broken())
    note("remark")
    complain("error: x")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write("é日", stream=ascii_only)
    make_lossless(ascii_only)
    write("é", stream=ascii_only)
    assert ascii_only.buffer.getvalue() == b"\\xe9\\u65e5\\xe9"


def test_progress_is_one_line_where_nobody_is_looking(capsys) -> None:
    with progress("fetching x", unit="bytes") as bar:
        bar.update(1, 2048)
        bar.update(2048, 2048)
    with progress("generating") as bar:
        bar.update(1, 2)
    assert capsys.readouterr() == ("", "fetching x (2.0 KiB)\n")


def test_stats_reads_a_server(run) -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/stats" else 404)
            self.end_headers()
            self.wfile.write(b'{"active_requests": 3, "queue_depth": 0}')

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            assert run("stats", "--url", url).out == "active_requests  3\nqueue_depth      0\n"
            assert run("stats", "--url", url + "/", "--json").out == '{"active_requests": 3, "queue_depth": 0}\n'
            missing = run("stats", "--url", url + "/v2")
            assert (missing.code, missing.err.count("\n")) == (2, 1)
        finally:
            server.shutdown()
            thread.join()


def test_serve_answers_and_ends_with_the_first_ctrl_c(model) -> None:
    import urllib.request

    process = start("serve", model, "--port", "0")
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    url = line.split()[-1]
    with urllib.request.urlopen(url + "/health", timeout=10) as response:
        assert response.status == 200
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert b"Traceback" not in err


def test_srv_29_a_busy_port_is_said_before_the_model_is_fetched(run) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        ran = run("serve", "no-such-owner/no-such-model", "--port", port)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1 and f"port {port} on 127.0.0.1 is in use" in ran.err
