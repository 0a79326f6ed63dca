"""Secrets never show: not in errors, not in what they were raised from, not in reprs, tokens or logs."""

from __future__ import annotations

import base64
import logging
import pickle
import traceback

import pytest
from rest_api import QUICK, Reply

from airflow_provider_rfr.exceptions import RfrError, SecretInTokenError
from airflow_provider_rfr.streams.loader import load_streams
from tests.unit.messages import raises

CANARY = "canary/5ecret+value=="
PASSWORD = "canary-p4ssword"
BASIC = base64.b64encode(f"joe:{CANARY}".encode()).decode()
SHAPES = (BASIC, CANARY, "canary%2F5ecret%2Bvalue%3D%3D", "canary/5ecret", "canary%2F", PASSWORD, "canary-p4")

HANDLER = {**QUICK, "max_retries": 1}
AUTHENTICATORS = {
    "header": {"type": "api_key", "value": "{{ config.key }}", "send_as": {"header": "X-Key"}},
    "query": {"type": "api_key", "value": "{{ config.key }}", "send_as": {"query": "apikey"}},
    "bearer": {"type": "bearer", "token": "{{ config.key }}"},
    "basic": {"type": "basic", "username": "joe", "password": "{{ config.key }}"},
    "literal": {"type": "bearer", "token": CANARY},
    "oauth2": {"type": "oauth2", "token_url": "/token", "client_id": "c", "client_secret": "{{ config.key }}"},
    "session": {
        "type": "session_token",
        "login": {"url": "/token", "json": {"user": "joe", "password": "{{ config.key }}"}},
        "token": {"path": "access_token"},
        "send_as": {"query": "sid"},
    },
}


def echo(asked):
    """An API that repeats everything it was sent."""
    return f"{asked.path} {dict(asked.headers)} {asked.body!r}".encode()


def hostile_answers(api):
    return {
        "refused": lambda asked: Reply({"you sent": echo(asked).decode()}, 401),
        "server error": lambda asked: Reply(echo(asked), 500),
        "no json": lambda asked: Reply(echo(asked)),
        "bad gateway": lambda asked: Reply(raw=lambda out: out.write(b"nonsense " + echo(asked))),
        "hang": lambda asked: Reply(raw=lambda out: api.closing.wait(1)),
        "redirect": lambda asked: Reply({}, 302, {"Location": f"http://evil.example{asked.path}"}),
        "odd redirect": lambda asked: Reply({}, 302, {"Location": f"http://[{CANARY}"}),
        "wrong records": lambda asked: Reply({"data": "x", CANARY[:0]: 1}),
        "foreign link": lambda asked: Reply({"data": [], "next": f"http://evil.example{asked.path}&k={CANARY}"}),
        "rate limit": lambda asked: Reply(echo(asked), 429, {"Retry-After": "99999"}),
        "expired": lambda asked: Reply(echo(asked), 410),
    }


def everything_about(error):
    seen = [error, error.__cause__, error.__context__]
    texts = [repr(item) + str(item) + repr(getattr(item, "__dict__", "")) for item in seen if item is not None]
    texts += traceback.format_exception(error)
    texts.append(repr(pickle.loads(pickle.dumps(error)).__dict__))
    return "\n".join(texts)


def assert_clean(text):
    for shape in SHAPES:
        assert shape not in text


@pytest.mark.parametrize("authenticator", AUTHENTICATORS)
@pytest.mark.parametrize("case", [*hostile_answers(None), "refused connection"])
def test_no_error_tells_a_secret(api, make, caplog, authenticator, case):
    caplog.set_level(logging.DEBUG)
    hostile = hostile_answers(api).get(case)

    def answer(asked):
        if asked.path.startswith("/token"):
            return {"access_token": PASSWORD, "echo": CANARY}
        return hostile(asked)

    api.answer = answer
    if hostile is None:
        api.close()
    stream = make(
        source={"authenticator": AUTHENTICATORS[authenticator], "defaults": {"error_handler": HANDLER}},
        secrets={"key": CANARY},
        config={"region": "eu"},
        paginator={"type": "next_url", "url": {"path": "next"}},
        timeouts={"read": 0.15},
        error_handler=HANDLER,
    )
    with pytest.raises(RfrError) as error:
        stream.read_page({}, f"{api.url}/items?page=2" if case == "expired" else None)
    assert_clean(everything_about(error.value))
    assert_clean(caplog.text)
    assert_clean(repr(stream) + repr(stream.__dict__) + repr(stream.fingerprint()))


@pytest.mark.parametrize("status", [400, 401, 500])
@pytest.mark.parametrize("authenticator", ["oauth2", "session"])
def test_a_token_endpoint_that_repeats_what_it_was_sent_tells_no_secret(api, make, caplog, authenticator, status):
    api.answer = lambda asked: Reply(echo(asked), status)
    source = {"authenticator": AUTHENTICATORS[authenticator], "defaults": {"error_handler": HANDLER}}
    with pytest.raises(RfrError) as error:
        make(source=source, secrets={"key": CANARY}).read_page({}, None)
    assert_clean(everything_about(error.value))
    assert_clean(caplog.text)


def test_pages_and_fingerprints_have_no_secrets(api, make):
    api.answers({"data": [{"id": 1}], "next": f"/items?key={CANARY.replace('+', '%2B')}&page=2"})
    stream = make(
        source={"authenticator": AUTHENTICATORS["query"], "secrets": ["tenant_key"]},
        config={"tenant_key": PASSWORD, "region": "eu"},
        secrets={"key": CANARY},
        request={
            "path": "/items",
            "query": {"tenant": "{{ config.tenant_key }}", "region": "{{ config.region }}"},
            "headers": {"X-Api-Key": PASSWORD},
        },
        paginator={"type": "next_url", "url": {"path": "next"}},
    )
    page = stream.read_page({}, None)
    assert_clean(repr(page))
    assert page.request == "GET /items?region=eu"
    assert_clean(repr(stream.fingerprint()))
    assert stream.fingerprint()["config"] == {"region": "eu"}


@pytest.mark.parametrize("paginator", ["next_url", "cursor"])
def test_a_secret_in_what_leads_to_the_next_page_is_refused_where_it_would_be_stored(api, make, paginator):
    quoted = CANARY.replace("/", "%2F").replace("+", "%2b")
    following = {"next_url": f"/keys/{quoted}/items?page=2", "cursor": {"after": f"2:{CANARY}"}}[paginator]
    api.answers({"data": [{"id": 1}], "next": following})
    place = "url" if paginator == "next_url" else "cursor"
    stream = make(secrets={"key": CANARY}, paginator={"type": paginator, place: {"path": "next"}})
    with raises(SecretInTokenError) as error:
        stream.read_page({}, None)
    assert not error.value.retryable
    assert_clean(everything_about(error.value))
    assert "5ecret%2bvalue" not in everything_about(error.value)


def test_what_ends_in_the_table_can_t_be_made_of_secrets(make):
    with raises(RfrError):
        make(transformations=[{"type": "add", "fields": {"k": "{{ config.key }}"}}], secrets={"key": CANARY})


def test_a_definition_that_is_refused_does_not_show_what_may_be_a_secret(api):
    document = {
        "base_url": api.url,
        "authenticator": {"type": "bearer", "token": [CANARY]},
        "streams": {"a": {"request": {"headers": {"Authorization": {"x": CANARY}}, "path": 5}}},
    }
    with pytest.raises(RfrError) as error:
        load_streams({"definition": document, "secrets": {"key": CANARY}})
    assert_clean(everything_about(error.value))


def test_a_template_that_fails_on_a_secret_does_not_show_it(api, make):
    with pytest.raises(RfrError) as error:
        make(request={"path": "/x", "query": {"a": "{{ config.key + 1 }}"}}, secrets={"key": CANARY}).read_page(
            {}, None
        )
    assert_clean(everything_about(error.value))


def test_a_secret_that_makes_an_impossible_header_is_not_shown(make):
    stream = make(source={"authenticator": AUTHENTICATORS["header"]}, secrets={"key": f"{CANARY}\nX: y"})
    with raises(RfrError) as error:
        stream.read_page({}, None)
    assert_clean(everything_about(error.value))
