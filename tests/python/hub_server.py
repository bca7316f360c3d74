"""A small server that speaks as much of the Hub's HTTP API as reading a model's config needs."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves files of repositories; a context manager.

    Attributes:
        files: Content by (repo_id, revision, filename).
        gated: Repositories whose terms were not accepted.
        status: A status for every answer, e.g. 503, or None.
        asked: (method, path) of every request so far.
        sent: Bytes of the bodies so far.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}
        self.gated: set[str] = set()
        self.status: int | None = None
        self.asked: list[tuple[str, str]] = []
        self.sent = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path ``/org/name/resolve/REVISION/FILE``."""
        if self.status is not None:
            return self.status, {}, b""
        repo, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, filename = rest.partition("/")
        repos = {name for name, _, _ in self.files} | self.gated
        if repo in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        if repo not in repos:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if revision == COMMIT:
            revision = "main"
        if not any(key[:2] == (repo, revision) for key in self.files):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        commit = {"X-Repo-Commit": COMMIT if revision == "main" else COMMIT[::-1]}
        body = self.files.get((repo, revision, filename))
        if body is None:
            return 404, {"X-Error-Code": "EntryNotFound", **commit}, b""
        return 200, {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', **commit}, body

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                self._answer(with_body=True)

            def _answer(self, *, with_body: bool) -> None:
                server.asked.append((self.command, self.path))
                status, headers, body = server.answer(self.path)
                wanted = self.headers.get("Range")
                if status == 200 and wanted and with_body:
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    status, body = 206, body[int(first) : int(last) + 1]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if with_body:
                    server.sent += len(body)
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return None

        return Handler
