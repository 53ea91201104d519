"""A small HTTP server that answers as OpenAI-compatible ones do; a completion is a function of prompt and seed."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """`failures` are statuses that the next requests get; `choices_limit` is the most choices of an answer; `requests`
    are (path, headers, body) of all requests, `unknown` names that are refused in a body, `ending` is laid over each
    choice, `most_at_once` how many were open together."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.failures: list[int] = []
        self.choices_limit = 1000
        self.delay_s = 0.0
        self.unknown: set[str] = set()
        self.ending: dict[str, Any] = {}
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.open = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def completion_of(prompt: str, seed: int) -> str:
    """A sum's answer, wrong for one seed in three."""
    total = sum(map(int, prompt.partition("=")[0].split("+")[-2:]))
    wrong = hashlib.sha256(str(seed).encode()).digest()[0] % 3 == 0
    return f"Let me think.\nAnswer: {total + wrong}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append((self.path, dict(self.headers), body))
            failure = server.failures.pop(0) if server.failures else None
            server.open += 1
            server.most_at_once = max(server.most_at_once, server.open)
        time.sleep(server.delay_s)
        with server.lock:
            server.open -= 1
        if unknown := sorted(server.unknown & body.keys()):
            self._answer(400, {"error": {"message": f"Unrecognized request argument supplied: {unknown[0]}"}})
        elif failure:
            self._answer(failure, {"error": {"message": f"no luck: {failure}"}})
        else:
            self._answer(200, _answer_to(self.path, body, server.choices_limit, server.ending))

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "0.01")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _answer_to(path: str, body: dict[str, Any], limit: int, ending: dict[str, Any]) -> dict[str, Any]:
    chat = path == "/v1/chat/completions"
    prompt = body["messages"][-1]["content"] if chat else body["prompt"]
    count = min(body["n"], limit)
    texts = [completion_of(prompt, body["seed"] + index) for index in range(count)]
    finish = "length" if body["max_tokens"] < 5 else "stop"
    choices = [
        {"index": index, "finish_reason": finish}
        | ({"message": {"content": text}} if chat else {"text": text})
        | ending
        for index, text in enumerate(texts)
    ]
    return {"choices": choices[::-1], "usage": {"completion_tokens": 7 * count}}


@contextmanager
def endpoint_server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
