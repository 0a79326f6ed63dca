"""The installed ``airbyte-cdk``, which is imported once, and patches of some of its functions.

Its classes are imported in functions: the extra may be missing, and the import takes a second.
"""

from __future__ import annotations

import copy
import logging
import logging.config
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.metadata import version
from typing import Any, Final

import requests

from airflow_provider_rfr.exceptions import ConfigurationError, RepeatedPageError
from airflow_provider_rfr.streams.airbyte import _guard
from airflow_provider_rfr.streams.airbyte._cursors import check_names
from airflow_provider_rfr.streams.airbyte._guard import RequestLog, current_work, guard, redact_logs, share_tokens

# Prefixes of the modules that wait between two requests.
_WAITING: Final = ("airbyte_cdk.sources.", "backoff.")
_MISSING: Final = "write pip install 'airflow-provider-rfr[airbyte]', on the executors too"
#: The version in constraints.txt, which all tests run on.
TESTED: Final = "7.39.1"
#: Held while a source is built.
building: Final = threading.RLock()


def cdk_version() -> str:
    """Return the version of the CDK. The first call imports and patches it, to use our requests, waits and logs.

    :raises ConfigurationError: it is not installed, or lacks a name that is patched
    """
    # A cache alone lets two threads in at the first call, and each would wrap the CDK's functions.
    with building:
        return _prepared_version()


@cache
def _prepared_version() -> str:
    problem = ""
    with _logging_as_it_is():
        try:
            import airbyte_cdk.sources.declarative.concurrent_declarative_source  # noqa: F401
        except ImportError as error:
            problem = f"needs airbyte-cdk, which can't be imported ({error})"
    if problem:
        raise ConfigurationError("source.manifest", problem, _MISSING)
    try:
        _patch_cdk()
    except (AttributeError, ImportError) as error:
        problem = f"is not as expected ({error})"
    if problem:
        raise _unlike_tested(problem)
    return version("airbyte-cdk")


def _patch_cdk() -> None:
    """Patch the CDK: replace functions and modules that it uses.

    :raises AttributeError: a name does not exist; its function would not be guarded under another name
    :raises ImportError: a module does not exist
    """
    from airbyte_cdk.sources.declarative import concurrent_declarative_source as sources
    from airbyte_cdk.sources.declarative.extractors import dpath_extractor
    from airbyte_cdk.sources.declarative.requesters import http_requester
    from airbyte_cdk.sources.declarative.retrievers import simple_retriever
    from airbyte_cdk.utils.mapping_helpers import combine_mappings

    check_names()
    redact_logs()
    _guard_sessions()
    _guard_paging()
    share_tokens()
    for module in [module for name, module in sys.modules.items() if name.startswith(_WAITING)]:
        # So that a wait of the CDK between two requests ends when the reader is stopped.
        if getattr(module, "time", None) is time:
            module.time = _guard.Time()  # type: ignore[attr-defined]  # a module of the CDK that imports it
    # Cached, because it parses a file of the CDK in most of a second for each source. Older versions prefix it by "_".
    for name in [name for name in vars(sources) if name.lstrip("_") == "get_declarative_component_schema"]:
        setattr(sources, name, cache(getattr(sources, name)))
    replace_name(dpath_extractor, "dpath", _guard.PlainPaths(dpath_extractor.dpath))

    def combined(mappings: Any, *more: Any, **named: Any) -> Any:
        return combine_mappings(mappings, *more, **named) if any(mappings) else {}

    for module in (http_requester, simple_retriever):
        # It is called eight times for each request, mostly with empty mappings.
        replace_name(module, "combine_mappings", combined)


def replace_name(owner: Any, name: str, value: Any) -> None:
    """Replace a name; raise AttributeError if it does not exist."""
    getattr(owner, name)
    setattr(owner, name, value)


def _unlike_tested(what: str) -> ConfigurationError:
    problem = f"airbyte-cdk {version('airbyte-cdk')} {what}; this package is tested with {TESTED}"
    return ConfigurationError("source.manifest", problem, f"install airbyte-cdk=={TESTED}, on the executors too")


def refuse_unknown(kind: type, *known: type) -> None:
    """Refuse an unknown class of the CDK, because it may read pages in another way.

    The caller checks the connector's own classes.

    :raises ConfigurationError: the class is unknown
    """
    if kind.__module__.startswith("airbyte_cdk.") and kind not in known:
        raise _unlike_tested(f"uses {kind.__name__}, an unknown class")


@contextmanager
def _logging_as_it_is() -> Iterator[None]:
    """Keep the logging of the process as it is while the CDK is imported.

    The CDK then configures the root logger, which would close every handler of the process.
    """
    configure = logging.config.dictConfig

    def of_others(config: Any) -> None:
        # Another thread may configure its own logging at this moment, which has to take effect.
        if "airbyte" not in config.get("formatters", {}):
            configure(config)

    logging.config.dictConfig = of_others
    try:
        yield
    finally:
        logging.config.dictConfig = configure


def _guard_sessions() -> None:
    """Make every session that the CDK opens for a stream of ours send by our adapter.

    These are the sessions of parents, of components that are made while it reads, and of tokens, for which the CDK does
    not use its own client.
    """
    from airbyte_cdk.sources.declarative.auth import token
    from airbyte_cdk.sources.streams.http.http_client import HttpClient
    from airbyte_cdk.sources.streams.http.requests_native_auth import abstract_oauth

    original = HttpClient.__init__

    def guarded(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if current_work() is not None:
            guard(self._session)
            replace_name(self, "_logger", RequestLog(self._logger, None))

    HttpClient.__init__ = guarded
    HttpClient._send_with_retry = _repeating_only_failures(HttpClient._send_with_retry)
    HttpClient._handle_error_resolution = _noting_what_is_ignored(HttpClient._handle_error_resolution)
    for module in (token, abstract_oauth):
        replace_name(module, "requests", _Requests())


def _repeating_only_failures(original: Callable[..., requests.Response]) -> Callable[..., requests.Response]:
    """Wrap ``original`` to enter the CDK's retries, which it builds for each request, only after a failed attempt."""
    from airbyte_cdk.sources.streams.http.exceptions import BaseBackoffException
    from airbyte_cdk.sources.streams.http.rate_limiting import TRANSIENT_EXCEPTIONS

    @wraps(original)
    def send(self: Any, *arguments: Any, **options: Any) -> requests.Response:
        if current_work() is None:
            return original(self, *arguments, **options)
        try:
            return self._send(*arguments, **options)  # type: ignore[no-any-return]  # the CDK may be missing
        except (BaseBackoffException, *TRANSIENT_EXCEPTIONS) as error:
            failed = [error]

        def attempt(*given: Any, **named: Any) -> requests.Response:
            if failed:
                raise failed.pop()
            return self._send(*given, **named)  # type: ignore[no-any-return]  # the CDK may be missing

        # A copy, because other threads send with the same client.
        repeating = copy.copy(self)
        repeating._send = attempt
        return original(repeating, *arguments, **options)

    return send


def _noting_what_is_ignored(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``original`` to note each answer that an error handler ignores.

    The status does not tell which: a filter may use only the body.
    """
    from airbyte_cdk.sources.streams.http.error_handlers import ResponseAction

    @wraps(original)
    def handle(self: Any, response: Any, exc: Any, request: Any, error_resolution: Any, **options: Any) -> None:
        work = current_work()
        if work is not None and error_resolution.response_action is ResponseAction.IGNORE:
            work.ignored = "no answer" if response is None else f"HTTP {response.status_code}"
        original(self, response, exc, request, error_resolution, **options)

    return handle


def _guard_paging() -> None:
    """Correct two defects of the CDK's paging, which also affect parents and whole slices.

    A repeated token becomes an error, because the stream would never end. ``last_page_size`` becomes the number of
    records before a filter: a manifest that compares it with the size that it asked for would otherwise end at the
    first page of which the filter drops a record.
    """
    from airbyte_cdk.sources.declarative.extractors.record_selector import extracted_record_count
    from airbyte_cdk.sources.declarative.requesters.paginators import DefaultPaginator

    original = DefaultPaginator.next_page_token

    @wraps(original)
    def guarded(
        self: Any, response: Any, last_page_size: int, last_record: Any, last_page_token_value: Any = None, **more: Any
    ) -> Any:
        is_ours = current_work() is not None
        size = extracted_record_count(response, default=last_page_size) if is_ours else last_page_size
        following = original(self, response, size, last_record, last_page_token_value, **more)
        if is_ours and following and following["next_page_token"] == last_page_token_value:
            raise RepeatedPageError("a page token came twice; the stream would never end")
        return following

    DefaultPaginator.next_page_token = guarded


class _Requests:
    """The module ``requests`` for authenticators, whose functions use our adapter in a thread that works for us."""

    def __getattr__(self, name: str) -> Any:
        return getattr(requests, name)

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        session = requests.Session()
        with guard(session) if current_work() is not None else session:
            return session.request(method, url, **options)

    def get(self, url: str, **options: Any) -> requests.Response:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> requests.Response:
        return self.request("POST", url, **options)
