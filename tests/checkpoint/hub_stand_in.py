"""A stand-in for the Hugging Face Hub: the part of its HTTP API that a download and an upload of a model use."""

import base64
import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


@dataclass
class Repository:
    """Files of each commit, and the commit of each branch and tag."""

    commits: dict[str, Files] = field(default_factory=dict[str, Files])
    refs: dict[str, str] = field(default_factory=dict[str, str])

    def commit(self, files: Files, ref: str = "main") -> str:
        text = repr((len(self.commits), sorted(files.items())))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha], self.refs[ref] = dict(files), sha
        return sha


@dataclass
class Hub:
    """State of the stand-in.

    Attributes:
        repositories: Repositories by name.
        requests: Method and path of each request so far.
        tokens: The `Authorization` header of each request that had one.
        failure: Status and error code of the answers to requests whose path contains the third item.
        cut: Number of bytes after which the next answer to a GET of a weight file ends; None for all.
        ranges: The `Range` header of each request that had one.
    """

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict[str, Repository])
    objects: Files = field(default_factory=dict[str, bytes])
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    tokens: list[str] = field(default_factory=list[str])
    failure: tuple[int, str, str] | None = None
    cut: int | None = None
    ranges: list[str] = field(default_factory=list[str])

    def downloaded(self) -> set[str]:
        return {path.split("/resolve/", 1)[1].split("/", 1)[1] for _, path in self.requests if "/resolve/" in path}


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._handle()

    do_GET = do_POST = do_PUT = do_HEAD

    def _handle(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append((self.command, path))
        if token := self.headers.get("Authorization"):
            self.hub.tokens.append(token)
        if self.hub.failure is not None and self.hub.failure[2] in path:
            return self._error(*self.hub.failure[:2])
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if parts[0] == "objects":
            self.hub.objects[parts[1]] = body
            return self._json({})
        if parts[:2] == ["api", "models"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
        else:
            name, rest = "/".join(parts[:2]).removesuffix(".git"), parts[2:]
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._error(404, "RepoNotFound")
        return self._answer(name, repository, rest, body)

    def _answer(self, name: str, repository: Repository, rest: list[str], body: bytes) -> None:
        if rest == ["info", "lfs", "objects", "batch"]:
            objects = [
                {**item, "actions": {"upload": {"href": f"{self.hub.endpoint}/objects/{item['oid']}"}}}
                for item in json.loads(body)["objects"]
            ]
            return self._json({"transfer": "basic", "objects": objects})
        match rest[0] if rest else "revision":
            case "preupload":
                files = [
                    {"path": file["path"], "uploadMode": "lfs" if _is_large(file["path"]) else "regular",
                     "shouldIgnore": False} for file in json.loads(body)["files"]
                ]  # fmt: skip
                return self._json({"files": files})
            case "commit":
                return self._commit(name, repository, body)
            case "resolve":
                return self._file(repository, rest[1], "/".join(rest[2:]))
            case _:  # information about a revision, or its files
                pass
        revision = "/".join(rest[1:]) or "main"
        sha = repository.refs.get(revision, revision)
        if sha not in repository.commits:
            return self._error(404, "RevisionNotFound")
        files = repository.commits[sha]
        if rest[:1] == ["tree"]:
            return self._json([_describe(path, data) for path, data in files.items()])
        return self._json({"id": name, "sha": sha, "siblings": [{"rfilename": path} for path in files]})

    def _create(self, request: dict[str, Any]) -> None:
        name = f"{request.get('organization') or 'user'}/{request['name']}"
        self.hub.repositories[name] = Repository()
        self.hub.repositories[name].commit({".gitattributes": b""})
        self._json({"url": f"{self.hub.endpoint}/{name}", "name": name, "id": "0" * 24})

    def _commit(self, name: str, repository: Repository, body: bytes) -> None:
        items = [json.loads(line) for line in body.splitlines()]
        files = dict(repository.commits[repository.refs["main"]])
        for item in items:
            value = item["value"]
            if item["key"] == "header" and value.get("parentCommit") not in (None, repository.refs["main"]):
                return self._error(412, "Conflict")
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        sha = repository.commit(files)
        return self._json({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{sha}"})

    def _file(self, repository: Repository, revision: str, path: str) -> None:
        sha = repository.refs.get(revision, revision)
        data = repository.commits[sha][path]
        headers = {"X-Repo-Commit": sha, "ETag": f'"{_etag(path, data)}"', "Accept-Ranges": "bytes"}
        if _is_large(path):
            headers |= {"X-Linked-Etag": f'"{_etag(path, data)}"', "X-Linked-Size": str(len(data))}
        start = 0
        if given := self.headers.get("Range"):
            self.hub.ranges.append(given)
            start = int(given.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if start else 200, data[start:], headers, cut=_is_large(path))

    def _json(self, answer: Any) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": f"{code} message"})

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut and self.hub.cut is not None:
            data, self.hub.cut = data[: self.hub.cut], None
            self.close_connection = True
        self.wfile.write(data)


def _etag(path: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if _is_large(path) else hashlib.sha1(data).hexdigest()


def _describe(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
    if _is_large(path):
        entry["lfs"] = {"oid": _etag(path, data), "size": len(data), "pointerSize": 134}
    return entry


@contextmanager
def serve_hub() -> Generator[Hub]:
    """Run the stand-in on a free port of this machine."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
