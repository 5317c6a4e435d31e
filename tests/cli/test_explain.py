"""`mini-vllm explain`, from a file and from a server."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from scheduling.test_golden import preemption_of_the_youngest

from mini_vllm.scheduling.export import dump


def recorded() -> str:
    rig = preemption_of_the_youngest()
    rig.run()
    return dump(rig.trace)


def test_a_file_is_explained(run, tmp_path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(recorded())
    ran = run("explain", "B", "--trace", file)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("B: 8 prompt tokens, at most 12 to write.\nIt took 15.00 s until it ended (length):")
    unknown = run("explain", "Z", "--trace", file)
    assert unknown.code == 2 and "the trace has no request 'Z'; it knows 3" in unknown.err
    assert run("explain", "B", "--trace", tmp_path / "none").code == 2
    empty = run("explain", "", "--trace", file)
    assert empty.code == 2 and "request_id is empty; give the id of an answer" in empty.err


def test_a_server_is_asked(run) -> None:
    text = recorded().encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/trace" else 404)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            ran = run("explain", "A", "--url", f"http://127.0.0.1:{server.server_port}")
            assert ran.code == 0 and "It never waited." in ran.out
            wrong = run("explain", "A", "--url", f"http://127.0.0.1:{server.server_port}/v1")
            assert wrong.code == 2 and "give the address of a mini-vLLM server without a path" in wrong.err
        finally:
            server.shutdown()
            thread.join()
    gone = run("explain", "A", "--url", f"http://127.0.0.1:{server.server_port}")
    assert gone.code == 2 and "no mini-vLLM server answers" in gone.err
