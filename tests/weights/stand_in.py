"""A small server that speaks enough of a model hub and of a package index: `python stand_in.py ROOT`.

ROOT/hub/OWNER/NAME/… are repositories, ROOT/index/PACKAGE/… packages. It prints its port, and writes one line per
request to ROOT/requests. If ROOT/cut exists, the next download ends after as many bytes as that file says; while
ROOT/stall exists, downloads from a file's beginning pause there (ten seconds at most).
"""

import contextlib
import hashlib
import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/models/([\w.\-]+/[\w.\-]+)(?:/(revision|tree)/([\w.\-]+))?")
_FILE = re.compile(r"/([\w.\-]+/[\w.\-]+)/resolve/([\w.\-]+)/(.+)")
_INDEX = re.compile(r"/simple/([\w.\-]+)/")
_PACKAGE_FILE = re.compile(r"/files/([\w.\-]+)/([\w.\-]+)")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        with (self.root / "requests").open("a") as log:
            log.write(f"{self.command} {path} {self.headers.get('Range', '')}".strip() + "\n")
        if match := _API.fullmatch(path):
            self.api(self.root / "hub" / match[1], match[1], match[2], match[3] or "main")
        elif match := _FILE.fullmatch(path):
            self.file(self.root / "hub" / match[1] / match[3], revision=match[2])
        elif match := _INDEX.fullmatch(path):
            self.index(self.root / "index" / match[1])
        elif match := _PACKAGE_FILE.fullmatch(path):
            self.file(self.root / "index" / match[1] / match[2], revision="main")
        else:
            self.answer(404, b"")

    def api(self, folder: Path, name: str, kind: str | None, revision: str) -> None:
        if not folder.is_dir():
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (folder / ".gated").exists():
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif revision not in ("main", COMMIT):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            names = {str(path.relative_to(folder)): path.stat().st_size for path in files}
            tree = [{"type": "file", "path": file, "size": size, "oid": "0" * 40} for file, size in names.items()]
            siblings = [{"rfilename": file, "size": size} for file, size in names.items()]
            body = tree if kind == "tree" else {"id": name, "sha": COMMIT, "siblings": siblings}
            self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def file(self, path: Path, *, revision: str) -> None:
        if not path.is_file():
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        start = self.headers.get("Range", "")
        if start and not (self.root / "no-ranges").exists():
            first = int(start.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self.answer(206, content[first:], headers)
        else:
            self.answer(200, content, headers)

    def index(self, folder: Path) -> None:
        if not folder.is_dir():
            self.answer(404, b"")
            return
        links = "".join(f'<a href="../../files/{folder.name}/{file.name}">{file.name}</a>' for file in folder.iterdir())
        self.answer(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), {"Content-Type": "text/html"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.root / "cut"
        if self.command != "HEAD" and "ETag" in (headers or {}) and cut.exists():
            body = body[: int(cut.read_text())]
            cut.unlink()
            self.close_connection = True
        if self.command == "HEAD":
            return
        stall = self.root / "stall"
        if status == 200 and "ETag" in (headers or {}) and stall.exists():
            first = int(stall.read_text())
            self.wfile.write(body[:first])
            body = body[first:]
            for _ in range(200):
                if not stall.exists():
                    break
                time.sleep(0.05)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    Handler.root = Path(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
