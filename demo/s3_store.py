"""``python -m demo.s3_store --folder FOLDER --bucket lake``: an S3-compatible store for demos, which survives restarts.

Moto answers the requests. It keeps objects in memory, so each is also written to a file before its request is
answered, and read again at the next start. Signatures are not checked; the access key's id is, if
``S3_ACCESS_KEY_ID`` is set. One process, one account, no versions: for trying out, not for keeping.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

# Before moto reads it: this host's own name is no bucket's.
os.environ.setdefault("S3_IGNORE_SUBDOMAIN_BUCKETNAME", "true")

Environ = dict[str, Any]
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
HEALTH = "/_health"
DRAFT = ".draft"
CHANGING = frozenset({"PUT", "POST", "DELETE"})


class Folder:
    """The store's objects as files: one folder per bucket, one file per object, the key in its first line."""

    def __init__(self, folder: Path) -> None:
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        self._backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._folder = folder
        self._lock = threading.Lock()

    def load(self, bucket: str) -> int:
        """Make the bucket and everything that the folder holds; return the number of objects."""
        (self._folder / bucket).mkdir(parents=True, exist_ok=True)
        count = 0
        for place in sorted(path for path in self._folder.iterdir() if path.is_dir()):
            self._backend.create_bucket(place.name, "us-east-1")
            for file in sorted(place.iterdir()):
                if file.suffix == DRAFT:
                    file.unlink()
                    continue
                key, _, value = file.read_bytes().partition(b"\n")
                self._backend.put_object(place.name, json.loads(key), value)
                count += 1
        return count

    def follow(self, bucket: str, key: str | None) -> None:
        """Write the present state of an object, or of all of a bucket's."""
        with self._lock:
            place = self._folder / bucket
            present = self._backend.buckets.get(bucket)
            if present is None:
                shutil.rmtree(place, ignore_errors=True)
            elif key is not None:
                place.mkdir(exist_ok=True)
                self._write(place, key, present.keys.get(key))
            else:
                place.mkdir(exist_ok=True)
                file_names = {file_name(name) for name in present.keys}
                for file in [file for file in place.iterdir() if file.name not in file_names]:
                    file.unlink()

    def _write(self, place: Path, key: str, found: Any) -> None:
        file = place / file_name(key)
        if found is None:
            file.unlink(missing_ok=True)
            return
        draft = file.with_suffix(DRAFT)
        with draft.open("wb") as output:
            output.write(json.dumps(key).encode() + b"\n" + found.value)
            output.flush()
            os.fsync(output.fileno())
        draft.replace(file)


def file_name(key: str) -> str:
    """Return a hash: a key may be longer than a file's name, and hold characters that no name may."""
    return hashlib.sha256(key.encode()).hexdigest()


class StoreApplication:
    """A WSGI application that passes requests to moto, then writes their effects to the folder."""

    def __init__(self, moto: Application, folder: Folder, key_id: str | None) -> None:
        self._moto = moto
        self._folder = folder
        self._key_id = key_id

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == HEALTH:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"ok\n"]
        if self._key_id is not None and key_id_of(environ) != self._key_id:
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InvalidAccessKeyId</Code><Message>The key is not this store's</Message></Error>"]
        if environ["REQUEST_METHOD"] not in CHANGING:
            return self._moto(environ, start_response)
        bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
        parts = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        answer = list(self._moto(environ, start_response))
        if bucket and "partNumber" not in parts and "uploads" not in parts:
            self._folder.follow(decoded(bucket), decoded(key) or None)
        return answer


def key_id_of(environ: Environ) -> str | None:
    """Return the id of the access key that a request names, in its header or its address."""
    query = parse_qs(environ.get("QUERY_STRING", "")).get("X-Amz-Credential", [""])[0]
    match = re.search(r"Credential=([^/,\s]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    return match.group(1) if match else query.partition("/")[0] or None


def decoded(path: str) -> str:
    """Decode a path, which WSGI hands over as Latin-1."""
    return path.encode("latin-1").decode("utf-8")


def make_store(folder: Path, bucket: str, key_id: str | None) -> StoreApplication:
    """Return the application, with the folder's objects loaded."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    mirror = Folder(folder)
    count = mirror.load(bucket)
    print(f"{count} objects in {folder}", flush=True)
    return StoreApplication(DomainDispatcherApplication(create_backend_app), mirror, key_id)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m demo.s3_store", description="An S3-compatible store for demos.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--folder", type=Path, required=True, help="where the objects are kept")
    parser.add_argument("--bucket", required=True, help="a bucket to begin with")
    options = parser.parse_args(arguments)
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import run_simple

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    store = make_store(options.folder, options.bucket, os.environ.get("S3_ACCESS_KEY_ID"))
    run_simple(options.host, options.port, store, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
