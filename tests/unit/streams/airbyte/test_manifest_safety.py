"""What the CDK does to a process, to credentials and to hosts, and what stands against it."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
from manifest_api import KEY, Api, needs_cdk, rows, shop_with

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    ConfigurationError,
    RateLimitedError,
    ReadInterrupted,
    RepeatedPageError,
    SecretInTokenError,
    SourceError,
)
from airflow_provider_rfr.streams import NextPage, ReadContext
from airflow_provider_rfr.streams.airbyte import _guard, _installed
from airflow_provider_rfr.streams.loader import load_stream, load_streams
from airflow_provider_rfr.streams.paged import PagedStream, iter_pages
from tests.unit.messages import raises

pytestmark = needs_cdk

COUNTER = """
from dataclasses import dataclass
from airbyte_cdk.sources.declarative.requesters.paginators.strategies.pagination_strategy import PaginationStrategy

@dataclass
class Counting(PaginationStrategy):
    pages = 0

    @property
    def initial_token(self):
        return None

    def next_page_token(self, response, last_page_size, last_record, last_page_token_value=None, **more):
        self.pages += 1
        return {last} if self.pages == 1 else None

    def get_page_size(self):
        return None
"""

LOGGING = """
import logging, sys
handler = logging.StreamHandler(sys.stderr)
logging.getLogger().addHandler(handler)
closed = []
handler.close = lambda: closed.append(True)
level = logging.getLogger().level
from airflow_provider_rfr.streams.airbyte._installed import cdk_version
cdk_version()
assert logging.getLogger().handlers == [handler], logging.getLogger().handlers
assert logging.getLogger().level == level
assert not closed
logging.getLogger("mine").warning("plain words")
"""


@dataclass
class Budget:
    acquired: int = 0
    penalties: list[float] = field(default_factory=list)

    def acquire(self) -> None:
        self.acquired += 1

    def penalize(self, seconds: float) -> None:
        self.penalties.append(seconds)


def bound(stream: PagedStream, stop: threading.Event | None = None) -> Budget:
    budget = Budget()
    stream.bind(ReadContext(budget, stop or threading.Event()))
    return budget


def everything_of(error: BaseException) -> str:
    """All that a log or a pickle of the error could show."""
    assert error.__cause__ is None
    assert error.__context__ is None
    return f"{error} {error!r} {vars(error)} {pickle.dumps(error)!r}"


@pytest.fixture
def other() -> Iterator[Api]:
    """Another host, as far as ports make one."""
    server = Api()
    yield server
    server.close()


def test_importing_the_cdk_leaves_logging_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "plain words"
    assert not done.stdout


def test_threads_at_the_first_call_put_our_functions_under_the_cdk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def prepare() -> None:
        calls.append(threading.get_ident())
        time.sleep(0.2)

    monkeypatch.setattr(_installed, "_patch_cdk", prepare)
    _installed._prepared_version.cache_clear()
    threads = [threading.Thread(target=_installed.cdk_version) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_messages_of_the_cdk_are_logged_and_none_is_kept(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    from airbyte_cdk.models import AirbyteLogMessage, AirbyteMessage, Level, Type

    stream = load_stream(api.source(), "orders")
    repository = stream._interpreted._stream._stream_partition_generator._partition_factory._message_repository
    message = AirbyteMessage(type=Type.LOG, log=AirbyteLogMessage(level=Level.INFO, message="words"))
    # More than the queue of the CDK's own repository holds, which would block this thread.
    for _ in range(10_001):
        repository.emit_message(message)
    assert list(repository.consume_queue()) == []
    repository.emit_message(AirbyteMessage(type=Type.CONTROL))
    assert not capsys.readouterr().out


def test_a_rule_that_changes_the_configuration_does_not_print_it(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = shop_with("customers")
    rename = {"type": "ConfigRemapField", "map": {"old": "new"}, "field_path": ["kind"]}
    manifest["spec"]["config_normalization_rules"] = {
        "type": "ConfigNormalizationRules",
        "config_migrations": [{"type": "ConfigMigration", "description": "x", "transformations": [rename]}],
    }
    manifest["definitions"]["requester"]["request_parameters"] = {"kind": "{{ config['kind'] }}"}
    stream = load_stream(api.source(manifest, config={"url": api.url, "kind": "old"}), "customers")
    stream.read_page({}, None)
    assert "kind=new" in api.asked[0]
    captured = capsys.readouterr()
    assert KEY not in captured.out + captured.err
    assert not captured.out


def oauth(api: Api, **more: Any) -> dict[str, Any]:
    manifest = shop_with("customers")
    manifest["definitions"]["requester"]["authenticator"] = {
        "type": "OAuthAuthenticator",
        "token_refresh_endpoint": "{{ config['url'] }}/token",
        "client_id": "me",
        "client_secret": "{{ config['api_key'] }}",
        "refresh_token": "{{ config['api_key'] }}",
        **more,
    }
    return api.source(manifest)


def test_a_token_is_obtained_through_our_client_and_is_secret(api: Api) -> None:
    token = "a-token-that-nobody-may-see"
    shop = api.answer
    api.answer = lambda path, query, url: (
        (200, {"access_token": token, "expires_in": 3600}) if path == "/token" else (403, f"no, {token}")
    )
    stream = load_stream(oauth(api), "customers")
    budget = bound(stream)
    with pytest.raises(AuthenticationError) as caught:
        stream.read_page({}, None)
    assert token not in everything_of(caught.value)
    assert [path.partition("?")[0] for path in api.asked] == ["/token", "/v1/customers"]
    assert budget.acquired == 2
    api.answer = shop


def with_key(manifest: dict[str, Any], place: str, name: str) -> dict[str, Any]:
    """The manifest, whose requests carry the API key in this place."""
    manifest["definitions"]["requester"]["authenticator"] = {
        "type": "ApiKeyAuthenticator",
        "inject_into": {"type": "RequestOption", "inject_into": place, "field_name": name},
        "api_token": "{{ config['api_key'] }}",
    }
    return manifest


def custom(api: Api, last: str = "None") -> dict[str, Any]:
    manifest = shop_with("customers")
    manifest["streams"][0]["retriever"]["paginator"] = {
        "type": "DefaultPaginator",
        "page_token_option": {"type": "RequestOption", "inject_into": "request_parameter", "field_name": "page"},
        "pagination_strategy": {
            "type": "CustomPaginationStrategy",
            "class_name": "source_declarative_manifest.components.Counting",
        },
    }
    return api.source(manifest, components=COUNTER.replace("{last}", last))


def test_code_runs_only_where_the_source_asks_for_it(api: Api) -> None:
    source = {**custom(api), "components": None}
    with raises(ConfigurationError):
        load_stream(source, "customers")
    source["manifest"]["streams"][0]["retriever"]["paginator"]["pagination_strategy"]["class_name"] = "os.system"
    with raises(ConfigurationError):
        load_stream(source, "customers")


def test_two_sources_have_their_own_components_and_no_module_is_left(api: Api) -> None:
    one, other = load_stream(custom(api), "customers"), load_stream(custom(api, "3"), "customers")
    assert [len(stream.read_page({}, None).records) for stream in (one, other)] == [3, 5]
    assert not {"components", "source_declarative_manifest.components"} & sys.modules.keys()


def test_paging_that_may_keep_state_is_read_by_slice_and_that_is_said(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    stream = load_stream(custom(api, "2"), "customers")
    assert (stream.paging.by_page, stream.addressable) == (False, False)
    [stream_slice] = stream.stream_slices()
    assert "customers: can't be resumed within a slice: a slice is read whole: Counting may keep state" in caplog.text
    assert [len(page.records) for page in iter_pages(stream, stream_slice)] == [6]
    with raises(ConfigurationError):
        stream.read_page(stream_slice, 2)


def test_what_paging_keeps_of_a_slice_that_was_left_half_way_does_not_reach_its_next_read(api: Api) -> None:
    stream, usual = load_stream(custom(api, "2"), "customers"), api.answer
    api.answer = lambda path, query, url: (400, {}) if query.get("page") == "2" else usual(path, query, url)
    with pytest.raises(SourceError):
        stream.read_page({}, None)
    api.answer = usual
    assert len(stream.read_page({}, None).records) == 6


def test_a_token_that_comes_twice_ends_a_slice_that_is_read_whole_and_a_parent(api: Api) -> None:
    stream = load_stream(custom(api, "2"), "customers")
    stream._interpreted._retriever._paginator.pagination_strategy.next_page_token = lambda **more: 2
    with raises(RepeatedPageError):
        stream.read_page({}, None)
    assert len(api.asked) == 2
    api.asked.clear()
    manifest = shop_with("orders")
    parent = manifest["definitions"]["customers"]["retriever"]
    parent["paginator"] = manifest["definitions"]["links"]["retriever"]["paginator"]
    api.answer = lambda path, query, url: (200, {"data": rows(1), "next": f"{url}/v1/customers?page=2"})
    with raises(RepeatedPageError):
        list(load_stream(api.source(manifest), "orders").stream_slices())
    assert len(api.asked) == 2


def test_components_of_an_older_cdk_are_named_with_both_versions(api: Api) -> None:
    source = custom(api)
    source["manifest"]["version"] = "6.44.0"
    source["components"] = "from airbyte_cdk import NoSuchClassAnyMore\n"
    with raises(ConfigurationError):
        load_stream(source, "customers")
    source["components"] = COUNTER.replace("self.pages += 1", "response.no_such_thing")
    with raises(SourceError):
        load_stream(source, "customers").read_page({}, None)


def test_a_next_page_on_another_host_is_refused_and_nothing_is_sent_there(api: Api, other: Api) -> None:
    api.answer = lambda path, query, url: (200, {"data": rows(1), "next": f"{other.url}/v1/links?p=2"})
    stream = load_stream(api.source(), "links")
    page = stream.read_page({}, None)
    with raises(SourceError, other.url):
        stream.read_page({}, page.next.token)
    assert not other.asked
    allowed = load_stream(api.source(allowed_hosts=[other.url.removeprefix("http://")]), "links")
    assert allowed.read_page({}, page.next.token).records
    assert other.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_a_parents_next_page_on_another_host_is_refused_too(api: Api, other: Api) -> None:
    manifest = shop_with("orders")
    parent = manifest["definitions"]["customers"]["retriever"]
    parent["paginator"] = manifest["definitions"]["links"]["retriever"]["paginator"]
    api.answer = lambda path, query, url: (200, {"data": rows(1), "next": f"{other.url}/v1/customers?page=2"})
    with raises(SourceError):
        list(load_stream(api.source(manifest), "orders").stream_slices())
    assert (len(api.asked), len(other.asked)) == (1, 0)


def test_a_redirect_to_a_listed_host_carries_no_key_and_one_to_another_host_is_refused(api: Api, other: Api) -> None:
    manifest = with_key(shop_with("customers"), "header", "X-Shop")
    api.answer = lambda path, query, url: (302, {}, {"Location": f"{other.url}/v1/customers?page=1"})
    with raises(SourceError):
        load_stream(api.source(manifest), "customers").read_page({}, None)
    assert not other.asked
    listed = load_stream(api.source(manifest, allowed_hosts=["127.0.0.1"]), "customers")
    assert listed.read_page({}, None).records == rows(3)
    assert api.headers[-1]["X-Shop"] == KEY
    assert "X-Shop" not in other.headers[0]


def test_neither_proxy_nor_netrc_of_the_environment_is_used(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    manifest = shop_with("customers")
    del manifest["definitions"]["requester"]["authenticator"]
    assert load_stream(api.source(manifest), "customers").read_page({}, None).records == rows(3)
    assert "Authorization" not in api.headers[0]


def test_an_answer_has_a_largest_size(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_guard._LIMITS, "max_bytes", 50)
    with raises(SourceError):
        load_stream(api.source(), "customers").read_page({}, None)
    assert len(api.asked) == 1


def test_an_answer_has_a_deadline(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_guard, "_SECONDS", 0.2)
    waiting = threading.Event()
    api.answer = lambda path, query, url: (200, {"data": [waiting.wait(30)]})
    with raises(SourceError):
        load_stream(api.source(), "links").read_page({}, None)
    waiting.set()


def test_each_request_asks_the_rate_budget_and_a_429_is_told_to_all_readers(api: Api) -> None:
    stream = load_stream(api.source(), "orders")
    budget = bound(stream)
    slices = list(stream.stream_slices())
    assert budget.acquired == len(api.asked) == 3
    stream.read_page(slices[0], None)
    assert budget.acquired == len(api.asked) == 4
    links = load_stream(api.source(), "links")
    budget = bound(links)
    api.answer = lambda path, query, url: (429, {"error": "slow down"}, {"Retry-After": "7"})
    with pytest.raises(RateLimitedError) as caught:
        links.read_page({}, None)
    assert budget.penalties
    assert set(budget.penalties) == {7.0}
    assert caught.value.retry_after == 7


def test_a_reader_that_is_stopped_sends_no_further_request(api: Api) -> None:
    stream, stop = load_stream(api.source(), "customers"), threading.Event()
    bound(stream, stop)
    stop.set()
    with pytest.raises(ReadInterrupted):
        stream.read_page({}, None)
    assert not api.asked


@pytest.mark.parametrize("strategy", ["ExponentialBackoffStrategy", "ConstantBackoffStrategy", "WaitTimeFromHeader"])
def test_a_wait_before_another_try_ends_when_the_reader_is_stopped(
    api: Api, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    stop = threading.Event()

    def busy(path: str, query: Any, url: str) -> Any:
        stop.set()
        return 503, {"error": "later"}, {"Wait": "50"}

    def slept(seconds: float) -> None:
        raise AssertionError("a wait that nobody can end")

    api.answer = busy
    manifest = shop_with("customers")
    handler = {"type": strategy, "factor": 10, "backoff_time_in_seconds": 50, "header": "Wait"}
    manifest["definitions"]["requester"]["error_handler"] = {
        "type": "DefaultErrorHandler",
        "backoff_strategies": [handler],
    }
    stream = load_stream(api.source(manifest), "customers")
    bound(stream, stop)
    monkeypatch.setattr(time, "sleep", slept)
    with pytest.raises(ReadInterrupted):
        stream.read_page({}, None)
    assert len(api.asked) == 1


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_a_request_is_repeated_as_often_as_the_manifest_says(api: Api, failures: int) -> None:
    answers, usual = iter([(503, {"error": "later"})] * failures), api.answer
    api.answer = lambda path, query, url: next(answers, None) or usual(path, query, url)
    manifest = shop_with("customers")
    manifest["definitions"]["requester"]["error_handler"] = {
        "type": "DefaultErrorHandler",
        "max_retries": 2,
        "backoff_strategies": [{"type": "ConstantBackoffStrategy", "backoff_time_in_seconds": 0.01}],
    }
    stream = load_stream(api.source(manifest), "customers")
    bound(stream)
    if failures < 3:
        assert len(stream.read_page({}, None).records) > 0
        assert len(api.asked) == failures + 1
    else:
        with raises(SourceError):
            stream.read_page({}, None)
        assert len(api.asked) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"params": {"a": "1 2", "b": ["x", "y"]}, "headers": {"Accept": "text/csv", "User-Agent": None}},
        {"method": "post", "json": {"a": [1]}},
        {"method": "POST", "data": {"a": "ü"}, "auth": ("user", "word")},
        {"url": "http://example.com/a b?c=d", "cookies": {"e": "f"}},
    ],
)
@pytest.mark.parametrize("own", [{}, {"auth": ("other", "word")}, {"params": {"z": "1"}}, {"headers": {"X-Key": "k"}}])
def test_a_request_is_prepared_as_by_any_session(given: dict[str, Any], own: dict[str, Any]) -> None:
    request = requests.Request(**{"method": "GET", "url": "http://example.com/", **given})
    plain, guarded = requests.Session(), _guard.guard(requests.Session())
    for session in (plain, guarded):
        session.trust_env = False
        for name, value in own.items():
            setattr(session, name, value)
    expected, prepared = plain.prepare_request(request), guarded.prepare_request(request)
    for name in ("method", "url", "headers", "body"):
        assert getattr(prepared, name) == getattr(expected, name)


def test_pages_of_parents_are_not_kept(api: Api) -> None:
    stream = load_stream(api.source(), "orders")
    for _ in range(2):
        list(stream.stream_slices())
    assert len(api.asked) == 6


def test_an_error_shows_no_secret_whatever_the_api_answers(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    manifest = shop_with("links")
    manifest["definitions"]["requester"]["request_parameters"] = {"signature": "{{ config['api_key'] }}"}
    api.answer = lambda path, query, url: (400, {"error": {"message": f"the key {KEY} of {url}{path} is wrong"}})
    stream = load_stream(api.source(manifest), "links")
    with pytest.raises(SourceError) as caught:
        stream.read_page({}, None)
    assert KEY in api.asked[0]
    assert KEY not in everything_of(caught.value)
    assert KEY not in caplog.text
    assert (caught.value.status, caught.value.request) == (400, "GET /v1/links")
    assert KEY not in repr(stream) + str(vars(stream))


def test_the_cdk_logs_no_error_and_no_answer_of_its_own(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """Pages are read ahead: where the API answers 404 past the last one, the refresh succeeds."""
    caplog.set_level(logging.DEBUG)
    api.answer = lambda path, query, url: (403, {"person": "somebody-0815"}, {"X-Trace": "somebody-0815"})
    with pytest.raises(AuthenticationError) as caught:
        load_stream(api.source(), "customers").read_page({}, None)
    assert (caught.value.status, caught.value.request) == (403, "GET /v1/customers?per_page=3")
    assert len(api.asked) == 1
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record.getMessage() for record in lines]
    assert "somebody-0815" not in caplog.text


def test_a_key_that_the_api_repeats_in_the_next_pages_address_is_not_stored(api: Api) -> None:
    manifest = with_key(shop_with("links"), "request_parameter", "key")
    api.answer = lambda path, query, url: (200, {"data": rows(1), "next": f"{url}/v1/links?p=2&key={KEY}"})
    stream = load_stream(api.source(manifest), "links")
    token = stream.read_page({}, None).next.token
    assert token == f"{api.url}/v1/links?p=2"
    stream.read_page({}, token)
    assert api.asked[-1] == f"/v1/links?p=2&key={KEY}"


def test_a_next_page_whose_path_has_the_key_is_refused(api: Api) -> None:
    api.answer = lambda path, query, url: (200, {"data": rows(1), "next": f"{url}/v1/{KEY}/links?p=2"})
    with raises(SecretInTokenError) as caught:
        load_stream(api.source(), "links").read_page({}, None)
    assert not caught.value.retryable
    assert KEY not in everything_of(caught.value)


def test_a_page_token_in_a_header_with_the_name_of_a_secret_is_none(api: Api) -> None:
    """Another partition, or the same one after a restart, may have the same token."""
    manifest = shop_with("orders")
    option = {"type": "RequestOption", "inject_into": "header", "field_name": "X-Next-Token"}
    manifest["streams"][0]["retriever"]["paginator"]["page_token_option"] = option
    api.answer = lambda path, query, url: (200, {"data": rows(1), "next": f"token-of-page-{1 + len(api.asked) % 2}"})
    stream = load_stream(api.source(manifest), "orders")
    for customer in (1, 2):
        stream_slice = {"customer_id": customer, "parent_slice": {}}
        assert stream.read_page(stream_slice, None).next == NextPage("token-of-page-2")
        assert stream.read_page(stream_slice, "token-of-page-2").next == NextPage("token-of-page-1")
    assert [headers.get("X-Next-Token") for headers in api.headers] == [None, "token-of-page-2"] * 2


def test_no_packing_is_asked_for_of_which_a_cut_body_is_not_recognised(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where the packages of Brotli and Zstandard are installed.
    monkeypatch.setattr("requests.utils.DEFAULT_ACCEPT_ENCODING", "gzip, deflate, br, zstd")
    load_stream(api.source(), "customers").read_page({}, None)
    assert api.headers[0]["Accept-Encoding"] == "gzip, deflate"


def test_other_users_of_the_cdk_in_the_process_keep_their_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    load_streams(api.source())
    logging.getLogger("airbyte.theirs").warning("theirs")
    assert [record.getMessage() for record in caplog.records if record.name == "airbyte.theirs"] == ["theirs"]
    assert json.dumps(None)
