"""What the package uses of airbyte-cdk that is not public: this fails first where a new version of it has changed.

`scripts/lowest_cdk.sh` runs it with the lowest version that pyproject.toml allows, `make check` with the newest.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from manifest_api import KEY, Api, needs_cdk, shop_with

from airflow_provider_rfr.exceptions import ConfigurationError, SourceError
from airflow_provider_rfr.streams.airbyte import _cdk, _cursors, _guard, _installed
from airflow_provider_rfr.streams.loader import load_stream
from tests.unit.messages import raises

pytestmark = needs_cdk

CDK, INSTALLED, CURSORS = (ast.parse(Path(str(module.__file__)).read_text()) for module in (_cdk, _installed, _cursors))


class Parts:
    """One of each object of the CDK's whose private names are used, made as ``_cdk`` makes them."""

    def __init__(self, api: Api) -> None:
        from airbyte_cdk.sources.declarative.requesters.paginators.strategies import stop_condition

        manifest = shop_with("orders", "windows", "links")
        manifest["streams"][1]["incremental_sync"]["is_data_feed"] = True
        with _cdk.registering():
            interpreter = _cdk.Interpreter(manifest, {"url": api.url, "api_key": KEY}, None)
            self.source = interpreter._source
            self.streams = interpreter.built(interpreter.definitions())
        self.stream = self.streams[0]._stream
        self.generator = self.stream._stream_partition_generator
        self.factory = self.generator._partition_factory
        self.retriever = self.factory._retriever
        self.client = self.retriever.requester._http_client
        self.stopping = self.streams[1]._retriever._paginator.pagination_strategy
        assert isinstance(self.stopping, stop_condition.StopConditionPaginationStrategyDecorator)


#: Who has the name, and what it is: a type, or a condition.
PRIVATE: dict[str, tuple[Callable[[Parts], Any], Callable[[Any], bool]]] = {
    "_session": (lambda parts: parts.client, lambda value: isinstance(value, requests.Session)),
    "_logger": (lambda parts: parts.client, lambda value: isinstance(value, logging.Logger)),
    "_send_with_retry": (
        lambda parts: parts.client,
        lambda value: "self._send" in inspect.getsource(inspect.unwrap(value)),
    ),
    "_handle_error_resolution": (
        lambda parts: parts.client,
        lambda value: {"response", "error_resolution"} < set(inspect.signature(inspect.unwrap(value)).parameters),
    ),
    "_send": (lambda parts: parts.client, lambda value: next(iter(inspect.signature(value).parameters)) == "request"),
    "_message_repository": (lambda parts: parts.source, lambda value: isinstance(value, _guard.LoggedMessages)),
    "_constructor": (lambda parts: parts.source, lambda value: callable(value.create_component)),
    "_disable_cache": (lambda parts: parts.source._constructor, lambda value: value is True),
    "_source_config": (lambda parts: parts.source, lambda value: len(value["streams"]) == 3),
    "_config": (lambda parts: parts.source, lambda value: value["api_key"] == KEY),
    "_connector_state_manager": (
        lambda parts: parts.source,
        lambda value: list(inspect.signature(value.get_stream_state).parameters) == ["stream_name", "namespace"],
    ),
    "_stream_configs": (
        lambda parts: parts.source,
        lambda value: list(inspect.signature(value).parameters) == ["manifest"],
    ),
    "_spec_component": (lambda parts: parts.source, lambda value: callable(value.migrate_config)),
    "_migrate_and_transform_config": (
        lambda parts: parts.source,
        lambda value: list(inspect.signature(value).parameters) == ["config_path", "config"],
    ),
    "_stream_partition_generator": (lambda parts: parts.stream, lambda value: callable(value.generate)),
    "_primary_key": (lambda parts: parts.stream, lambda value: value == ["id"]),
    "_partition_factory": (lambda parts: parts.generator, lambda value: callable(value.create)),
    "_retriever": (lambda parts: parts.factory, lambda value: callable(value.read_records)),
    "_schema_loader": (lambda parts: parts.factory, lambda value: "id" in value.get_json_schema()["properties"]),
    "_paginator": (lambda parts: parts.retriever, lambda value: value.get_initial_token() is None),
    "_delegate": (lambda parts: parts.stopping, lambda value: type(value).__name__ == "CursorPaginationStrategy"),
}


@pytest.fixture
def parts(api: Api) -> Parts:
    return Parts(api)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_of_the_cdk_is_what_it_is_taken_for(name: str, parts: Parts) -> None:
    owner, is_right = PRIVATE[name]
    assert is_right(getattr(owner(parts), name))


def private_names(tree: ast.Module) -> Iterator[str]:
    """Names with an underscore of objects that are not of the module itself."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and _is_of_self(node)}
    for attribute in attributes:
        if not attribute.attr.startswith("__") and not (_is_of_self(attribute) and attribute.attr in own):
            yield attribute.attr
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "replace_name":
            [name] = [
                part.value for part in call.args if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            yield from [name] if name.startswith("_") else []
    for node in ast.walk(tree):
        # A class that is derived from one of the CDK's replaces its methods.
        if isinstance(node, ast.ClassDef) and node.bases:
            methods = (statement.name for statement in node.body if isinstance(statement, ast.FunctionDef))
            yield from (name for name in methods if name[0] == "_")


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def test_no_other_private_name_is_used() -> None:
    of_cursors = {name for names in _cursors._NAMES.values() for name in names}
    used, by_cursors = {*private_names(CDK), *private_names(INSTALLED)}, set(private_names(CURSORS))
    assert (used - set(PRIVATE), set(PRIVATE) - used) == ({"_partition_router"}, set())
    assert (by_cursors - set(PRIVATE) - of_cursors, of_cursors - by_cursors) == (set(), set())


def test_a_cursor_without_a_name_that_is_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _cursors.check_names()
    monkeypatch.setitem(_cursors._NAMES, "Timer", ("_started",))
    with pytest.raises(AttributeError, match="Timer has no _started"):
        _cursors.check_names()


def test_every_name_that_is_imported_from_the_cdk_is_there() -> None:
    names = []
    for node in (node for tree in (CDK, INSTALLED, CURSORS) for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airbyte_cdk"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                names.append(alias.name)
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
    assert len(names) > 10


def test_authenticators_and_components_go_through_the_names_that_are_replaced() -> None:
    from airbyte_cdk.sources.declarative.auth import token
    from airbyte_cdk.sources.declarative.parsers import custom_code_compiler as compiler
    from airbyte_cdk.sources.declarative.requesters import http_requester
    from airbyte_cdk.sources.declarative.retrievers import simple_retriever
    from airbyte_cdk.sources.streams.http.requests_native_auth import abstract_oauth

    _installed.cdk_version()
    for module in (token, abstract_oauth):
        assert isinstance(module.requests, _installed._Requests)
        assert "requests." in inspect.getsource(module)
    for module in (http_requester, simple_retriever):
        assert module.combine_mappings([{}, None, ""]) == {}
        assert module.combine_mappings([{"a": 1}, {"b": 2}]) == {"a": 1, "b": 2}
        assert " combine_mappings(" in inspect.getsource(module)
    names = (compiler.COMPONENTS_MODULE_NAME, compiler.SDM_COMPONENTS_MODULE_NAME)
    assert names == ("components", "source_declarative_manifest.components")
    expected = ["components_py_text", "checksums"]
    assert list(inspect.signature(compiler.register_components_module_from_string).parameters) == expected


def test_a_retriever_asks_its_paginator_for_a_token_once_before_and_once_after_a_page(api: Api) -> None:
    """What reading by page rests on: the token before a page is ours, and None after it ends the slice."""
    asked: list[str] = []

    class Asked:
        def __init__(self, manifests: Any) -> None:
            self._manifests = manifests

        def get_initial_token(self) -> Any:
            asked.append("before")
            return f"{api.url}/v1/links?p=3"

        def next_page_token(self, *arguments: Any, **options: Any) -> None:
            asked.append("after")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._manifests, name)

    links = Parts(api).streams[2]
    from airbyte_cdk.sources.types import StreamSlice

    retriever = links._retriever
    retriever._paginator = Asked(retriever._paginator)
    records = list(retriever.read_records({}, StreamSlice(partition={}, cursor_slice={})))
    assert [record["id"] for record in records] == [30, 31]
    assert asked == ["before", "after"]
    assert api.asked == ["/v1/links?p=3"]


def test_a_selector_has_no_further_part_that_could_change_records() -> None:
    """One that only extracts is passed by: a new part of it, or of its retriever, would be too."""
    from airbyte_cdk.sources.declarative.extractors import RecordSelector
    from airbyte_cdk.sources.declarative.retrievers import SimpleRetriever

    looked_at = {"record_filter", "transformations", "file_uploader", "schema_normalization"}
    harmless = {"extractor", "config", "name", "_name", "transform_before_filtering"}
    assert {field.name for field in dataclasses.fields(RecordSelector)} == looked_at | harmless
    read_fields = """
        requester record_selector config name _name primary_key _primary_key paginator stream_slicer
        request_option_provider ignore_stream_slicer_parameters_on_paginated_requests additional_query_properties
        log_formatter pagination_tracker_factory post_pagination_filter page_size_reduction request_window_splitting
        request_window_splitter
    """
    assert not {field.name for field in dataclasses.fields(SimpleRetriever)} - set(read_fields.split())


def test_the_tested_version_is_the_locked_one() -> None:
    lock = Path(__file__).parents[4] / "constraints.txt"
    assert f"airbyte-cdk=={_installed.TESTED}" in lock.read_text().splitlines()


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        (
            "airbyte_cdk.sources.streams.http.http_client.HttpClient._handle_error_resolution",
            "type object 'HttpClient' has no attribute '_handle_error_resolution'",
        ),
        (
            "airbyte_cdk.sources.declarative.auth.token.requests",
            "module 'airbyte_cdk.sources.declarative.auth.token' has no attribute 'requests'",
        ),
    ],
)
def test_a_name_that_is_missing_is_told_with_the_tested_version(missing: str, problem: str) -> None:
    owner, _, name = missing.rpartition(".")
    program = f"""
import pkgutil, sys
from airflow_provider_rfr.exceptions import ConfigurationError, SourceError
from airflow_provider_rfr.streams.airbyte import _guard, _installed
from airflow_provider_rfr.streams.loader import load_stream
with _installed._logging_as_it_is():
    import airbyte_cdk.sources.declarative.concurrent_declarative_source
delattr(pkgutil.resolve_name({owner!r}), {name!r})
try:
    _installed.cdk_version()
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ConfigurationError source.manifest: airbyte-cdk ")
    assert f"is not as expected ({problem}); this package is tested with {_installed.TESTED}" in done.stdout
    assert f"; install airbyte-cdk=={_installed.TESTED}, on the executors too" in done.stdout


def test_a_name_that_is_missing_later_is_told_with_the_tested_version_too(api: Api) -> None:
    stream = load_stream(api.source(), "links")
    del stream._interpreted._retriever
    with raises(SourceError):
        stream.read_page({}, None)


@pytest.mark.parametrize("part", ["retriever", "paginator", "strategy"])
def test_a_class_of_the_cdk_that_is_not_known_is_refused_and_not_read_by_slice(api: Api, part: str) -> None:
    with _cdk.registering():
        interpreter = _cdk.Interpreter(shop_with("links"), {"url": api.url, "api_key": KEY}, None)
        [stream] = interpreter.built(interpreter.definitions())

    def renewed(value: Any, module: str) -> Any:
        value.__class__ = type("Renewed", (type(value),), {"__module__": module})
        return value

    fields = {
        "retriever": lambda: stream._retriever,
        "paginator": lambda: stream._retriever._paginator,
        "strategy": lambda: stream._retriever._paginator.pagination_strategy,
    }[part]()
    renewed(fields, "airbyte_cdk.sources.anything")
    with raises(ConfigurationError):
        stream.paging  # noqa: B018
    # One of the connector's own is read by slice.
    renewed(fields, "components")
    assert not stream.paging.by_page


def test_whatever_sends_or_waits_in_the_cdk_is_known() -> None:
    import airbyte_cdk
    import backoff

    root = Path(str(airbyte_cdk.__file__)).parent / "sources"
    texts = {str(file.relative_to(root)): file.read_text() for file in root.rglob("*.py")}
    verbs = r"(get|post|put|patch|delete|head|request|Session)\b"
    sends = rf"\brequests\.{verbs}\(|from requests import .*\b{verbs}|urllib\.request|import (httpx|aiohttp)"
    senders = {name for name, text in texts.items() if re.search(sends, text)}
    assert senders == {
        "declarative/auth/token.py",
        "streams/http/requests_native_auth/abstract_oauth.py",
        # Files are not read here.
        "file_based/file_types/unstructured_parser.py",
    }
    texts |= {file.name: file.read_text() for file in Path(str(backoff.__file__)).parent.glob("_sync.py")}
    waiting = {name: text for name, text in texts.items() if re.search(r"\bsleep\(|from time import", text)}
    assert len(waiting) > 4
    for name, text in waiting.items():
        assert set(re.findall(r"(\S*)\bsleep\(", text)) == {"time."}, name
        assert "from time import" not in text, name
