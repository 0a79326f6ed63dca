"""How credentials get into requests, and how fetched ones are renewed."""

from __future__ import annotations

import base64
import itertools
import time

import pytest
from rest_api import QUICK, Reply, ids

from airflow_provider_rfr.exceptions import AuthenticationError, SourceDefinitionError
from tests.unit.messages import raises

GOOD = {"data": [{"id": 1}]}
OAUTH = {"type": "oauth2", "token_url": "/token", "client_id": "me", "client_secret": "{{ config.secret }}"}
SESSION = {
    "type": "session_token",
    "login": {"url": "/login", "json": {"user": "joe", "password": "{{ config.secret }}"}},
    "token": {"path": "session.id"},
    "send_as": {"header": "X-Session"},
}
SECRETS = {"secret": "s3cr3t"}


def authenticated(make, source_authenticator, **more):
    source = {"authenticator": source_authenticator, "defaults": {"error_handler": QUICK}}
    return make(source=source, secrets=SECRETS, **more)


@pytest.mark.parametrize(
    ("authenticator", "header", "value"),
    [
        ({"type": "api_key", "value": "{{ config.secret }}", "send_as": {"header": "X-Key"}}, "X-Key", "s3cr3t"),
        ({"type": "bearer", "token": "{{ config.secret }}"}, "Authorization", "Bearer s3cr3t"),
        (
            {"type": "basic", "username": "joe", "password": "{{ config.secret }}"},
            "Authorization",
            "Basic " + base64.b64encode(b"joe:s3cr3t").decode(),
        ),
        ({"type": "none"}, "Authorization", None),
    ],
)
def test_fixed_credentials_are_sent_with_each_request(api, make, authenticator, header, value):
    api.answers(GOOD)
    authenticated(make, authenticator).read_page({}, None)
    assert api.asked[0].headers[header] == value


def test_a_key_in_the_query_is_sent_and_not_told(api, make):
    api.answers(GOOD)
    key = {"type": "api_key", "value": "{{ config.secret }}", "send_as": {"query": "key"}}
    page = authenticated(make, key, request={"path": "/items", "query": {"a": 1}}).read_page({}, None)
    assert api.asked[0].query == {"a": "1", "key": "s3cr3t"}
    assert page.request == "GET /items?a=1"


def test_a_stream_s_own_authenticator_replaces_the_source_s(api, make):
    api.answers(GOOD)
    authenticated(make, {"type": "bearer", "token": "a"}, authenticator={"type": "none"}).read_page({}, None)
    assert api.asked[0].headers["Authorization"] is None


def test_an_empty_credential_is_refused_before_the_first_request(make):
    with raises(SourceDefinitionError):
        make(source={"authenticator": {"type": "bearer", "token": "{{ config.t }}"}}, secrets={"t": ""})


class TokenApi:
    """Accepts only the newest token it gave."""

    def __init__(self, api, **extra):
        self.numbers = itertools.count(1)
        self.valid = None
        self.extra = extra
        self.api = api
        api.answer = self

    def __call__(self, asked):
        if asked.path.startswith(("/token", "/login")):
            self.valid = f"token-{next(self.numbers)}"
            return {"access_token": self.valid, "session": {"id": self.valid}, **self.extra}
        sent = asked.headers["Authorization"] or asked.headers["X-Session"] or ""
        return GOOD if sent.removeprefix("Bearer ") == self.valid else Reply({}, 401)

    @property
    def fetches(self):
        return [asked for asked in self.api.asked if asked.path.startswith(("/token", "/login"))]


@pytest.mark.parametrize("authenticator", [OAUTH, SESSION], ids=["oauth2", "session"])
class TestFetchedTokens:
    def test_a_token_is_fetched_when_it_is_needed_and_kept(self, api, make, authenticator):
        server = TokenApi(api, expires_in=3600)
        stream = authenticated(make, authenticator)
        assert api.asked == []
        for _ in range(3):
            assert ids(stream.read_page({}, None).records) == [1]
        assert len(server.fetches) == 1

    def test_a_token_that_is_refused_is_renewed_once(self, api, make, authenticator):
        server = TokenApi(api)
        stream = authenticated(make, authenticator)
        stream.read_page({}, None)
        server.valid = "revoked"
        assert ids(stream.read_page({}, None).records) == [1]
        assert len(server.fetches) == 2

    def test_credentials_that_stay_refused_are_an_error_after_one_renewal(self, api, make, authenticator):
        server = TokenApi(api)
        api.answer = lambda asked: server(asked) if asked in server.fetches else Reply({}, 401)
        with pytest.raises(AuthenticationError):
            authenticated(make, authenticator).read_page({}, None)
        assert (len(server.fetches), len(api.asked)) == (2, 4)

    def test_an_endpoint_that_refuses_is_an_authentication_error(self, api, make, authenticator):
        api.answers(Reply({"error": "invalid_client"}, 400))
        with pytest.raises(AuthenticationError, match=r"no token could be obtained.*invalid_client") as error:
            authenticated(make, authenticator).read_page({}, None)
        assert error.value.status == 400

    def test_an_endpoint_that_stumbles_is_asked_again(self, api, make, authenticator):
        server = TokenApi(api)
        replies = iter([Reply({}, 503), Reply({}, 429)])
        api.answer = lambda asked: next(replies, None) or server(asked)
        assert ids(authenticated(make, authenticator).read_page({}, None).records) == [1]

    def test_an_answer_without_a_token_is_an_error_that_names_the_place(self, api, make, authenticator):
        api.answers({"hello": 1})
        with pytest.raises(AuthenticationError, match=r"no token at (access_token|session.id)"):
            authenticated(make, authenticator).read_page({}, None)


def test_a_token_is_renewed_before_it_expires(api, make):
    server = TokenApi(api, expires_in=1)
    stream = authenticated(make, OAUTH)
    stream.read_page({}, None)
    time.sleep(0.6)
    stream.read_page({}, None)
    assert len(server.fetches) == 2
    assert len(api.asked) == 4, "no request was refused"


def test_streams_of_one_source_share_the_token(api):
    from airflow_provider_rfr.streams.loader import load_streams

    server = TokenApi(api)
    stream = {"request": {"path": "/items"}, "records": {"path": "data"}}
    source = {"base_url": api.url, "authenticator": OAUTH, "streams": {"a": stream, "b": stream}}
    for made in load_streams({"definition": source, "secrets": SECRETS}).values():
        list(made.read_records())
    assert len(server.fetches) == 1


class TestOAuth2:
    def test_client_credentials_go_into_the_form(self, api, make):
        TokenApi(api)
        authenticated(make, {**OAUTH, "scopes": ["a", "b"], "extra": {"audience": "x"}}).read_page({}, None)
        assert api.asked[0].form == {
            "grant_type": "client_credentials",
            "client_id": "me",
            "client_secret": "s3cr3t",
            "scope": "a b",
            "audience": "x",
        }
        assert api.asked[1].headers["Authorization"] == "Bearer token-1"

    def test_or_into_the_header(self, api, make):
        TokenApi(api)
        authenticated(make, {**OAUTH, "client_in": "header"}).read_page({}, None)
        assert api.asked[0].headers["Authorization"] == "Basic " + base64.b64encode(b"me:s3cr3t").decode()
        assert api.asked[0].form == {"grant_type": "client_credentials"}


def test_a_session_token_may_come_in_a_header_without_a_body_and_go_into_the_query(api, make):
    def answer(asked):
        if asked.path == "/login":
            return Reply(b"welcome", headers={"X-Token": "t-1", "Content-Type": "text/plain"})
        return GOOD if asked.query.get("sid") == "t-1" else Reply({}, 401)

    api.answer = answer
    session = {**SESSION, "token": {"header": "X-Token"}, "send_as": {"query": "sid"}}
    page = authenticated(make, session).read_page({}, None)
    assert (ids(page.records), page.request) == ([1], "GET /items")
