"""Tokens of manifests have one owner, which obtains them for all tasks."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from manifest_api import KEY, Api, Asked, needs_cdk, rows, shop_with
from token_tasks import two_tasks

from airflow_provider_rfr.exceptions import AuthenticationError, SourceError
from airflow_provider_rfr.refresh.budget import BudgetServer
from airflow_provider_rfr.store.leases import RefreshTokens
from airflow_provider_rfr.streams import ReadContext
from airflow_provider_rfr.streams import tokens as tokens_module
from airflow_provider_rfr.streams.loader import load_stream, load_streams
from airflow_provider_rfr.streams.tokens import keep_refresh_tokens
from tests.soon import PATIENCE, SOON, wait_until
from tests.unit.messages import check_messages, raises

pytestmark = needs_cdk

SINGLE_USE = {
    "type": "OAuthAuthenticator",
    "token_refresh_endpoint": "{{ config['url'] }}/token",
    "client_id": "me",
    "client_secret": "secret-of-the-client",
    "refresh_token": "{{ config['api_key'] }}",
    "refresh_token_updater": {
        "refresh_token_config_path": ["api_key"],
        "access_token_config_path": ["access_token"],
        "token_expiry_date_config_path": ["token_expiry_date"],
    },
}
REUSABLE = {name: value for name, value in SINGLE_USE.items() if name != "refresh_token_updater"}
SESSION = {
    "type": "SessionTokenAuthenticator",
    "expiration_duration": "PT1H",
    "session_token_path": ["access_token"],
    "login_requester": {
        "type": "HttpRequester",
        "url_base": "{{ config['url'] }}",
        "path": "token",
        "http_method": "POST",
        "request_body_json": {"user": "joe", "password": "{{ config['api_key'] }}"},
    },
    "request_authentication": {
        "type": "ApiKey",
        "inject_into": {"type": "RequestOption", "inject_into": "header", "field_name": "X-Session"},
    },
}


class OneAtATime:
    """Accepts the newest token alone; a refresh token works once."""

    def __init__(self, api: Api) -> None:
        self.issued = 0
        self.valid = ""
        self.redeemed: list[str] = []
        self._lock = threading.Lock()
        api.serve = self

    def __call__(self, asked: Asked) -> Any:
        if asked.path == "/token":
            with self._lock:
                return self._issue(asked)
        sent = asked.headers.get("Authorization") or asked.headers.get("X-Session") or ""
        if sent.removeprefix("Bearer ") != self.valid:
            return 401, {"error": "token expired"}
        page = int(asked.query.get("page", 1))
        return 200, {"data": rows(8)[(page - 1) * 3 : page * 3]}

    def _issue(self, asked: Asked) -> Any:
        self.redeemed.append(asked.form().get("refresh_token", ""))
        if self.redeemed[-1] not in ("", KEY if not self.issued else f"refresh-canary-{self.issued}"):
            return 400, {"error": "invalid_grant"}
        self.issued += 1
        self.valid = f"access-canary-{self.issued}"
        return 200, {"access_token": self.valid, "refresh_token": f"refresh-canary-{self.issued}", "expires_in": 3600}


def source_of(api: Api, authenticator: dict[str, Any], **requester: Any) -> dict[str, Any]:
    manifest = shop_with("customers")
    manifest["definitions"]["requester"] |= {"authenticator": copy.deepcopy(authenticator), **requester}
    return api.source(manifest)


RENEWING = {
    "error_handler": {
        "type": "DefaultErrorHandler",
        "response_filters": [{"type": "HttpResponseFilter", "http_codes": [401], "action": "REFRESH_TOKEN_THEN_RETRY"}],
    }
}


@pytest.mark.parametrize("authenticator", [SINGLE_USE, SESSION], ids=["single-use refresh token", "session"])
def test_tasks_in_two_processes_share_each_token(api: Api, server: BudgetServer, authenticator: dict[str, Any]) -> None:
    tokens = OneAtATime(api)
    source = source_of(api, authenticator, **RENEWING)
    driver = load_stream(source, "customers")
    renewed = 1 if authenticator is SESSION else 2
    with two_tasks(server.address, load_stream, (source, "customers"), [None, 2]) as read:
        assert read() == [[1, 2, 3, 4, 5, 6]] * 2
        assert tokens.issued == 1
        if renewed == 2:
            # Both get a 401 for the same token; the CDK renews no session before its time.
            tokens.valid = "none"
        assert read() == [[1, 2, 3, 4, 5, 6]] * 2
    assert len(driver.read_page({}, 3).records) == 2, "the driver has the same token"
    assert tokens.issued == renewed


@pytest.mark.parametrize("authenticator", [SINGLE_USE, REUSABLE, SESSION], ids=["single use", "reusable", "session"])
def test_streams_of_a_source_share_the_token_whatever_parameters_they_have(
    api: Api, authenticator: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = OneAtATime(api)
    source = source_of(api, authenticator)
    [customers] = source["manifest"]["streams"]
    customers["retriever"]["requester"] = {**source["manifest"]["definitions"]["requester"], "path": "customers"}
    others = [{**copy.deepcopy(customers), "name": name, "$parameters": {"name": name}} for name in ("one", "two")]
    source["manifest"]["streams"] = others
    for stream in load_streams(source).values():
        assert len(stream.read_page({}, None).records) == 3
    assert tokens.issued == 1
    printed = capsys.readouterr()
    assert "canary" not in printed.out + printed.err


def test_a_later_run_redeems_the_refresh_token_that_replaced_the_configured_one(api: Api, tmp_path: Path) -> None:
    tokens = OneAtATime(api)
    keep_refresh_tokens(lambda: RefreshTokens(f"sqlite:///{tmp_path}/control.db"))
    for run in range(3):
        # Another client secret makes it another credential, as in another process, with the same refresh token.
        authenticator = {**SINGLE_USE, "client_secret": f"secret-{run}"}
        assert len(load_stream(source_of(api, authenticator), "customers").read_page({}, None).records) == 3
    assert tokens.redeemed == [KEY, "refresh-canary-1", "refresh-canary-2"]


def test_a_task_gets_the_error_of_the_driver(api: Api, server: BudgetServer) -> None:
    api.serve = lambda asked: (400, {"error": "invalid_grant", "hint": KEY})
    stream = load_stream(source_of(api, SINGLE_USE), "customers")
    with closing(server.address.connect("numbers")) as budget:
        stream.bind(ReadContext(tokens=budget))
        with raises(AuthenticationError) as caught:
            stream.read_page({}, None)
    assert KEY not in str(caught.value)
    assert api.asked == ["/token"]


def test_a_refresh_token_of_an_earlier_run_is_in_no_error(
    api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def serve(asked: Asked) -> Any:
        if asked.path == "/token":
            return 200, {"access_token": "access-canary", "refresh_token": "next-canary", "expires_in": 3600}
        return 400, {"error": "kept-canary was revoked"}

    api.serve = serve
    says_why = {"type": "HttpResponseFilter", "http_codes": [400], "error_message": "{{ response['error'] }}"}
    handler = {"type": "DefaultErrorHandler", "response_filters": [{**says_why, "action": "FAIL"}]}
    store = RefreshTokens(f"sqlite:///{tmp_path}/control.db")
    store.keep(f"{api.url}/token {KEY}", "kept-canary")
    keep_refresh_tokens(lambda: store)
    with raises(SourceError) as caught:
        load_stream(source_of(api, SINGLE_USE, error_handler=handler), "customers").read_page({}, None)
    assert "canary" not in str(caught.value) + caplog.text


def test_a_task_gets_a_token_that_expires_at_once(api: Api, server: BudgetServer) -> None:
    def serve(asked: Asked) -> Any:
        return 200, {"access_token": "access", "expires_in": 0} if asked.path == "/token" else {"data": rows(2)}

    api.serve = serve
    stream, stop = load_stream(source_of(api, REUSABLE), "customers"), threading.Event()
    with closing(server.address.connect("numbers")) as budget, ThreadPoolExecutor(1) as pool:
        stream.bind(ReadContext(stop=stop, tokens=budget))
        reading = pool.submit(stream.read_page, {}, None)
        try:
            assert len(reading.result(SOON).records) == 2
        finally:
            stop.set()
    assert api.asked.count("/token") == 1


def test_a_login_that_returns_the_refused_token_is_asked_once_for_another_one(
    api: Api, server: BudgetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "_FAILURE_SECONDS", PATIENCE)
    issued = 200, {"access_token": "canary-0815", "expires_in": 3600}
    api.serve = lambda asked: issued if asked.path == "/token" else (401, {"error": "no right to read customers"})
    stream, stop = load_stream(source_of(api, REUSABLE, **RENEWING), "customers"), threading.Event()
    with closing(server.address.connect("numbers")) as budget, ThreadPoolExecutor(1) as pool:
        stream.bind(ReadContext(stop=stop, tokens=budget))
        reading = pool.submit(stream.read_page, {}, None)
        try:
            error = reading.exception(SOON)
        finally:
            stop.set()
    assert type(error) is AuthenticationError
    check_messages(str(error))
    assert api.asked.count("/token") == 2


@pytest.mark.parametrize(
    "authenticator", [REUSABLE, {**SESSION, "expiration_duration": "PT2S"}], ids=["OAuth", "login"]
)
def test_a_task_takes_the_token_that_the_login_returns_again_after_it_expired(
    api: Api, server: BudgetServer, authenticator: dict[str, Any]
) -> None:
    issued = {"access_token": "access", "expires_in": 2}
    api.serve = lambda asked: (200, issued if asked.path == "/token" else {"data": rows(2)})
    stream, stop = load_stream(source_of(api, authenticator), "customers"), threading.Event()
    with closing(server.address.connect("numbers")) as budget, ThreadPoolExecutor(1) as pool:
        stream.bind(ReadContext(stop=stop, tokens=budget))
        try:
            wait_until(lambda: pool.submit(stream.read_page, {}, None).result(SOON) and api.asked.count("/token") > 1)
        finally:
            stop.set()
    assert api.asked.count("/token") == 2
