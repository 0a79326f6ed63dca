"""One request: within its time whatever the server does, and nothing told that could be a secret."""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_rfr.http.client import Answer, Client, Limits, NoAnswer, Request
from airflow_provider_rfr.http.redaction import host_of
from airflow_provider_rfr.http.sockets import AddressGuard, Deadline
from tests.soon import SOON
from tests.unit.messages import check_messages
from tests.webhook_receiver import Receiver, Reply, receiver, serve_tls, write_certificates

GUARD = AddressGuard.of(["127.0.0.1", "localhost"])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BAD_GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\nContent-Length: 4\r\n\r\nnope"


def send(
    url: str,
    *,
    seconds: float = 5.0,
    client: Client | None = None,
    guard: AddressGuard = GUARD,
    verify: bool | str = True,
    **headers: str,
) -> Answer | NoAnswer:
    return (client or Client()).send(Request("POST", url, headers, b'{"a":1}', verify), Deadline(seconds), guard)


def raw(server: Receiver, write: Callable[[socket.socket], None]) -> None:
    server.answers(Reply(raw=write))


def test_an_answer_comes_whole(server: Receiver) -> None:
    server.answers(Reply(201, b"made", {"X-Thing": "1"}))
    answer = send(server.url)
    assert (answer.status, answer.body, answer.headers["x-thing"]) == (201, b"made", "1")
    (got,) = server.received
    assert (got.body, got.headers["content-type"]) == (b'{"a":1}', "application/json")
    assert got.headers["user-agent"].startswith("airflow-provider-rfr/")


def test_a_header_of_the_endpoint_replaces_ours_in_any_case(server: Receiver) -> None:
    send(server.url, **{"content-TYPE": "text/plain", "USER-agent": "me"})
    headers = server.received[0].headers
    assert (headers["content-type"], headers["user-agent"]) == ("text/plain", "me")
    message = Request("POST", server.url, {"content-TYPE": "text/plain"}, b"{}").message()
    assert message is not None
    assert [text for name, text in message.headers.items() if name.lower() == "content-type"] == ["text/plain"]


def test_one_connection_serves_many_requests_until_it_is_idle(server: Receiver) -> None:
    client = Client()
    for _ in range(3):
        assert send(server.url, client=client).status == 200
    assert len({request.connection for request in server.received}) == 1
    time.sleep(1.1)
    send(server.url, client=client)
    assert len({request.connection for request in server.received}) == 2


@pytest.mark.parametrize("interim", [b"103 Early Hints", b"102 Processing"])
def test_an_interim_answer_is_not_the_answer_and_leaves_nothing_to_the_next_request(
    server: Receiver, interim: bytes
) -> None:
    client = Client()
    hints = b"HTTP/1.1 " + interim + b"\r\nLink: </x>\r\n\r\n"
    last = OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    raw(server, lambda sock: sock.sendall(2 * hints + last))
    first = send(server.url, client=client)
    server.answers(500)
    second = send(server.url, client=client)
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert (first.status, first.body, second.status) == (200, b"ok", 500)


def test_endless_interim_answers_are_cut_at_the_timeout(server: Receiver) -> None:
    def write(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(100 * b"HTTP/1.1 103 Early Hints\r\n\r\n")

    raw(server, write)
    answer = send(server.url, seconds=0.5)
    assert isinstance(answer, NoAnswer)
    assert answer.reason == "timeout"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(server: Receiver, status: int) -> None:
    with receiver() as other:
        server.answers(Reply(status, b"x" * 100, {"Location": other.url}))
        assert send(server.url, Authorization="Bearer hunter22").status == status
        assert not other.received


def test_nothing_of_the_environment_is_used(server: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password hunter22\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert send(server.url).status == 200
    assert "authorization" not in server.received[0].headers


def drip(*chunks: bytes, pause: float = 0.1) -> Callable[[socket.socket], None]:
    def write(sock: socket.socket) -> None:
        for chunk in chunks:
            sock.sendall(chunk)
            time.sleep(pause)

    return write


@pytest.mark.parametrize(
    "write",
    [
        drip(*(bytes([byte]) for byte in OK * 3)),
        drip(b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 200),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", *[b"x"] * 100),
        drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 100),
        drip(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 100),
        drip(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 200_000, pause=0),
        lambda sock: time.sleep(3),
    ],
    ids=["status line", "headers", "body", "chunks", "continue", "continue at full speed", "silence"],
)
def test_whatever_drips_is_cut_at_the_deadline(server: Receiver, write: Callable[[socket.socket], None]) -> None:
    raw(server, write)
    began = time.monotonic()
    outcome = send(server.url, seconds=1.0)
    assert 0.9 < time.monotonic() - began < SOON
    assert (outcome.reason, outcome.permanent) == ("timeout", False)
    check_messages(outcome.detail, f"127.0.0.1:{server.port} ")


@pytest.mark.parametrize(
    ("write", "status"),
    [
        (drip(b"HTTP/1.1 201 OK\r\nContent-Length: 100\r\n\r\n", *[b"x"] * 100), 201),
        (drip(b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 100), 400),
        (drip(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", pause=0), 200),
        (drip(BAD_GZIP, pause=0), 200),
    ],
    ids=["drips", "chunks", "breaks off", "can't be decoded"],
)
def test_where_the_status_is_what_matters_a_body_is_not_waited_for(
    server: Receiver, write: Callable[[socket.socket], None], status: int
) -> None:
    raw(server, write)
    client, request = Client(), Request("POST", server.url, {}, b"{}")
    answer = client.send(request, Deadline(3), GUARD, Limits(body=0.3))
    assert isinstance(answer, Answer)
    assert (answer.status, answer.body) == (status, b"")
    server.answers(Reply(200, b"whole"))
    answer = client.send(request, Deadline(5), GUARD, Limits(body=5))
    assert isinstance(answer, Answer)
    assert answer.body == b"whole"


def test_a_server_that_reads_nothing_is_cut_at_the_deadline() -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        request = Request("POST", f"http://127.0.0.1:{deaf.getsockname()[1]}/", {}, b"x" * 20_000_000)
        outcome = Client().send(request, Deadline(1.0), GUARD)
        assert outcome.reason == "timeout"


def test_a_server_that_accepts_no_connection_is_cut_at_the_deadline() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        time.sleep(0.1)
        outcome = send(f"http://127.0.0.1:{full.getsockname()[1]}/", seconds=1.0)
        assert isinstance(outcome, NoAnswer)
        assert outcome.reason == "timeout"
        for sock in waiting:
            sock.close()


def test_a_resolver_that_hangs_is_cut_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    real, over = socket.getaddrinfo, threading.Event()

    def hanging(host, port, *more):
        if more[-1] & socket.AI_NUMERICHOST:
            return real(host, port, *more)
        over.wait(SOON)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    outcome = send("http://slow.example.com/", seconds=1.0)
    over.set()
    assert outcome.reason == "timeout"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x00\x00 not http at all\r\n\r\n",
        b"",
        BAD_GZIP,
    ],
    ids=["short", "bad chunk", "negative chunk", "short chunk", "header bomb", "long header", "noise", "close", "gzip"],
)
def test_a_broken_answer_is_no_answer(server: Receiver, answer: bytes) -> None:
    raw(server, drip(*filter(None, [answer]), pause=0))
    outcome = send(server.url)
    assert (outcome.reason, outcome.permanent) == ("connection", False)
    assert "/hook" not in outcome.detail


def test_no_more_is_read_than_64_kb(server: Receiver) -> None:
    sent = [0]

    def endless(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not server.closing.is_set():
            sent[0] += sock.send(b"x" * 65536)

    raw(server, endless)
    client = Client()
    assert len(send(server.url, client=client).body) == Limits().max_bytes
    server.answers(200)
    assert send(server.url, client=client).body == b"ok"
    assert sent[0] < 20_000_000


def test_a_gzip_bomb_is_not_unpacked(server: Receiver) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000, 9)
    server.answers(Reply(200, bomb, {"Content-Encoding": "gzip"}))
    assert len(send(server.url).body) == Limits().max_bytes
    server.answers(Reply(200, gzip.compress(b"hello"), {"Content-Encoding": "gzip"}))
    assert send(server.url).body == b"hello"
    assert server.received[0].headers["accept-encoding"] == "identity"


def packed(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data[:4]) + packer.flush(zlib.Z_SYNC_FLUSH) + packer.compress(data[4:]) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", packed(b"1\n2\n3\n4\n", 31)),
        ("X-GZIP", packed(b"1\n2\n", 31) + packed(b"3\n4\n", 31)),
        ("deflate", packed(b"1\n2\n3\n4\n", 15)),
        ("deflate", packed(b"1\n2\n3\n4\n", -15)),
        ("deflate, gzip", packed(packed(b"1\n2\n3\n4\n", 15), 31)),
    ],
    ids=["gzip", "two parts", "deflate", "deflate without a header", "twice"],
)
def test_a_packed_body_counts_only_if_it_is_whole(server: Receiver, coding: str, body: bytes) -> None:
    headers = {"Content-Encoding": coding}
    padded = body + b"\0" * 70_000 if "gzip" in coding else body
    for whole, content in ((body, b"1\n2\n3\n4\n"), (padded, b"1\n2\n3\n4\n"), (b"", b"")):
        server.answers(Reply(200, whole, headers))
        assert send(server.url).body == content
    for broken in (body[:-1], body[: len(body) * 3 // 4], body + b"\x1f\x8b\x08\xff"):
        server.answers(Reply(200, broken, headers))
        outcome = send(server.url)
        assert (outcome.reason, outcome.permanent, "is cut" in outcome.detail) == ("connection", False, True)


def test_refused_connections_and_unknown_names_are_told_in_words() -> None:
    refused = send("http://127.0.0.1:1/secret/path")
    detail = "no complete answer from http://127.0.0.1:1: Connection refused"
    assert (refused.reason, refused.detail) == ("connection", detail)
    unknown = send("http://no-such-host.invalid/secret", seconds=20)
    assert (unknown.reason, unknown.detail.rpartition(": ")[2]) == ("connection", "the name can't be resolved")


def test_a_private_address_that_is_not_allowed_is_refused_for_good(server: Receiver) -> None:
    outcome = send(server.url, guard=AddressGuard())
    assert (outcome.reason, outcome.permanent) == ("address", True)
    check_messages(outcome.detail)
    assert not server.received


@pytest.mark.parametrize("url", ["http://[::1", "ftp://x/", "http://a b/", "http://\udcff/", "http://x:99999/"])
def test_an_impossible_address_is_refused_without_being_shown(url: str) -> None:
    outcome = send(url + "hunter22")
    assert isinstance(outcome, NoAnswer)
    assert "hunter22" not in outcome.detail


def test_a_host_for_people_is_all_that_is_told() -> None:
    assert host_of("https://u:hunter22@h.example:8443/services/T0?x=hunter22") == "https://h.example:8443"
    assert host_of("https://[2001:db8::1]/x") == "https://[2001:db8::1]"
    assert host_of("nonsense") == "the address"


def test_urllib3_logs_no_address(server: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        send(server.url + "/hunter22?token=hunter22")
        raw(server, drip(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", pause=0))
        send(server.url + "/hunter22")
    assert "hunter22" not in caplog.text


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(server: Receiver, certificates: Path) -> Receiver:
    serve_tls(server, certificates)
    return server


def test_tls_is_checked_by_the_host_s_name_and_not_by_the_address(secure: Receiver, certificates: Path) -> None:
    client, verify = Client(), str(certificates / "ca.pem")
    assert send(f"https://localhost:{secure.port}/", client=client, verify=verify).status == 200
    assert secure.names == ["localhost"]
    by_address = send(f"https://127.0.0.1:{secure.port}/", client=client, verify=verify)
    assert (by_address.reason, len(secure.received)) == ("tls", 1)
    check_messages(by_address.detail)


def test_what_one_request_trusts_the_next_one_of_the_same_client_does_not(secure: Receiver, certificates: Path) -> None:
    client, url = Client(), f"https://localhost:{secure.port}/"
    for verify, reason in ((str(certificates / "ca.pem"), None), (True, "tls"), (False, None), (True, "tls")):
        assert getattr(send(url, client=client, verify=verify), "reason", None) == reason


def test_a_certificate_of_nobody_we_know_is_refused(secure: Receiver) -> None:
    outcome = send(f"https://localhost:{secure.port}/hunter22", Authorization="Bearer hunter22")
    assert (outcome.reason, secure.received) == ("tls", [])
    check_messages(outcome.detail)


def test_a_handshake_that_never_ends_is_cut_at_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        outcome = send(f"https://127.0.0.1:{silent.getsockname()[1]}/", seconds=1.0)
        assert outcome.reason == "timeout"


def test_a_dripping_answer_in_tls_is_cut_at_the_deadline(secure: Receiver, certificates: Path) -> None:
    raw(secure, drip(*(bytes([byte]) for byte in OK * 3)))
    outcome = send(f"https://localhost:{secure.port}/", seconds=1.0, verify=str(certificates / "ca.pem"))
    assert outcome.reason == "timeout"


def test_plain_http_at_a_port_of_tls_and_the_reverse_fail_soon(server: Receiver, certificates: Path) -> None:
    outcome = send(f"https://127.0.0.1:{server.port}/")
    assert outcome.reason == "tls"


def test_a_forked_process_does_not_speak_on_its_parent_s_connection(server: Receiver) -> None:
    client = Client()
    send(server.url, client=client)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if send(server.url, client=client).status == 200 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert send(server.url, client=client).status == 200


def test_the_address_of_an_ipv6_host_is_understood() -> None:
    outcome = send("http://[::1]:1/", guard=AddressGuard.of(["::1"]))
    assert outcome.reason == "connection"
    assert send("http://[::1]:1/", guard=AddressGuard()).reason == "address"
