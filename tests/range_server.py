"""An HTTP server of files that lists folders and answers requests for ranges, and can be told to misbehave."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote


@dataclass
class Served:
    """What a server does, and what it was asked for."""

    root: Path
    url: str = ""
    #: The query that each request has to have.
    query: str = ""
    lists: bool = True
    has_ranges: bool = True
    answers: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    listings: list[str] = field(default_factory=list)
    #: HTML that each listing has behind its own links.
    more_links: str = ""
    #: Whether it says how long files are, and only of what it sends, not of the whole file.
    sends_length: bool = True
    tells_size: bool = True
    #: Methods and names of all requests for files.
    asked: list[str] = field(default_factory=list)
    #: Status of the next answers, by name; 0: an answer that is cut off.
    fails: dict[str, list[int]] = field(default_factory=dict)
    #: Whether a name is not given at all.
    refuses: Callable[[str], bool] = lambda name: False


@contextmanager
def serving(root: Path) -> Iterator[Served]:
    """Serves a folder until the block ends."""
    served = Served(root)
    served.answers.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits until the client has said that it got the headers

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            served.answers.wait()
            name, _, query = self.path.partition("?")
            path = served.root / unquote(name).strip("/")
            if query != served.query:
                self._send(403, b"", with_body=with_body)
            elif path.is_dir() and not name.endswith("/"):
                self._send(301, b"", {"Location": f"{name}/?{query}"}, with_body=with_body)
            elif path.is_dir() and with_body and served.fails.get(name):
                self._send(served.fails[name].pop(0), b"", with_body=with_body)
            elif path.is_dir() and served.lists:
                served.listings += [name] if with_body else []
                names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir())
                links = "".join(f'<li><a href="{quote(one)}">{html.escape(one)}</a>' for one in ["../", *names])
                links += served.more_links
                self._send(200, f"<html><body>{links}</body></html>".encode(), with_body=with_body)
            elif path.is_file():
                served.asked.append(f"{self.command} {name}")
                statuses = served.fails.get(name) if with_body else None
                status = 503 if served.refuses(name) and with_body else statuses.pop(0) if statuses else 200
                if status >= 400:
                    self._send(status, b"", with_body=with_body)
                else:
                    self._send_file(path, with_body=with_body, is_cut=not status)
            else:
                self._send(404, b"", with_body=with_body)

        def _send_file(self, path: Path, *, with_body: bool, is_cut: bool = False) -> None:
            data, status, headers = path.read_bytes(), 200, {"Accept-Ranges": "bytes"}
            headers["Last-Modified"] = formatdate(path.stat().st_mtime, usegmt=True)
            # As nginx makes it. fsspec of 2024 tells this, and not Last-Modified.
            headers["ETag"] = f'"{int(path.stat().st_mtime):x}-{len(data):x}"'
            asked = self.headers.get("Range", "")
            if asked.startswith("bytes=") and served.has_ranges and with_body:
                start, _, stop = asked.removeprefix("bytes=").partition("-")
                size = len(data) if served.tells_size else "*"
                headers["Content-Range"] = f"bytes {asked.removeprefix('bytes=')}/{size}"
                data, status = data[int(start) : int(stop) + 1 if stop else None], 206
            served.sent += len(data) if with_body else 0
            self._send(status, data, headers, with_body=with_body, is_cut=is_cut)

        def _send(
            self,
            status: int,
            data: bytes,
            headers: dict[str, str] | None = None,
            *,
            with_body: bool,
            is_cut: bool = False,
        ) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            if served.sends_length or status != 200:
                self.send_header("Content-Length", str(len(data)))
            else:
                self.close_connection = True  # which ends the answer
                self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection |= is_cut
            if with_body:
                self.wfile.write(data[: len(data) // 2] if is_cut else data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        served.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
