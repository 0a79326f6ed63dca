"""A small real endpoint for webhooks, and the parts that tests of delivery have in common."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
from airflow_provider_rfr.store.deliveries import Delivery, EndpointKey, Selection
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.block import Endpoint, parse_triggers
from airflow_provider_rfr.webhooks.dispatcher import Dispatcher
from airflow_provider_rfr.webhooks.operations import DeadLetter, DeliverySummary
from airflow_provider_rfr.webhooks.outbox import delivery_id, enqueue

LAKE, TABLE = "rfr", "raw.orders"
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass
class Received:
    """One request, as the endpoint got it."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    connection: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """``raw`` writes to the connection itself, and closes it."""

    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: Callable[[Any], None] | None = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away in the middle are what some tests are about."""


class Receiver:
    """Answers by a function of the request, or with replies that are used up; the last one holds for ever."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.names: list[str] = []
        self.most_at_once = 0
        self.closing = threading.Event()
        self._answer: Callable[[Received], Reply] = lambda request: Reply()
        self._lock = threading.Lock()
        self._now = 0
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.received]

    def answers(self, *replies: Reply | int) -> None:
        left = [Reply(reply) if isinstance(reply, int) else reply for reply in replies]

        def answer(request: Received) -> Reply:
            with self._lock:
                return left.pop(0) if len(left) > 1 else left[0]

        self._answer = answer

    def answers_by(self, answer: Callable[[Received], Reply]) -> None:
        self._answer = answer

    def take(self, request: Received) -> Reply:
        with self._lock:
            self.received.append(request)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            return self._answer(request)
        finally:
            with self._lock:
                self._now -= 1

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiver() -> Iterator[Receiver]:
    endpoint = Receiver()
    try:
        yield endpoint
    finally:
        endpoint.close()


def _handler_of(endpoint: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = endpoint.take(Received(self.path, headers, body, time.time(), self.client_address[1]))
            if reply.raw is not None:
                self.close_connection = True
                try:
                    reply.raw(self.connection)
                except OSError:
                    pass
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_PUT = do_PATCH = do_GET = do_POST

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def write_certificates(folder: Path) -> Path:
    """A certificate authority (``ca.pem``), and a certificate of its for ``localhost`` alone (``server.pem``)."""
    now = datetime.now(timezone.utc)

    def certificate(name: str, issuer: str, key: Any, signer: Any, *, ca: bool) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.KeyUsage(True, False, False, False, False, ca, ca, False, False), critical=True)
            .sign(signer, hashes.SHA256())
        )

    root, leaf = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(certificate("test ca", "test ca", root, root, ca=True).public_bytes(pem))
    private = leaf.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    served = certificate("localhost", "test ca", leaf, root, ca=False).public_bytes(pem)
    (folder / "server.pem").write_bytes(private + served)
    return folder


def serve_tls(server: Receiver, folder: Path) -> None:
    """From here on the receiver speaks TLS, at ``https://localhost:PORT``; names that clients ask for are kept."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    context.sni_callback = lambda sock, name, context: server.names.append(str(name))
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True, do_handshake_on_connect=False)


class FakeClock:
    """A clock that goes on only when somebody sleeps, or when it is told to."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.time = now
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def key(trigger: str = "hook", table: str = TABLE) -> EndpointKey:
    return EndpointKey(LAKE, table, trigger)


def endpoint(url: str, name: str = "hook", *, interval: str | None = None, **fields: Any) -> Endpoint:
    """One endpoint, for a dispatcher that may call loopback."""
    document = {"url": url, "timeout": "5s", **fields}
    if not {"payload", "payloadTemplate", "preset"} & set(document):
        document["payload"] = {"id": "{{delivery_id}}", "sequence": "{{sequence}}"}
    block: dict[str, Any] = {"config": {name: document}}
    return parse_triggers({**block, **({"interval": interval} if interval else {})}).config[name]


def loopback_dispatcher(store: ControlStore, endpoints: Mapping[EndpointKey, Endpoint], **options: Any) -> Dispatcher:
    """A dispatcher where the installation allows loopback, on which all receivers of tests are."""
    return Dispatcher(store, endpoints, **{"allowed_hosts": LOOPBACK, **options})


def events(*sequences: int, table: str = TABLE, collections: Sequence[str] = ("orders",)) -> list[CommitEvent]:
    return [
        CommitEvent(
            commit_id=f"commit-{number}",
            target=table,
            lake=LAKE,
            target_name="shop/orders",
            run_id=f"run-{number}",
            sequence=number,
            snapshot_id=1000 + number,
            committed_at=datetime.fromtimestamp(1_700_000_000 + number, timezone.utc),
            collection_names=tuple(collections),
            bindings=tuple(Binding(table, collection, 10, 1000) for collection in collections),
            fetched_at_min=datetime.fromtimestamp(number, timezone.utc),
            fetched_at_max=datetime.fromtimestamp(number + 100, timezone.utc),
        )
        for number in sequences
    ]


class Post:
    """A store, and dispatchers for it whose time goes as fast as they sleep."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.store = open_store(f"sqlite:///{folder}/control.db", clock=self.clock)
        self.endpoints: dict[Any, Endpoint] = {}

    def owe(self, url: str, *sequences: int, name: str = "hook", table: str = "raw.orders", **fields: Any) -> None:
        self.endpoints[key(name, table)] = endpoint(url, name, **fields)
        self.commit(*sequences, table=table)

    def commit(self, *sequences: int, **event: Any) -> None:
        enqueue(self.store, events(*sequences, **event), self.endpoints)

    def dispatcher(self, **options: Any) -> Dispatcher:
        return loopback_dispatcher(self.store, self.endpoints, **options)

    def deliver(self, **options: Any) -> DeliverySummary:
        return self.dispatcher(**options).deliver_due()

    def drain(self, **options: Any) -> DeliverySummary:
        return self.dispatcher(**options).deliver_due(until_empty=True)

    def hop(self) -> None:
        """Deliver, and go to the moment when there is more to do, until there is nothing."""
        while (due := self.deliver().next_due) is not None:
            self.clock.time = max(self.clock.time, due.timestamp()) + 0.001

    def letters(self, **options: Any) -> list[DeadLetter]:
        """Deliver, and return the dead letters that somebody is told of."""
        letters: list[DeadLetter] = []
        self.drain(on_dead=letters.append, **options)
        return letters

    def rows(self, **selection: Any) -> list[Delivery]:
        return operations.deliveries(self.store, Selection(**selection), None)

    def row(self, sequence: int = 1, name: str = "hook") -> Delivery:
        (row,) = self.rows(ids=[delivery_id(f"commit-{sequence}", name)])
        return row
