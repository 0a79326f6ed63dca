"""Builds streams from a manifest, its components and a configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from airflow_provider_rfr.exceptions import ConfigurationError, Problem, SourceDefinitionError
from airflow_provider_rfr.http.redaction import MASK, Redactor, is_secret
from airflow_provider_rfr.streams.airbyte import _cdk
from airflow_provider_rfr.streams.airbyte import spec as specs
from airflow_provider_rfr.streams.airbyte._guard import Hosts, StreamWork
from airflow_provider_rfr.streams.airbyte.spec import ManifestLimits, StreamReport
from airflow_provider_rfr.streams.airbyte.stream import ManifestStream, with_own_errors
from airflow_provider_rfr.streams.core import ReadContext

_Result = TypeVar("_Result")
_FIELDS: Final = "airflow rfr manifest connection lists the fields"
_FINGERPRINT_FORMAT: Final = 1
# They may change while a refresh is under way, as in our own format.
_NOT_IN_FINGERPRINT: Final = frozenset({"primary_key", "schema_loader", "error_handler", "authenticator"})
_ADDRESSES: Final = frozenset({"url_base", "url", "path", "api_url", "token_refresh_endpoint"})
_CODE_IN_TEXT: Final = "\n"
_OLDEST_MAJOR: Final = 7


def build_manifest_stream(source: Mapping[str, Any], name: str) -> ManifestStream:
    """Build one stream, and the parents that it needs.

    :raises ConfigurationError: the manifest or the configuration is wrong, or there is no such stream
    """
    streams = build_manifest_streams(source, name)
    if name not in streams:
        names = ", ".join(sorted(streams))
        raise ConfigurationError("streams", f"the source has no stream {name!r}", f"allowed: {names}")
    return streams[name]


def build_manifest_streams(source: Mapping[str, Any], name: str | None = None) -> dict[str, ManifestStream]:
    """Build all streams of a source, by the manifest's names; only the one named ``name`` if there is one.

    :raises ConfigurationError: the manifest or the configuration is wrong, or the CDK is not installed
    """
    return _ManifestSource(whole_manifest(source)).streams(name)


def check_manifest(source: Mapping[str, Any]) -> list[StreamReport]:
    """Return a report of each of a manifest's streams; nothing is requested.

    :raises ConfigurationError: as of :func:`build_manifest_streams`
    """
    return _ManifestSource(whole_manifest(source)).reports()


def whole_manifest(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source with the text of its files: the manifest as a mapping, the components as Python.

    :raises ConfigurationError: a file can't be read
    """
    whole = dict(source)
    if isinstance(source["manifest"], (str, Path)):
        whole["manifest"] = _read_manifest(Path(source["manifest"]))
    if not isinstance(whole["manifest"], Mapping):
        raise ConfigurationError("source.manifest", f"must be a path or a mapping, is {type(source['manifest'])}")
    components = source.get("components")
    if components is None:
        whole.pop("components", None)
    # A path has no line ends, a module that does anything has.
    elif isinstance(components, Path) or (isinstance(components, str) and _CODE_IN_TEXT not in components):
        whole["components"] = _text_of(Path(components), "source.components") + _CODE_IN_TEXT
    elif not isinstance(components, str):
        raise ConfigurationError("source.components", f"must be a path, is {type(components).__name__}")
    if source.get("components_keep_state") not in (None, True, False):
        problem = f"must be true or false, is {source['components_keep_state']!r}"
        raise ConfigurationError("source.components_keep_state", problem)
    return whole


def _text_of(path: Path, place: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(place, f"{path}: {getattr(error, 'strerror', None) or error}") from error


class _ManifestLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the faster one, if built
    """YAML as the CDK reads it, but dates stay text: the manifest travels to executors as JSON."""


_ManifestLoader.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_scalar)


def _read_manifest(path: Path) -> Any:
    text = _text_of(path, "source.manifest")
    problem = ""
    try:
        return yaml.load(text, _ManifestLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = f"{path}{line}: {getattr(error, 'problem', None) or 'is not YAML'}"
    raise SourceDefinitionError("source.manifest", problem)


class _ManifestSource:
    """A manifest with its configuration.

    :param source: with the text of its files
    :raises ConfigurationError: it needs something that is missing
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        manifest, secrets = source["manifest"], dict(source.get("secrets") or {})
        self._source = source
        self._components: str | None = source.get("components")
        spec = specs.specification(manifest)
        self._config = specs.fitting(specs.merged(source.get("config") or {}, secrets), spec)
        self._public = specs.without_secrets(self._config, secrets, spec)
        self._redactor = Redactor(specs.secret_values(self._config, self._public))
        installed, declared = _cdk.cdk_version(), str(manifest.get("version", ""))
        self._major, major = int(installed.partition(".")[0]), declared.partition(".")[0]
        self._hint = ""
        if self._components is not None and major.isdigit() and int(major) < _OLDEST_MAJOR:
            # For failures of components that were written for a CDK with other classes.
            self._hint = (
                f"the connector was written for airbyte-cdk {declared}, installed is {installed}: "
                "take a newer copy of its manifest and components"
            )
        _refuse_code(manifest, self._components)
        problems = dict.fromkeys(specs.config_problems(spec, self._config)) if spec else ()
        if problems:
            raise ConfigurationError.of(Problem(*problem, _FIELDS) for problem in problems)

    def streams(self, name: str | None) -> dict[str, ManifestStream]:
        with _cdk.registering():
            interpreter = self._working(self._interpreter, None)
            addresses = [interpreter.rendered(*address) for address in _addresses(interpreter.definition)]
            hosts = Hosts.of(addresses, self._source.get("allowed_hosts") or ())
            streams = self._working(lambda work: interpreter.built(interpreter.definitions(name)), hosts)
            return {stream.name: self._stream(interpreter, stream, hosts) for stream in streams}

    def reports(self) -> list[StreamReport]:
        """Return a report of each stream without a request; a definition stands for the streams that the API lists."""
        with _cdk.registering():
            interpreter = self._working(self._interpreter, None)
            listed = [specs.report_of_listing(definition) for definition in interpreter.listings]
            definitions = self._working(lambda work: interpreter.definitions(asking=False), None)
            return [*(self._report(interpreter, definition) for definition in definitions), *listed]

    def _report(self, interpreter: _cdk.Interpreter, definition: Mapping[str, Any]) -> StreamReport:
        """Return the report of a stream, which may be the reason why it can't be read."""

        def report(work: StreamWork) -> StreamReport:
            [stream] = interpreter.built([definition])
            return specs.report_of(stream, self._paging(stream), _limits(interpreter, stream))

        try:
            return self._working(report, None)
        except ConfigurationError as error:
            why = str(error).removeprefix("source.manifest: ")
            # A shorter value may be part of any word.
            long = {name: value for name, value in self._public.items() if isinstance(value, str) and len(value) > 3}
            fields = [f"config.{name}" for name, value in long.items() if value in why]
            reference = f"; see {', '.join(fields)}" if fields else ""
            return StreamReport(str(definition.get("name")), "no", why + reference, is_readable=False)

    def _interpreter(self, work: StreamWork) -> _cdk.Interpreter:
        try:
            return _cdk.Interpreter(self._source["manifest"], self._config, self._components)
        except Exception as error:
            problem = specs.manifest_problem(error)
            if problem is None:
                raise
        # Out here: the first error quotes the manifest at length.
        raise SourceDefinitionError("source.manifest", problem, "see the manifest's reference of Airbyte")

    def _working(self, do: Callable[[StreamWork], _Result], hosts: Hosts | None) -> _Result:
        try:
            return with_own_errors(do, self._redactor, ReadContext(), hosts, self._hint)
        except ConfigurationError:
            raise
        except Exception as error:
            problem = str(error)
            if hosts is not None and getattr(error, "request", None):
                # The API was asked which streams there are: that is no mistake in the manifest.
                raise
        raise SourceDefinitionError("source.manifest", problem, "" if self._hint in problem else self._hint)

    def _paging(self, interpreted: _cdk.Interpreted) -> _cdk.Paging:
        """Return the stream's paging, as far as the connector's code allows to determine it."""
        paging, custom = interpreted.paging, ", ".join(specs.custom_classes(interpreted.definition))
        if not custom:
            return paging
        if self._source.get("components_keep_state"):
            why = f"a slice is read whole, by new objects of {custom}: components_keep_state is set"
            return _cdk.Paging(False, why, is_one_page=paging.is_one_page, keeps_state=True)
        condition = f", if {custom} keeps nothing between pages" if paging.by_page else ""
        return replace(paging, why=f"{paging.why}{condition}")

    def _stream(self, interpreter: _cdk.Interpreter, interpreted: _cdk.Interpreted, hosts: Hosts) -> ManifestStream:
        name, own_source = interpreted.name, self._source
        if not interpreter.declares(name):
            # Executors build it without a request for the list of streams: so all processes use the driver's list, even
            # if the API's list changes.
            streams = {"streams": [interpreted.declared], "dynamic_streams": []}
            # Of the parts that are left out, the hosts are still among those that may be asked.
            named = {"definitions": {"hosts": [{"url_base": origin} for origin in sorted(hosts.origins)]}}
            own_source = {**self._source, "manifest": {**interpreter.definition, **streams, **named}}
        return ManifestStream(
            interpreted,
            paging=self._paging(interpreted),
            redactor=self._redactor,
            hosts=hosts,
            limits=_limits(interpreter, interpreted),
            fingerprint=self._fingerprint(interpreted),
            rebuild=lambda: (build_manifest_stream, (own_source, name)),
            hint=self._hint,
        )

    def _fingerprint(self, interpreted: _cdk.Interpreted) -> Mapping[str, Any]:
        """Return everything that decides which requests the stream and its parents send, as JSON without secrets."""
        definition = json.loads(json.dumps(_masked(interpreted.definition, self._redactor), default=str))
        components = self._components
        return {
            "class": "airflow_provider_rfr.streams.airbyte:ManifestStream",
            "format": _FINGERPRINT_FORMAT,
            "name": interpreted.name,
            "definition": definition,
            "components": hashlib.sha256(components.encode()).hexdigest() if components else None,
            "config": self._public,
            "cdk": self._major,
            # Other pages, which don't join those that were read without it.
            **({"components_keep_state": True} if self._source.get("components_keep_state") else {}),
        }


def _limits(interpreter: _cdk.Interpreter, stream: _cdk.Interpreted) -> ManifestLimits:
    budget = interpreter.definition.get("api_budget")
    return specs.limits_of(budget, specs.nodes_of(stream.definition), interpreter.concurrency, interpreter.rendered)


def _refuse_code(manifest: Mapping[str, Any], components: str | None) -> None:
    """Refuse class names: in a manifest, one may be that of any function that can be imported.

    :raises ConfigurationError: there is one, and the source does not say which code may run
    """
    for node in specs.nodes_of(manifest):
        name, kind = node.get("class_name"), str(node.get("type", "Custom"))
        if components is None and isinstance(name, str) and "." in name and kind.startswith("Custom"):
            problem = f"the manifest uses {name}, which is Python code that comes with the connector"
            remedy = "if you trust it, add components: PATH of its components.py"
            raise ConfigurationError("source.components", problem, remedy)


def _addresses(definition: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the addresses that a manifest names, as templates with their parameters."""
    for node in specs.nodes_of(definition):
        for name in _ADDRESSES & node.keys():
            if isinstance(node[name], str):
                parameters = node.get("$parameters")
                yield node[name], parameters if isinstance(parameters, Mapping) else {}


def _masked(value: Any, redactor: Redactor) -> Any:
    """Return a definition without fields that are not in the fingerprint, and without credentials written into it."""
    if isinstance(value, Mapping):
        kept = {}
        for name, item in value.items():
            if name not in _NOT_IN_FINGERPRINT:
                is_literal = is_secret(str(name)) and isinstance(item, str) and "{{" not in item
                kept[str(name)] = MASK if is_literal else _masked(item, redactor)
        return kept
    if isinstance(value, list):
        return [_masked(item, redactor) for item in value]
    return redactor.text(value) if isinstance(value, str) else value
