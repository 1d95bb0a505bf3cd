"""The metadata service of one instance, version 2, as a program in the instance's network; what it tells is in a file.

    python -I -S imds.py FILE        # {"/latest/meta-data/instance-id": "i-…", …}; read again for every question

It returns when it listens, and goes on by itself.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = "169.254.169.254"
TOKEN = "/latest/api/token"
LONGEST_S = 21600


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], file: str) -> None:
        self.file = file
        self.tokens: dict[str, float] = {}
        """Token -> when it ends."""
        super().__init__(address, Handler)

    def give_token(self, seconds: int) -> str:
        token = secrets.token_urlsafe(40)
        self.tokens[token] = time.monotonic() + seconds
        return token

    def accepts(self, token: str) -> bool:
        return self.tokens.get(token, 0.0) > time.monotonic()

    def tells(self, path: str) -> str | None:
        """The text at a path; of a folder the names in it; None where there is nothing."""
        with open(self.file, encoding="utf-8") as file:
            known: dict[str, str] = json.load(file)
        if path in known:
            return known[path]
        start = path.rstrip("/") + "/"
        names = [one[len(start) :].partition("/") for one in sorted(known) if one.startswith(start)]
        return "\n".join(dict.fromkeys(name + slash for name, slash, _ in names)) or None


class Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.headers.get("X-Forwarded-For"):
            self.answer(403)  # it came through a proxy
        elif self.path != TOKEN:
            self.answer(405)
        elif not seconds.isdigit() or not 1 <= int(seconds) <= LONGEST_S:
            self.answer(400)
        else:
            self.answer(200, self.server.give_token(int(seconds)), [("X-aws-ec2-metadata-token-ttl-seconds", seconds)])

    def do_GET(self) -> None:
        if not self.server.accepts(self.headers.get("X-aws-ec2-metadata-token", "")):
            self.answer(401)
            return
        text = self.server.tells(self.path)
        if text is None:
            self.answer(404)
        else:
            self.answer(200, text)

    def answer(self, status: int, text: str = "", headers: list[tuple[str, str]] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers or []:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    service = Service((ADDRESS, 80), sys.argv[1])
    if os.fork():
        os._exit(
            0
        )  # listening; the instance's first process adopts the other, as a shutdown expects of what runs there
    for handle in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)
    service.serve_forever()
