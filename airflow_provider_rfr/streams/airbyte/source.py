"""Streams of a manifest, built with its components and a configuration, and read one page at a time."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias, TypeVar

import yaml

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    ConfigurationError,
    Problem,
    RateLimitedError,
    ReadInterrupted,
    RfrError,
    SourceDefinitionError,
    SourceError,
    SyncStateError,
)
from airflow_provider_rfr.http.redaction import MASK, Redactor, is_secret
from airflow_provider_rfr.streams.airbyte import _cdk, _cursors
from airflow_provider_rfr.streams.airbyte import spec as specs
from airflow_provider_rfr.streams.airbyte._guard import (
    Hosts,
    StreamWork,
    redacted_message,
    without_secrets,
    working_for,
)
from airflow_provider_rfr.streams.airbyte._installed import TESTED, cdk_version
from airflow_provider_rfr.streams.airbyte._slices import (
    FrozenPart,
    from_json,
    frozen_parent_state,
    key_of_slice,
    slice_parts,
    slice_to_json,
    to_json,
)
from airflow_provider_rfr.streams.airbyte.spec import ManifestLimits, StreamReport
from airflow_provider_rfr.streams.core import Page, ReadContext, canonical_json, unique_slices
from airflow_provider_rfr.streams.incremental import CursorColumn, StatefulRead, another_cursor
from airflow_provider_rfr.streams.paged import PagedStream
from airflow_provider_rfr.streams.tokens import SAME_TOKEN

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Rebuild: TypeAlias = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
_FIELDS: Final = "airflow rfr source connection lists the fields"
_FINGERPRINT_FORMAT: Final = 1
# Fields that may change while a refresh is under way, as in our own format.
_NOT_IN_FINGERPRINT: Final = frozenset({"primary_key", "schema_loader", "error_handler", "authenticator"})
_ADDRESSES: Final = frozenset({"url_base", "url", "path", "api_url", "token_refresh_endpoint"})
_CODE_IN_TEXT: Final = "\n"
_OLDEST_MAJOR: Final = 7
_REFUSED: Final = frozenset({401, 403})
_TOO_MANY: Final = 429
_LOOKBACK: Final = "lookback_window"
_OF_CODE: Final = (AttributeError, ImportError, NameError, TypeError)


def build_manifest_stream(
    source: Mapping[str, Any], name: str, state: Mapping[str, Any] | None = None
) -> ManifestStream:
    """Build one stream, and the parents that it needs.

    :param state: state of the CDK's cursor, from which it lists the slices of a sync; None for a full refresh
    :raises ConfigurationError: the manifest or the configuration is wrong, or there is no such stream
    """
    streams = _ManifestSource(whole_manifest(source), {} if state is None else {name: state}).streams(name)
    if name not in streams:
        names = ", ".join(sorted(streams))
        raise ConfigurationError("streams", f"the source has no stream {name!r}", f"allowed: {names}")
    return streams[name]


def build_manifest_streams(source: Mapping[str, Any]) -> dict[str, ManifestStream]:
    """Build all streams of a source, by the manifest's names.

    :raises ConfigurationError: the manifest or the configuration is wrong, or the CDK is not installed
    """
    return _ManifestSource(whole_manifest(source)).streams(None)


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
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = f"{path}{line}: {getattr(error, 'problem', None) or 'is not YAML'}"
    raise SourceDefinitionError("source.manifest", problem)


class _ManifestSource:
    """A manifest with its configuration.

    :param source: the source, with the text of its files
    :param states: states of the CDK's cursors, by stream
    :raises ConfigurationError: it needs something that is missing
    """

    def __init__(self, source: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._states = states
        manifest, secrets = source["manifest"], dict(source.get("secrets") or {})
        self._source = source
        self._components: str | None = source.get("components")
        spec = specs.specification(manifest)
        self._config = specs.fitting(specs.merged(source.get("config") or {}, secrets), spec)
        self._public = specs.without_secrets(self._config, secrets, spec)
        self._redactor = Redactor(specs.secret_values(self._config, self._public))
        installed, declared = cdk_version(), str(manifest.get("version", ""))
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
        """Return the report of a stream; of one that can't be read, it has the reason."""

        def report(work: StreamWork) -> StreamReport:
            [stream] = interpreter.built([definition])
            column = specs.cursor_column(stream.declared, interpreter.rendered)
            return specs.report_of(stream, self._paging(stream), _limits(interpreter, stream), column)

        try:
            return self._working(report, None)
        except ConfigurationError as error:
            why = str(error).removeprefix("source.manifest: ")
            # A value of up to three characters may be part of any word.
            long = {name: value for name, value in self._public.items() if isinstance(value, str) and len(value) > 3}
            fields = [f"config.{name}" for name, value in long.items() if value in why]
            reference = f"; see {', '.join(fields)}" if fields else ""
            return StreamReport(str(definition.get("name")), "no", why + reference, is_readable=False)

    def _interpreter(self, work: StreamWork) -> _cdk.Interpreter:
        try:
            return _cdk.Interpreter(self._source["manifest"], self._config, self._components, self._states)
        except Exception as error:
            problem = specs.manifest_problem(error)
            if problem is None:
                raise
        # Raised outside of the handler: the first error quotes the manifest at length.
        raise SourceDefinitionError("source.manifest", problem, "see the manifest's reference of Airbyte")

    def _working(self, do: Callable[[StreamWork], _Result], hosts: Hosts | None) -> _Result:
        try:
            return _with_own_errors(do, self._redactor, ReadContext(), hosts, self._hint)
        except ConfigurationError:
            raise
        except Exception as error:
            problem = str(error)
            if hosts is not None and getattr(error, "request", None):
                # The request for the list of streams failed: that is no mistake in the manifest.
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
        name, declared = interpreted.name, interpreted.declared

        def only(definition: Mapping[str, Any]) -> Mapping[str, Any]:
            parts = {"streams": [definition], "dynamic_streams": [], "schemas": {}}
            # The hosts of the parts that are left out stay allowed.
            named = {"definitions": {"hosts": [{"url_base": origin} for origin in sorted(hosts.origins)]}}
            return {**self._source, "manifest": {**interpreter.definition, **parts, **named}}

        # A source of this stream alone: the CDK interprets a large manifest in some seconds, and again for each state.
        # Where the API lists the streams, this also makes all processes use the driver's list.
        own_source = only(declared)
        changes = declared.get(specs.OF_CHANGES)
        stream = ManifestStream(
            interpreted,
            paging=self._paging(interpreted),
            redactor=self._redactor,
            hosts=hosts,
            limits=_limits(interpreter, interpreted),
            fingerprint=self._fingerprint(interpreted),
            rebuild=lambda: (build_manifest_stream, (own_source, name)),
            rebuild_for_changes=None if changes is None else lambda: (build_manifest_stream, (only(changes), name)),
            column=specs.cursor_column(declared, interpreter.rendered),
            hint=self._hint,
        )
        stream.api_host = hosts.host_in(interpreter.rendered(*specs.address_of(interpreted.definition)))
        return stream

    def _fingerprint(self, interpreted: _cdk.Interpreted) -> Mapping[str, Any]:
        """Return everything that decides which requests the stream and its parents send, as JSON without secrets."""
        definition = json.loads(json.dumps(_masked(interpreted.declared, self._redactor), default=str))
        components = self._components
        return {
            "class": "airflow_provider_rfr.streams.airbyte:ManifestStream",
            "format": _FINGERPRINT_FORMAT,
            "name": interpreted.name,
            "definition": definition,
            "components": hashlib.sha256(components.encode()).hexdigest() if components else None,
            "config": self._public,
            "cdk": self._major,
            # With it a slice is one page, so a refresh can't resume from pages that were read without it.
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


class ManifestStream(PagedStream):
    """A stream of a manifest, read as the CDK does. Stateless: any thread may read any page of any slice.

    A slice is JSON, see ``_slices``.

    :ivar paging: whether it is read by page or by slice, and why
    :param paging: the paging as far as the connector's code lets it be known
    :param hosts: the hosts to which requests may go
    :param limits: the request rates that the manifest allows
    :param rebuild: returns a function that builds the stream in another process, and its arguments; they hold secrets,
        so they are in no attribute
    :param rebuild_for_changes: the same for the definition for changes, where the manifest has two for this stream
    :param column: the column by which it is read incrementally; None if it can't be
    :param hint: added to errors of components that were written for an older CDK
    """

    paces_itself = True
    # As in the CDK: a cursor that advances is progress. One that comes twice is an error.
    max_empty_pages = sys.maxsize
    casts = True  # as Airbyte's destinations do: schemas of manifests are guessed from a few records

    def __init__(
        self,
        interpreted: _cdk.Interpreted,
        *,
        paging: _cdk.Paging,
        redactor: Redactor,
        hosts: Hosts,
        limits: ManifestLimits,
        fingerprint: Mapping[str, Any],
        rebuild: _Rebuild,
        rebuild_for_changes: _Rebuild | None = None,
        column: CursorColumn | None = None,
        hint: str = "",
    ) -> None:
        self.name = interpreted.name
        self.primary_key = interpreted.primary_key
        self.paging = paging
        self.page_size = self.paging.page_size
        self.pages_by = paging.why
        # The definition for changes may page in another way.
        self.addressable = self.paging.step is not None and rebuild_for_changes is None
        self.requests_per_second = limits.requests_per_second
        self.max_concurrency = limits.concurrency
        self._limits = limits
        self._interpreted = interpreted
        self._is_left_half_way = False
        self._redactor = redactor
        self._hosts = hosts
        self._fingerprint = fingerprint
        self._rebuild = rebuild
        self._rebuild_for_changes = rebuild_for_changes
        self._column = column
        self._hint = hint
        self.incremental = None if column is None else ManifestRead(self, column)
        self.why_not_incremental = (
            specs.why_not_incremental(interpreted.declared),
            "load it by ResumableFullRefreshOperator",
        )

    @cached_property
    def json_schema(self) -> Mapping[str, Any] | None:  # type: ignore[override]  # some streams ask the API for it
        schema = self._working(lambda work: self._interpreted.schema)
        return specs.with_cursor(schema, self._column)

    def report(self) -> StreamReport:
        """Return how the stream is read, by its definition."""
        return specs.report_of(self._interpreted, self.paging, self._limits, self._column)

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        """Yield the partitions; a parent stream is read for them."""
        if not self.paging.by_page:
            _log.warning("%s: can't be resumed within a slice: %s", self.name, self.paging.why)
        elif specs.custom_classes(self._interpreted.definition):
            _log.warning("%s: resumed by page: %s; else set components_keep_state", self.name, self.paging.why)
        for warning in specs.warnings_of(self._interpreted.definition, self._limits):
            _log.warning("%s: %s", self.name, warning)
        return self.listed(reads_changes=False, freezes=False)

    def listed(self, *, reads_changes: bool, freezes: bool) -> Iterator[Mapping[str, Any]]:
        """Return the slices without duplicates, also if they were listed before.

        :param reads_changes: whether they are of the definition for changes
        :param freezes: whether to fix the bounds between which records count
        """
        if self._interpreted.is_listed:
            # The CDK lists slices once: the cursors of parents that are read incrementally have advanced.
            self._interpreted = self._built_again()
        slices = self._interpreted.slices()

        def following(work: StreamWork) -> Mapping[str, Any] | None:
            stream_slice = next(slices, None)
            if work.ignored is not None:
                _log.warning("%s: partitions may be missing: the manifest ignores %s", self.name, work.ignored)
            if stream_slice is None:
                return None
            bounds = self._interpreted.bounds_of(stream_slice) if freezes else None
            return FrozenPart(bounds, reads_changes=reads_changes).within(slice_to_json(stream_slice))

        unique = unique_slices(self, iter(lambda: self._working(following), None))
        listed = (stream_slice.partition for stream_slice in unique)
        return listed if self._interpreted.parent_state is None else self._with_parent_state(listed)

    def _with_parent_state(self, listed: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the slices, the last one with the state of the parents, which have been read to their end by then."""
        last: Mapping[str, Any] | None = None
        for stream_slice in listed:
            if last is not None:
                yield last
            last = stream_slice
        if last is not None:
            part = replace(FrozenPart.of(last), parent_state=self._interpreted.parent_state)
            yield part.within(last)

    def partition_key(self, stream_slice: Mapping[str, Any]) -> str:
        return canonical_json(key_of_slice(stream_slice), field="stream_slices")

    def after(self, state: Mapping[str, Any] | None, *, reads_changes: bool = False) -> ManifestStream:
        """Return the stream built anew, with the cursor of the CDK at this state.

        :param reads_changes: build the definition for changes, where the manifest has two; else the CDK decides it by
            the state
        :raises SyncStateError: the CDK can't read the state
        """
        rebuild = self._rebuild_for_changes if reads_changes and self._rebuild_for_changes else self._rebuild
        build, arguments = rebuild()
        problem = ""
        try:
            stream: ManifestStream = build(*arguments, state)
        except SourceDefinitionError as error:
            # It was built without a state before, so the state is the reason.
            problem = error.problem
        if problem:
            raise SyncStateError(f"{self.name}: the CDK can't read the state: {problem}")
        stream.bind(self.context)
        return stream

    @property
    def reads_changes(self) -> bool:
        """Tell whether the CDK has chosen the definition for changes, where the manifest has two."""
        return self._interpreted.definition is self._interpreted.declared.get(specs.OF_CHANGES)

    def cursors_in(self, state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the parts of a state that hold a value under the cursor's name."""
        cursors = [state]
        if self._interpreted.is_per_partition and {"states", "state"} & state.keys():
            cursors = [*(entry["cursor"] for entry in state.get("states") or ()), state.get("state") or {}]
        cursors = [cursor for cursor in cursors if cursor] or [{}]
        # A state with a type holds slices, in which values are not under the cursor's name.
        return [cursor for cursor in cursors if "state_type" not in cursor]

    @cached_property
    def _for_changes(self) -> ManifestStream:
        """Return the stream of the definition for changes, where the manifest has two."""
        return self.after(None, reads_changes=True)

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        if self._rebuild_for_changes is not None and FrozenPart.of(stream_slice).reads_changes:
            self._for_changes.bind(self.context)
            return self._for_changes.read_page(stream_slice, token)
        if token is not None and not self.paging.by_page:
            problem = f"page token {token!r}, but {self.paging.why}"
            raise ConfigurationError(f"{self.name}.state", problem, "start again with force_restart")
        return self._working(lambda work: self._page(stream_slice, token, work))

    def _page(self, stream_slice: Mapping[str, Any], token: Any | None, work: StreamWork) -> Page:
        work.token = from_json(token)
        page = _cdk.OnePage(work.token) if self.paging.by_page else None
        if page is not None:
            records = self._interpreted.read(slice_parts(stream_slice), page, FrozenPart.of(stream_slice).bounds)
        else:
            records = self._whole_slice(stream_slice)
        following = None if page is None else without_secrets(page.following, work)
        end = ", which ends the slice" if page is not None and following is None else ""
        skipped = None if work.ignored is None else f"the manifest ignores {work.ignored}{end}"
        received = None if page is None else page.received
        following = to_json(following, "page token")
        return Page(records, following, None, work.request, work.status, skipped=skipped, received=received)

    def _built_again(self) -> _cdk.Interpreted:
        build, arguments = self._rebuild()
        again: ManifestStream = build(*arguments)
        return again._interpreted

    def _whole_slice(self, stream_slice: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Read a whole slice, with objects of the connector that keep nothing of an interrupted read.

        A slice whose read was interrupted is read again, often by this process.
        """
        if self.paging.keeps_state or self._is_left_half_way:
            # Not the attribute: another thread may have set it meanwhile to the objects that it reads with.
            self._interpreted = interpreted = self._built_again()
            self._is_left_half_way = False
        else:
            interpreted = self._interpreted
        try:
            return interpreted.read(slice_parts(stream_slice), None, FrozenPart.of(stream_slice).bounds)
        except BaseException:
            self._is_left_half_way = bool(specs.custom_classes(interpreted.definition))
            raise

    def source_for_executors(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        _, (own_source, _) = self._rebuild()
        return own_source  # type: ignore[no-any-return]  # of a tuple of any arguments

    def token_at(self, position: int) -> Any | None:
        if self.paging.step is None:
            return super().token_at(position)
        return None if position == 0 else self.paging.first + position * self.paging.step

    def fingerprint(self) -> Mapping[str, Any]:
        return self._fingerprint

    def _working(self, do: Callable[[StreamWork], _Result]) -> _Result:
        return _with_own_errors(do, self._redactor, self.context, self._hosts, self._hint)

    def __reduce__(self) -> Any:
        return self._rebuild()

    def __repr__(self) -> str:
        return f"ManifestStream({self.name!r})"


class ManifestRead(StatefulRead):
    """The incremental reads of a stream, whose state is that of the CDK's cursor."""

    def __init__(self, stream: ManifestStream, column: CursorColumn) -> None:
        self.column = column
        self._stream = stream

    def slices_after(self, state: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        stream = self._stream.after(state)
        return stream.listed(reads_changes=stream.reads_changes, freezes=True)

    def state_after(
        self,
        state: Mapping[str, Any] | None,
        slices: Sequence[Mapping[str, Any]],
        largest: Mapping[int, datetime],
        opened_at: datetime,
        unread: Collection[int] = (),
    ) -> Mapping[str, Any]:
        reads_changes = any(FrozenPart.of(stream_slice).reads_changes for stream_slice in slices)
        stream = self._stream.after(state, reads_changes=reads_changes)
        parts, parents = map(slice_parts, slices), frozen_parent_state(slices)
        seconds = (datetime.now(timezone.utc) - opened_at).total_seconds()
        return stream._working(lambda work: stream._interpreted.state_after(parts, largest, parents, seconds, unread))

    def of_connection(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        stream = self._stream.after(state)
        # Where one of them lacks the cursor, the CDK would read everything, without a warning.
        for cursor in stream.cursors_in(state):
            if self.column.name not in cursor:
                raise another_cursor(cursor, self.column)
        return state

    def texts_in(self, state: Mapping[str, Any]) -> Iterator[str]:
        # The caller refuses moments that have not come yet: from one, the CDK lists no slice, without a warning.
        for name in (self.column.name, "most_recent_cursor_value", "end"):
            if isinstance(value := state.get(name), (str, int)):
                yield str(value)
        for name in ("state", "states", "cursor", "slices"):
            parts = state.get(name)
            for part in parts if isinstance(parts, list) else (parts,):
                yield from self.texts_in(part) if isinstance(part, Mapping) else ()

    def moves(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        # The lookback includes how long the last sync took, which differs each time.
        return {**before, _LOOKBACK: None} != {**after, _LOOKBACK: None}


def _with_own_errors(
    do: Callable[[StreamWork], _Result], redactor: Redactor, context: ReadContext, hosts: Hosts | None, hint: str = ""
) -> _Result:
    """Run ``do`` on this thread for the stream, and return its result.

    :raises RfrError: instead of any error of the CDK or a component, with a redacted message
    :raises ReadInterrupted: the reader was stopped
    """
    with working_for(redactor, context, hosts) as work:
        try:
            return do(work)
        except Exception as error:  # noqa: BLE001 - of the CDK, of components, of any library below them
            own = _own_error(error, work, hint)
    # Raised outside of the handler: the first error, whose text holds addresses and bodies, must not be the context.
    raise own


def _own_error(error: Exception, work: StreamWork, hint: str) -> Exception:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (RfrError, ReadInterrupted)):
            cause.__cause__ = cause.__context__ = None
            return cause
        cause = cause.__cause__ or cause.__context__
    # Of the CDK's own errors the message is for people; the internal one repeats bodies and headers.
    words = getattr(error, "message", None)
    words = words if isinstance(words, str) and words else f"{type(error).__name__}: {error}"
    words = words.removesuffix(" Please contact Airbyte Support.")
    # The place where a component failed; for the CDK's own errors it says nothing.
    frames = () if hasattr(error, "internal_message") else traceback.extract_tb(error.__traceback__)
    place = f" (in {PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, AttributeError) and frames and frames[-1].filename in (_cdk.__file__, _cursors.__file__):
        place = f"{place}; this package is tested with airbyte-cdk {TESTED}"
    message = redacted_message(f"{words}{place}", work.redactor)
    where: dict[str, Any] = {"status": work.status, "request": work.request}
    if work.status == _TOO_MANY:
        return RateLimitedError(message, retry_after=work.retry_after, **where)
    if work.status in _REFUSED:
        message = f"{message.removesuffix('.')}; {SAME_TOKEN}" if work.has_same_token else message
        return AuthenticationError(f"the API does not accept the credentials: {message}", **where)
    return SourceError(f"{message}; {hint}" if hint and isinstance(error, _OF_CODE) else message, **where)
