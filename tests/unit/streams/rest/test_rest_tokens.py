"""One owner of a credential: the process itself, or the driver of a refresh, which its tasks ask."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from rest_api import Api, Reply, ids
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from token_tasks import two_tasks

from airflow_provider_rfr.exceptions import AuthenticationError, ReadInterrupted, SourceDefinitionError, SourceError
from airflow_provider_rfr.refresh.budget import BudgetServer, Heartbeat
from airflow_provider_rfr.store.leases import RefreshTokens
from airflow_provider_rfr.streams import RestStream
from airflow_provider_rfr.streams import tokens as module
from airflow_provider_rfr.streams.core import Page, ReadContext
from airflow_provider_rfr.streams.rest.stream import build_stream
from airflow_provider_rfr.streams.tokens import AccessToken, finish_redemptions, keep_refresh_tokens
from tests.soon import PATIENCE, SOON, wait_until
from tests.unit.messages import check_messages, raises

ROTATING = {
    "type": "oauth2",
    "grant": "refresh_token",
    "token_url": "/token",
    "client_id": "me",
    "refresh_token": "{{ config.refresh_token }}",
}
LOGIN = {
    "type": "session_token",
    "login": {"url": "/token", "json": {"user": "joe", "password": "{{ config.refresh_token }}"}},
    "token": {"path": "access_token"},
    "send_as": {"header": "X-Session"},
}
QUICK = {"max_retries": 3, "backoff": [{"type": "constant", "seconds": 0.05}]}


class OneAtATime:
    """Accepts the newest token alone, as after a login that ends the session before; a refresh token works once."""

    def __init__(self, api: Api) -> None:
        self.issued = 0
        self.valid = ""
        self.refusal = 401
        self._lock = threading.Lock()
        api.answer = self

    def __call__(self, asked: Any) -> Any:
        if asked.path.startswith("/token"):
            return self._issue(asked)
        sent = (asked.headers["Authorization"] or asked.headers["X-Session"] or "").removeprefix("Bearer ")
        if sent != self.valid:
            return Reply({"error": "token expired"}, self.refusal)
        return {"data": [{"id": asked.page}] if asked.page <= 5 else []}

    def _issue(self, asked: Any) -> Any:
        with self._lock:
            if asked.form.get("refresh_token", f"refresh-{self.issued}") != f"refresh-{self.issued}":
                return Reply({"error": "invalid_grant"}, 400)
            self.issued += 1
            self.valid = f"access-{self.issued}"
            return {"access_token": self.valid, "refresh_token": f"refresh-{self.issued}"}


def stream_of(url: str, authenticator: dict[str, Any], handler: dict[str, Any] = QUICK) -> RestStream:
    items = {"request": {"path": "/items"}, "records": {"path": "data"}, "error_handler": handler}
    items["paginator"] = {"type": "page_number"}
    definition = {"base_url": url, "authenticator": authenticator, "streams": {"items": items}}
    return build_stream(definition, "items", secrets={"refresh_token": "refresh-0"})


@contextmanager
def task_reading(stream: RestStream, server: BudgetServer) -> Iterator[Callable[[], Page]]:
    """Yield a function that reads the first page as a task does, which asks the driver for tokens."""
    stop = threading.Event()
    with closing(server.address.connect("numbers")) as budget, ThreadPoolExecutor(1) as pool:
        stream.bind(ReadContext(stop=stop, tokens=budget))
        try:
            yield lambda: pool.submit(stream.read_page, {}, None).result(SOON)
        finally:
            stop.set()


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/control.db"
    keep_refresh_tokens(lambda: RefreshTokens(url))
    return url


@pytest.mark.parametrize("authenticator", [ROTATING, LOGIN], ids=["rotating refresh token", "session"])
def test_tasks_in_two_processes_share_each_token(api: Api, server: BudgetServer, authenticator: dict[str, Any]) -> None:
    tokens, driver = OneAtATime(api), stream_of(api.url, authenticator)
    with two_tasks(server.address, stream_of, (api.url, authenticator), range(1, 5)) as read:
        assert read() == [[1, 2, 3, 4]] * 2
        assert tokens.issued == 1
        # Eight threads in two processes get a 401 for the same token.
        tokens.valid = "none"
        assert read() == [[1, 2, 3, 4]] * 2
        assert tokens.issued == 2
    assert ids(driver.read_page({}, 5).records) == [5], "the driver has the same token"
    assert tokens.issued == 2


def test_a_task_gets_the_error_of_the_driver_and_asks_no_endpoint_itself(api: Api, server: BudgetServer) -> None:
    api.answers(Reply({"error": "invalid_grant", "hint": "refresh-0"}, 400))
    stream = stream_of(api.url, ROTATING)
    with closing(server.address.connect("numbers")) as budget:
        stream.bind(ReadContext(tokens=budget))
        with raises(AuthenticationError) as error:
            stream.read_page({}, None)
    assert "refresh-0" not in str(error.value)
    assert api.paths == ["/token"]


def test_a_task_that_is_stopped_waits_for_no_token(api: Api, server: BudgetServer) -> None:
    begun, end = threading.Event(), threading.Event()

    def answer(asked: Any) -> Any:
        begun.set()
        end.wait(PATIENCE)
        return Reply({}, 400)

    api.answer = answer
    stream, stop = stream_of(api.url, ROTATING), threading.Event()
    with closing(server.address.connect("numbers")) as budget, ThreadPoolExecutor(1) as pool:
        stream.bind(ReadContext(stop=stop, tokens=budget))
        reading = pool.submit(stream.read_page, {}, None)
        assert begun.wait(PATIENCE)
        assert budget.heartbeat(Heartbeat("numbers", 0, 0, 0)) is False, "the connection is free meanwhile"
        stop.set()
        with pytest.raises(ReadInterrupted):
            reading.result(PATIENCE)
    end.set()


def test_a_thread_that_waits_for_the_token_of_another_ends_when_it_is_stopped(api: Api) -> None:
    begun, end = threading.Event(), threading.Event()

    def answer(asked: Any) -> Any:
        begun.set()
        end.wait(PATIENCE)
        return Reply({}, 400)

    api.answer = answer
    obtaining, waiting = (stream_of(api.url, LOGIN) for _ in range(2))
    context = ReadContext()
    waiting.bind(context)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(obtaining.read_page, {}, None)
        assert begun.wait(PATIENCE)
        context.stop.set()
        with pytest.raises(ReadInterrupted):
            waiting.read_page({}, None)
        end.set()
    assert api.paths == ["/token"]


def test_a_refresh_token_leaves_its_owner_in_no_form(api: Api) -> None:
    OneAtATime(api)
    stream = stream_of(api.url, ROTATING)
    stream.read_page({}, 1)
    token = stream.context.tokens.token(stream._requester.authenticator._credential, None, ReadContext())
    assert (token.value, token.refresh_token) == ("access-1", "refresh-1")
    assert "access-1" not in repr(token)
    assert "refresh-1" not in repr(token)
    assert b"refresh-1" not in pickle.dumps(token)
    assert pickle.loads(pickle.dumps(token)).value == "access-1"


def test_threads_that_wait_for_a_login_get_the_error_of_the_one_that_tried(api: Api) -> None:
    api.answers(Reply({"error": "wrong password"}, 403))
    stream = stream_of(api.url, LOGIN)

    def read(page: int) -> None:
        with pytest.raises(AuthenticationError, match="wrong password"):
            stream.read_page({}, page)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(1, 9)))
    assert len(api.paths) == 1


def test_a_token_that_expires_while_a_rate_limit_is_waited_for_is_renewed_after_each_wait(api: Api) -> None:
    tokens, limited = OneAtATime(api), iter(range(3))

    def answer(asked: Any) -> Any:
        accepted = tokens(asked)
        if accepted == {"data": [{"id": 3}]} and next(limited, None) is not None:
            tokens.valid = "none"
            return Reply({}, 429)
        return accepted

    api.answer = answer
    assert [record["id"] for record in stream_of(api.url, ROTATING).read_records()] == [1, 2, 3, 4, 5]
    assert tokens.issued == 4


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_are_refused_again_and_again_end_also_between_rate_limits(api: Api, status: int) -> None:
    tokens = OneAtATime(api)
    handler = {**QUICK, "max_rate_limit_wait": 1, "rules": [{"status": 403, "action": "RENEW"}]}
    limits = iter([Reply({}, 429)] * 2)

    def answer(asked: Any) -> Any:
        return tokens(asked) if asked.path.startswith("/token") else next(limits, Reply({}, status))

    api.answer = answer
    with raises(AuthenticationError):
        stream_of(api.url, ROTATING, handler).read_page({}, None)
    assert tokens.issued == 2


def test_a_rule_renews_the_credentials_once_a_token(api: Api) -> None:
    tokens = OneAtATime(api)
    tokens.refusal = 403
    handler = {**QUICK, "rules": [{"status": 403, "text": "expired", "action": "RENEW"}]}
    stream = stream_of(api.url, ROTATING, handler)
    stream.read_page({}, 1)
    tokens.valid = "none"
    with ThreadPoolExecutor(4) as pool:
        pages = list(pool.map(lambda page: stream.read_page({}, page), range(1, 5)))
    assert [number for page in pages for number in ids(page.records)] == [1, 2, 3, 4]
    assert tokens.issued == 2


def read_as_a_run(url: str, store: str, results: Any) -> None:
    """Read as a driver does, in a process of its own, with the refresh token that the connection has."""
    keep_refresh_tokens(lambda: RefreshTokens(store))
    try:
        results.put([record["id"] for record in stream_of(url, ROTATING).read_records()])
    except Exception as error:
        results.put(repr(error))


def test_later_and_simultaneous_runs_redeem_the_refresh_token_that_replaced_the_configured_one(
    api: Api, tmp_path: Path
) -> None:
    tokens, fresh = OneAtATime(api), multiprocessing.get_context("spawn")

    def answer(asked: Any) -> Any:
        # Several runs read at a time, so a token stays good.
        return tokens(asked) if asked.path == "/token" else {"data": [{"id": asked.page}] if asked.page <= 5 else []}

    api.answer = answer
    results, store = fresh.Queue(), f"sqlite:///{tmp_path}/control.db"
    for simultaneous in (1, 3, 1):
        runs = [fresh.Process(target=read_as_a_run, args=(api.url, store, results)) for _ in range(simultaneous)]
        for run in runs:
            run.start()
        assert [results.get(timeout=PATIENCE) for _ in runs] == [[1, 2, 3, 4, 5]] * simultaneous
        for run in runs:
            run.join(PATIENCE)
    redeemed = [asked.form["refresh_token"] for asked in api.asked if asked.path == "/token"]
    assert redeemed == [f"refresh-{number}" for number in range(5)]
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"rfr_refresh_tokens" in written
    assert b"refresh-" not in written


def test_a_refresh_token_is_kept_before_its_token_is_used(api: Api, tmp_path: Path) -> None:
    tokens, fresh = OneAtATime(api), multiprocessing.get_context("spawn")
    results, store = fresh.Queue(), f"sqlite:///{tmp_path}/control.db"
    killed, run = fresh.Process(target=read_as_a_run, args=(api.url, store, results)), None

    def answer(asked: Any) -> Any:
        if asked.path != "/token" and run is None:
            killed.kill()
            return Reply({}, 500)
        return tokens(asked)

    api.answer = answer
    killed.start()
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    run = fresh.Process(target=read_as_a_run, args=(api.url, store, results))
    run.start()
    assert results.get(timeout=PATIENCE) == [1, 2, 3, 4, 5]
    run.join(PATIENCE)
    redeemed = [asked.form["refresh_token"] for asked in api.asked if asked.path == "/token"]
    assert redeemed == ["refresh-0", "refresh-1"]


def test_a_replaced_refresh_token_that_nothing_keeps_is_warned_of_once(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = OneAtATime(api)
    stream = stream_of(api.url, ROTATING)
    stream.read_page({}, 1)
    tokens.valid = "none"
    stream.read_page({}, 1)
    assert tokens.issued == 2
    assert caplog.text.count("the new one is lost when this process ends: name a control store") == 1
    assert "refresh-1" not in caplog.text


def test_no_refresh_token_is_redeemed_while_the_store_that_may_hold_a_newer_one_is_away(
    api: Api, tmp_path: Path
) -> None:
    OneAtATime(api)
    keep_refresh_tokens(lambda: RefreshTokens(f"sqlite:///{tmp_path}/no/such/folder/control.db"))
    with raises(SourceError):
        stream_of(api.url, ROTATING).read_page({}, 1)
    assert api.paths == []


def test_a_refresh_token_of_an_earlier_run_is_in_no_error(api: Api, store: str) -> None:
    RefreshTokens(store).keep(f"{api.url}/token refresh-0", "kept-canary")

    def answer(asked: Any) -> Any:
        return Reply({"error": f"refresh token {asked.form['refresh_token']} was revoked"}, 400)

    api.answer = answer
    with raises(AuthenticationError) as error:
        stream_of(api.url, ROTATING).read_page({}, None)
    assert api.asked[0].form["refresh_token"] == "kept-canary"
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("seconds", [0, -0.001, -3600, 0.05, float("nan")])
def test_a_token_without_a_usable_lifetime_is_used_until_it_is_refused(seconds: float) -> None:
    assert not AccessToken.lasting("value", seconds).has_expired
    assert AccessToken.lasting("value", seconds).seconds_left == float("inf")


def test_a_task_gets_a_token_that_expires_at_once(api: Api, server: BudgetServer) -> None:
    def answer(asked: Any) -> Any:
        return {"access_token": "access", "expires_in": 0.001} if asked.path == "/token" else {"data": [{"id": 1}]}

    api.answer = answer
    with task_reading(stream_of(api.url, ROTATING), server) as read:
        assert ids(read().records) == [1]
    assert api.paths.count("/token") == 1


@pytest.mark.parametrize("asks_driver", [True, False], ids=["a task", "the process itself"])
def test_a_login_that_returns_the_refused_token_is_asked_once_for_another_one(
    api: Api, server: BudgetServer, monkeypatch: pytest.MonkeyPatch, asks_driver: bool
) -> None:
    monkeypatch.setattr(module, "_FAILURE_SECONDS", PATIENCE)
    api.answer = lambda asked: (
        {"access_token": "access"} if asked.path == "/token" else Reply({"error": "no right to read items"}, 401)
    )
    stream, stop = stream_of(api.url, LOGIN), threading.Event()
    with closing(server.address.connect("numbers")) as budget, ThreadPoolExecutor(4) as pool:
        stream.bind(ReadContext(stop=stop, tokens=budget) if asks_driver else ReadContext(stop=stop))
        reading = [pool.submit(stream.read_page, {}, page) for page in range(1, 5)]
        try:
            errors = [task.exception(SOON) for task in reading]
        finally:
            stop.set()
    assert {type(error) for error in errors} == {AuthenticationError}
    check_messages(str(errors[0]))
    assert api.paths.count("/token") == 2


def test_a_task_takes_the_token_that_the_login_returns_again_after_it_expired(api: Api, server: BudgetServer) -> None:
    def answer(asked: Any) -> Any:
        return {"access_token": "access", "expires_in": 1} if asked.path == "/token" else {"data": [{"id": 1}]}

    api.answer = answer
    with task_reading(stream_of(api.url, ROTATING), server) as read:
        wait_until(lambda: read() is not None and api.paths.count("/token") > 1)
    assert api.paths.count("/token") == 2


def test_a_refresh_token_that_could_not_be_kept_is_redeemed_next(
    api: Api, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(RefreshTokens):
        def keep(self, grant: str, refresh_token: str) -> bool:
            raise PoolTimeoutError("no connection is free")

    OneAtATime(api)
    monkeypatch.setattr(module, "_FAILURE_SECONDS", 0.0)
    keep_refresh_tokens(lambda: Failing(store))
    stream = stream_of(api.url, ROTATING)
    with pytest.raises(PoolTimeoutError):
        stream.read_page({}, 1)
    keep_refresh_tokens(lambda: RefreshTokens(store))
    assert ids(stream.read_page({}, 1).records) == [1]
    redeemed = [asked.form["refresh_token"] for asked in api.asked if asked.path == "/token"]
    assert redeemed == ["refresh-0", "refresh-1"]
    assert RefreshTokens(store).load(f"{api.url}/token refresh-0") == "refresh-2"


def test_streams_with_scopes_of_their_own_redeem_one_refresh_token_in_turn(api: Api) -> None:
    tokens = OneAtATime(api)

    def answer(asked: Any) -> Any:
        return tokens(asked) if asked.path == "/token" else {"data": [{"id": asked.page}]}

    api.answer = answer

    def read(scope: int) -> list[Any]:
        return ids(stream_of(api.url, {**ROTATING, "scopes": [f"scope-{scope}"]}).read_page({}, 1).records)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(6))) == [[1]] * 6
    redeemed = [asked.form["refresh_token"] for asked in api.asked if asked.path == "/token"]
    assert redeemed == [f"refresh-{number}" for number in range(6)]


def test_the_end_of_the_process_waits_for_a_refresh_token_that_is_redeemed(
    api: Api, server: BudgetServer, store: str
) -> None:
    tokens, begun, end = OneAtATime(api), threading.Event(), threading.Event()

    def answer(asked: Any) -> Any:
        begun.set()
        assert end.wait(PATIENCE)
        return tokens(asked)

    api.answer = answer
    stream, stop = stream_of(api.url, ROTATING), threading.Event()
    with closing(server.address.connect("numbers")) as budget, ThreadPoolExecutor(2) as pool:
        stream.bind(ReadContext(stop=stop, tokens=budget))
        reading = pool.submit(stream.read_page, {}, None)
        assert begun.wait(PATIENCE)
        stop.set()
        server.close()
        with pytest.raises(ReadInterrupted):
            reading.result(PATIENCE)
        finishing = pool.submit(finish_redemptions)
        with pytest.raises(TimeoutError):
            finishing.result(0.3)
        end.set()
        finishing.result(PATIENCE)
    assert RefreshTokens(store).load(f"{api.url}/token refresh-0") == "refresh-1"


@pytest.mark.parametrize("authenticator", [{"type": "none"}, {"type": "bearer", "token": "fixed"}])
def test_a_rule_that_renews_is_refused_where_nothing_can_be_renewed(authenticator: dict[str, Any]) -> None:
    handler = {"rules": [{"status": 403, "action": "RENEW"}]}
    expected = (
        r"streams\.items\.error_handler\.rules\.0\.action: RENEW needs credentials that can be obtained again.*"
        r"use an authenticator of type oauth2 or session_token"
    )
    with pytest.raises(SourceDefinitionError, match=expected):
        stream_of("https://api.example.com", authenticator, handler)
