"""Conversion of the sync states of Airbyte connections and dlt pipelines into states of this package.

The input is, of Airbyte, protocol messages (STREAM, GLOBAL, LEGACY) or the export of its API or UI; of dlt, the file
``state.json`` of a pipeline's working folder, or a row of the table ``_dlt_pipeline_state``.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.schemas import COLUMNS_OF_OTHERS
from airflow_provider_rfr.lake.sync_state import SyncState
from airflow_provider_rfr.lake.table_reader import live_files
from airflow_provider_rfr.numbers import read_number
from airflow_provider_rfr.refresh.cursor_values import check_past, comparable_text, least, text_of
from airflow_provider_rfr.refresh.sync import rules_of
from airflow_provider_rfr.streams.core import Complete, key_paths, load_state
from airflow_provider_rfr.streams.incremental import CursorColumn, IncrementalRead, StatefulRead, another_cursor
from airflow_provider_rfr.streams.moments import read_moment, write_moment
from airflow_provider_rfr.streams.paged import PagedStream
from airflow_provider_rfr.streams.read import ConnectorStateManager

if TYPE_CHECKING:
    from pyiceberg.table import Table

_FORMS: Final = (
    "give the state of an Airbyte connection (its messages, or the JSON that its UI or API shows), or of dlt the file"
    " state.json in the pipeline's working folder"
)
_MOST_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class ForeignState:
    """The state of one stream in another tool.

    :ivar content: of Airbyte, its ``stream_state``; of dlt, the last value of each cursor, by its path
    """

    tool: Literal["airbyte", "dlt"]
    content: Mapping[str, Any]


def states_in(text: str) -> dict[str, ForeignState]:
    """Return the states in the text of a file, by the names of their streams.

    A stream with a namespace is named ``namespace.name``, and a dlt resource ``source.resource`` if several sources
    have a resource of that name.

    :raises ConfigurationError: the text has another form, or no state
    """
    states = None
    with suppress(RecursionError):
        document = _document_in(text)
        is_of_dlt = isinstance(document, Mapping) and ("sources" in document or "engine_version" in document)
        states = _dlt_states(document) if is_of_dlt else _airbyte_states(document)
    if states is None:
        raise ConfigurationError("file", "has values within values, too deep to be read", _FORMS)
    if not states:
        raise ConfigurationError("file", "has no state of a stream", _FORMS)
    return states


def _document_in(text: str) -> Any:
    try:
        return json.loads(text, parse_float=read_number)
    except ValueError:
        pass
    try:
        # A connector prints its messages line by line.
        return [json.loads(line, parse_float=read_number) for line in text.splitlines() if line.strip()]
    except ValueError:
        pass
    if (document := _unpacked(text)) is not None:
        return document
    raise ConfigurationError("file", "is not JSON", _FORMS)


def _unpacked(text: Any) -> Any:
    """Decode the column ``state`` of ``_dlt_pipeline_state`` (JSON in zlib in base64); return None for other texts."""
    try:
        return json.loads(zlib.decompress(base64.b64decode(text, validate=True)), parse_float=read_number)
    except (TypeError, ValueError, binascii.Error, zlib.error):
        return None


def _dlt_states(document: Mapping[str, Any]) -> dict[str, ForeignState]:
    if "sources" not in document:
        document = _mapping(_unpacked(document.get("state")) or {}, "state")
    found: list[tuple[str, str, ForeignState]] = []
    for source, content in _mapping(document.get("sources"), "sources").items():
        place = f"sources.{source}"
        resources = _mapping(_mapping(content, place).get("resources", {}), f"{place}.resources")
        for resource, kept in resources.items():
            place = f"sources.{source}.resources.{resource}"
            cursors = _mapping(_mapping(kept, place).get("incremental") or {}, f"{place}.incremental")
            values = {
                path: _plain(cursor["last_value"])
                for path, cursor in cursors.items()
                if "last_value" in _mapping(cursor, f"{place}.incremental.{path}")
            }
            if values:
                found.append((source, resource, ForeignState("dlt", values)))
    names = [resource for _, resource, _ in found]
    return {
        resource if names.count(resource) == 1 else f"{source}.{resource}": state for source, resource, state in found
    }


def _plain(value: Any) -> Any:
    """Return a value without its first character if that is a mark of dlt for decimals, times or dates."""
    return value[1:] if isinstance(value, str) and "\uf026" <= value[:1] <= "\uf02f" else value


def _airbyte_states(document: Any) -> dict[str, ForeignState]:
    manager = ConnectorStateManager()
    for message in document if isinstance(document, list) else [document]:
        for name, namespace, state in _airbyte_entries(_mapping(message, "state")):
            manager.update_state_for_stream(name, namespace, state)
    states = {}
    for message in manager.messages():
        descriptor, content = message["stream"]["stream_descriptor"], message["stream"]["stream_state"]
        names = (descriptor.get("namespace"), descriptor["name"])
        states[".".join(filter(None, names))] = ForeignState("airbyte", content)
    return states


_CONTAINERS: Final = ("stream", "global", "stream_states", "stream_state", "global_state", "state", "data")
"""Fields of messages and of the API's objects that may contain the states; the first one present counts."""


def _airbyte_entries(message: Mapping[str, Any]) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
    """Yield name, namespace and state of the streams in one message, or in one object of Airbyte's API."""
    part = next((part for name in _CONTAINERS if (part := _field(message, name)) is not None), None)
    if (descriptor := _field(message, "stream_descriptor")) is not None:
        name, namespace = (_mapping(descriptor, "stream_descriptor").get(field) for field in ("name", "namespace"))
        if not isinstance(name, str) or not isinstance(namespace, str | None):
            remedy = "give stream_descriptor.name, and stream_descriptor.namespace if there is one"
            raise ConfigurationError("file", f"{descriptor!r} names no stream", remedy)
        yield name, namespace, _mapping(_field(message, "stream_state") or {}, name)
    elif _field(message, "shared_state"):
        problem = "has a state that its streams share, from which no single stream can continue"
        raise ConfigurationError("file", problem, "run once with full_refresh")
    elif part is not None:
        for entry in part if isinstance(part, list) else [part]:
            yield from _airbyte_entries(_mapping(entry, "state"))
    elif not isinstance(message.get("type"), str):
        # The oldest form: states by the names of streams. Other messages that a connector prints have a type.
        for name, state in message.items():
            yield name, None, _mapping(state, name)


def _field(message: Mapping[str, Any], name: str) -> Any:
    """Return a field of a message by its name in snake case; Airbyte's API writes names in camel case."""
    first, *others = name.split("_")
    return message.get(name, message.get(first + "".join(map(str.capitalize, others))))


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError("file", f"{place} is {type(value).__name__}, not a mapping", _FORMS)
    return value


def choose(states: Mapping[str, ForeignState], name: str | None) -> tuple[str, ForeignState]:
    """Return name and state of the named stream; without a name, those of the only state.

    :raises ConfigurationError: there is none, or a name is needed
    """
    named = ", ".join(sorted(states)[:_MOST_NAMED]) + (" ..." if len(states) > _MOST_NAMED else "")
    if name is None and len(states) > 1:
        raise ConfigurationError("--stream", f"is needed: the file has {len(states)} streams", f"one of {named}")
    if name is not None and name not in states:
        raise ConfigurationError("--stream", f"the file has no state of {name!r}", f"one of {named}")
    return (name, states[name]) if name is not None else next(iter(states.items()))


def converted(state: ForeignState, stream: PagedStream) -> SyncState:
    """Return the state with which a sync of the stream continues where the other tool stopped.

    :raises ConfigurationError: the stream is not incremental, or the state does not fit it
    :raises SyncStateError: the state has a moment in the future
    """
    read = stream.incremental
    if read is None:
        place = f"streams.{stream.name}.incremental"
        raise ConfigurationError(place, *stream.why_not_incremental)
    if state.tool == "airbyte" and isinstance(load_state(state.content), Complete):
        raise ConfigurationError("file", "says that the stream was read in full", "run once with full_refresh")
    if isinstance(read, StatefulRead):
        content = state.content
        if state.tool == "dlt":
            content = {read.column.name: _of_cursor(content, read.column)}
        for _, cursor in _partitions(content):
            # A value that is no cursor value is not checked here: the stream validates its own state below.
            with suppress(ConfigurationError):
                check_past(_read(_value_in(cursor, read.column), read.column), read.column, _now())
        return SyncState(rules_of(stream, read), {}, of_source=read.of_connection(content))
    values: dict[str, str] = {}
    for partition, cursor in _partitions(state.content):
        key = _partition_key(read, partition)
        text = _text(_value_in(cursor, read.column), read.column, cursor.get("lookback_window"))
        # Partitions of Airbyte that differ only in their parents are one partition here: its value is the least.
        values[key] = least(values.get(key), text, column=read.column) or text
    return SyncState(rules_of(stream, read), values)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _partitions(content: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the partitions of a state, each with its cursor; ``{}`` is the stream as a whole."""
    if content.get("use_global_cursor"):
        yield {}, {**_mapping(content.get("state"), "state"), "lookback_window": content.get("lookback_window")}
    elif isinstance(entries := content.get("states"), list):
        for entry in entries:
            partition, cursor = (
                _mapping(_mapping(entry, "states").get(name), name) for name in ("partition", "cursor")
            )
            yield {name: value for name, value in partition.items() if name != "parent_slice"}, cursor
    else:
        yield {}, content


def _partition_key(read: IncrementalRead, partition: Mapping[str, Any]) -> str:
    try:
        key = read.partition_of(partition)
    except KeyError as error:
        problem = f"the stream's partitions have a field {error}, and those of the state {sorted(partition) or 'none'}"
    else:
        if set(json.loads(key)) == set(partition):
            return key
        problem = f"the state's partitions have the fields {sorted(partition)}, and those of the stream others"
    raise ConfigurationError("file", problem, "rename the fields in the file, or run once with full_refresh")


def _value_in(cursor: Mapping[str, Any], column: CursorColumn) -> Any:
    """Return the cursor value up to which a partition was read."""
    slices = cursor.get("slices")
    if not isinstance(slices, list) or "state_type" not in cursor:
        return _of_cursor({name: value for name, value in cursor.items() if name != "lookback_window"}, column)
    if not slices:
        raise ConfigurationError("file", "the state has no slices", "run once with full_refresh")
    # A concurrent state lists the slices that were read. Only up to the end of the first one there is surely no gap,
    # and Airbyte's own reader continues there.
    first = min((_mapping(item, "slices") for item in slices), key=lambda item: _read(item.get("start"), column))
    return first.get("most_recent_cursor_value") or first.get("start")


def _of_cursor(values: Mapping[str, Any], column: CursorColumn) -> Any:
    """Return the value of the stream's cursor; the other tool may spell its name differently.

    :param values: values by the names or paths of cursors
    :raises ConfigurationError: no name matches, or several do
    """
    by_name = {str(path).removeprefix("$."): value for path, value in values.items()}
    plain = _bare(column.name)
    alike = [name for name in by_name if name == column.name] or [name for name in by_name if _bare(name) == plain]
    if len(alike) != 1:
        raise another_cursor(by_name, column)
    return by_name[alike[0]]


def _bare(name: str) -> str:
    """Return a normalized name, the same for all spellings of tools: ``meta.updatedAt`` or ``meta__updated_at``."""
    return "".join(filter(str.isalnum, name)).lower()


def _text(value: Any, column: CursorColumn, lookback: Any) -> str:
    """Return a cursor value as the text in a state of this package, moved back by the lookback.

    :param lookback: seconds that the other tool would read again; None for none
    :raises ConfigurationError: the value is not of the cursor's type, or the lookback is no length of time
    :raises SyncStateError: the value is a moment in the future
    """
    read = _read(value, column)
    check_past(read, column, _now())
    text = text_of(read, column)
    if column.kind != "datetime" or lookback is None:
        return text
    with suppress(OverflowError, ValueError, TypeError):
        # A negative lookback would move the state beyond what was read.
        if not isinstance(lookback, bool) and lookback >= 0:
            return write_moment(read_moment(text) - timedelta(seconds=lookback))
    problem = f"the state's lookback_window {lookback!r} is no length of time in seconds"
    raise ConfigurationError("file", problem, "write e.g. 3600 into the file")


def _read(value: Any, column: CursorColumn) -> Any:
    """Return the comparable form of a cursor value.

    :raises ConfigurationError: the value is not of the cursor's type
    """
    read = None
    if value is not None and not isinstance(value, (bool, Mapping, list)):
        with suppress(ValueError, OverflowError):  # a lone surrogate; infinity
            read = comparable_text(str(value), column)
    if read is None:
        problem = f"the state's value {value!r} is no {column.kind}"
        if column.kind == "datetime":
            problem += f" of ISO 8601 nor of the format {column.format!r}"
        raise ConfigurationError("file", problem, "write it in that form into the file")
    return read


def check_table(stream: PagedStream, table: Table) -> None:
    """Check that a sync of the stream can continue the loaded table.

    :raises ConfigurationError: it has rows that can't be replaced, or lacks the key or the cursor, or requires a value
        in a column that only the other tool fills
    """
    assert stream.incremental is not None
    columns, name = {column.name: column for column in table.schema().fields}, ".".join(table.name())
    for wanted in (stream.incremental.column.name, *(path[0] for path in key_paths(stream.primary_key))):
        if wanted not in columns:
            remedy = "rename the table's column, or add a transformation to the stream"
            raise ConfigurationError("table", f"{name} has no column {wanted!r}, which {stream.name} has", remedy)
    own = [column.name for column in columns.values() if column.required and column.name.startswith(COLUMNS_OF_OTHERS)]
    if own:
        alter = "; ".join(f"ALTER TABLE {name} ALTER COLUMN {column} DROP NOT NULL" for column in own)
        problem = f"{name} requires a value in {', '.join(own)}, which only the other tool writes"
        raise ConfigurationError("table", problem, f"run in Spark SQL: {alter}")
    # Called only for its errors.
    live_files(table)
