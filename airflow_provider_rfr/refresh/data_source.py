"""The implementation of Spark's data source ``rfr``: options, columns, partitions and record batches of a stream.

There is no ledger: each action reads the API again. The classes that Spark calls are in the top-level module
``pyspark_rfr``.

A column of JSON texts has the same comment as in a published table. The comment identifies it in a schema that comes
back from Spark, or was taken from such a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_provider_rfr.documents import DocumentError, read_yaml, suggestion
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError, SourceError, SparkJobError, TypeMismatchError
from airflow_provider_rfr.http.redaction import is_secret, redact
from airflow_provider_rfr.lake.schemas import JSON_TEXT_DOC, TIMESTAMP, check_columns, is_json_text, json_text_field
from airflow_provider_rfr.refresh.column_rules import ColumnRules, misfits_in_words
from airflow_provider_rfr.refresh.config import is_reference, resolve_references, secret_values
from airflow_provider_rfr.refresh.page_rows import SeenColumns, encode_records, see_columns
from airflow_provider_rfr.refresh.typed_rows import LedgerPage, type_pages
from airflow_provider_rfr.streams.core import Page, Stream, unique_slices
from airflow_provider_rfr.streams.incremental import DELETED_FIELD
from airflow_provider_rfr.streams.loader import is_manifest, load_stream
from airflow_provider_rfr.streams.paged import PagedStream, as_paged, iter_pages
from airflow_provider_rfr.streams.rest.definition import read_document
from airflow_provider_rfr.text import page_place

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_OPTIONS: Final = ("source", "stream", "config", "secrets", "components")
_REQUIRED: Final = {"source": "the path of a definition or a manifest", "stream": "the name of a stream of the source"}
_MOST_OFFENDERS: Final = 3
_SPARK_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BooleanType",
    pa.int64(): "LongType",
    pa.float64(): "DoubleType",
    pa.string(): "StringType",
    pa.date32(): "DateType",
    TIMESTAMP: "TimestampType",
    pa.timestamp("us"): "TimestampNTZType",
    # Spark 4.0 has no type for it, and reads no table with such a column.
    pa.time64("us"): "StringType",
}
_READ_AS: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("byte", "short", "integer", "long"), pa.int64()),
    **dict.fromkeys(("float", "double"), pa.float64()),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_GIVEN_AS: Final[Mapping[str, pa.DataType]] = {
    **_READ_AS,
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "float": pa.float32(),
}


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns of the stream: declared ones, or inferred from the first page that has records.

    :raises ConfigurationError: an option or the source is wrong, or no columns are declared and none can be inferred
    :raises SourceError: the first page can't be read
    """
    source = _source(options)
    with _without_secrets(source):
        stream = load_stream(source, options["stream"])
        rules = ColumnRules.of(stream)
        columns = rules.columns(_first_columns(as_paged(stream)) if rules.infers else SeenColumns())
        # Fields that the source gives a type are columns even if the first page lacks them: a later page may have them.
        columns = pa.schema([*columns, *(hint for name, hint in rules.hints.items() if name not in columns.names)])
        if not columns.names:
            problem = f"no partition of {stream.name} has a record on its first page, to infer the columns from"
            raise ConfigurationError(
                "schema", problem, 'declare json_schema in the source, or load with .schema("...")'
            )
        return spark_schema(columns)


def _first_columns(stream: PagedStream) -> SeenColumns:
    """Infer the columns from the first page of the first partition in which that page has rows."""
    for ordinal, stream_slice in enumerate(unique_slices(stream)):
        first = next(iter_pages(stream, stream_slice), None)
        page = None if first is None else _page_of(stream, stream_slice.partition, 1, first)
        if page is not None and page.record_count:
            return see_columns([([page], [ordinal])])
    return SeenColumns()


def _page_of(stream: Stream, partition: Mapping[str, Any], number: int, page: Page) -> LedgerPage:
    """Return the page without records that the stream marks as deleted, as a full refresh publishes it."""
    records = [record for record in page.records if record.get(DELETED_FIELD) is not True]
    return LedgerPage(stream.partition_key(partition), number, encode_records(records), len(records), 0)


@dataclass(frozen=True, slots=True)
class StreamScan:
    """A scan of a stream by Spark; picklable.

    :ivar source: the source with its secrets, so it is left out of ``repr``
    :ivar layout: the columns of the DataFrame
    """

    source: Mapping[str, Any] = field(repr=False)
    stream: str
    layout: RowLayout

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> StreamScan:
        """Return the scan of the stream that the options name.

        :param schema: columns of the DataFrame
        :raises ConfigurationError: an option, the source or the schema is wrong
        """
        source = _source(options)
        layout = RowLayout.of(schema)
        with _without_secrets(source):
            stream = load_stream(source, options["stream"])
            # The content of the source's files travels along, because executors on other machines lack the files.
            return cls(dict(stream.source_for_executors(source)), stream.name, layout)

    def slices(self) -> list[dict[str, Any]]:
        """Return the stream's partitions; pages of parent streams are read for them.

        :raises SourceError: they can't be read
        """
        with _without_secrets(self.source):
            stream = load_stream(self.source, self.stream)
            return [dict(stream_slice.partition) for stream_slice in unique_slices(stream)]

    def batches(self, partition: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, page by page; no page is requested before its rows are asked for.

        :raises SourceError: a page can't be read
        :raises TypeMismatchError: a value does not fit its column
        """
        with _without_secrets(self.source):
            stream, number = as_paged(load_stream(self.source, self.stream)), 0
            try:
                for number, page in enumerate(iter_pages(stream, partition), start=1):
                    if not page.records:
                        continue
                    kept, columns = _page_of(stream, partition, number, page), self.layout.read
                    typed = type_pages([kept], columns, generation=0, max_offenders=_MOST_OFFENDERS, casts=stream.casts)
                    place = f"{stream.name}, {page_place(kept.partition, kept.page)}"
                    if typed.offenders:
                        remedy = "give the column another type, in columns of the stream or by .schema(...)"
                        raise TypeMismatchError(f"{place}: {misfits_in_words(typed)}; {remedy}")
                    yield from self.layout.fitted(typed.table, place).to_batches()
            except SourceError as error:
                error.partition, error.page = stream.partition_key(partition), number + 1
                raise


def _source(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the source that the options name, as the loader reads it, with its secrets.

    :raises ConfigurationError: an option is unknown, missing or wrong, or holds a secret
    """
    for name in options:
        if name.lower() not in _OPTIONS:
            raise ConfigurationError(f"option {name}", "unknown", suggestion(name, _OPTIONS))
    for name, meaning in _REQUIRED.items():
        if not options.get(name):
            raise ConfigurationError(f"option {name}", "is missing", f"write {meaning}")
    source: dict[str, Any] = {"file": options["source"]}
    if is_manifest(Path(options["source"])):
        source = {"manifest": options["source"]}
    if options.get("components"):
        source["components"] = options["components"]
    source["config"], secrets = _mapping(options, "config"), _mapping(options, "secrets")
    example = "{env: NAME} or {file: PATH}"
    for place in (*_marked_secrets(source), *_named_secrets(source["config"])):
        raise _shown(f"config.{'.'.join(place)}", f"write it in the option secrets, as {example}")
    for place in _literals(secrets):
        raise _shown(f"secrets.{'.'.join(place)}", f"write {example}")
    problems: list[str] = []
    source["secrets"] = resolve_references(secrets, "secrets", problems)
    if problems:
        raise ConfigurationError("option secrets", "; ".join(problems))
    return source


def _mapping(options: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the mapping that an option holds as JSON or YAML, or that is in the file that it names."""
    text = options.get(name, "").strip() or "{}"
    place, problem = f"option {name}", "must be a mapping"
    try:
        value = read_yaml(text if text.startswith("{") else Path(text).expanduser().read_bytes())
        if isinstance(value, Mapping):
            return dict(value)
    except OSError as error:
        problem = f"names a file that can't be read: {error.strerror}"
    except DocumentError as error:
        problem = f"can't be read: {error}"
    raise ConfigurationError(place, problem, 'write JSON such as {"region": "eu"}, or the path of a YAML or JSON file')


def _marked_secrets(source: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths of configuration fields that the source declares as secret."""
    if "manifest" in source:
        from airflow_provider_rfr.streams.airbyte.spec import secret_places, written_specification

        return list(secret_places(written_specification(Path(source["manifest"])), source["config"]))
    document = read_document(source["file"])
    secrets = document.get("secrets") if isinstance(document, Mapping) else None
    return [(name,) for name in secrets if name in source["config"]] if isinstance(secrets, list) else []


def _named_secrets(config: Mapping[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the paths of configuration fields that are secret, going by their names."""
    for name, value in config.items():
        if isinstance(value, Mapping) and not is_reference(value):
            yield from _named_secrets(value, *above, str(name))
        elif is_secret(str(name)) and value and isinstance(value, (str, Mapping)):
            yield (*above, str(name))


def _literals(value: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the paths of values that are not references to secrets."""
    if is_reference(value):
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _literals(item, *above, str(name))
    else:
        yield above


def _shown(place: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"option {place}", "is a secret, and Spark shows options in plans and logs", remedy)


@contextmanager
def _without_secrets(source: Mapping[str, Any]) -> Iterator[None]:
    """Redact secrets in errors that are raised inside, and drop their causes: Spark shows the whole chain."""
    try:
        yield
    except Exception as error:
        text = str(error)
        shown = redact(text, secret_values(source.get("secrets")))
        if isinstance(error, RfrError) and shown == text:
            raise error from None
        failure = SparkJobError(f"{type(error).__name__}: {shown}")
        raise failure.with_traceback(error.__traceback__) from None


def spark_schema(columns: pa.Schema) -> StructType:
    """Return the schema of a DataFrame with these columns: the types that Spark reads from a published table."""
    from pyspark.sql.types import StructType

    return StructType([_spark_field(column) for column in columns])


def _spark_field(column: pa.Field) -> StructField:
    from pyspark.sql.types import StructField

    leaf = column
    while pa.types.is_list(leaf.type):
        leaf = leaf.type.value_field
    comment = {"comment": JSON_TEXT_DOC} if is_json_text(leaf) else None
    return StructField(column.name, _spark_type(column.type), metadata=comment)


def _spark_type(kind: pa.DataType) -> DataType:
    from pyspark.sql import types

    if pa.types.is_struct(kind):
        return types.StructType([_spark_field(field) for field in kind])
    if pa.types.is_list(kind):
        return types.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    made: DataType = getattr(types, _SPARK_TYPES[kind])()
    return made


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of a DataFrame as Arrow schemas.

    :ivar read: the columns that JSON is read into, with the marks of JSON texts
    :ivar given: the same columns in the types that batches for Spark have
    """

    read: pa.Schema
    given: pa.Schema

    @classmethod
    def of(cls, schema: StructType) -> RowLayout:
        """Return the layout of a DataFrame's schema.

        :raises ConfigurationError: records can't be read into one of its types, or two columns can't be distinguished
        """
        read, given = (
            pa.schema([_arrow_field(field, leaves, "") for field in schema.fields]) for leaves in (_READ_AS, _GIVEN_AS)
        )
        check_columns(list(read), "schema", top_level=True)
        return cls(read, given)

    def fitted(self, table: pa.Table, place: str) -> pa.Table:
        """Cast rows that were read to the types of batches for Spark.

        :param place: of the rows, for the error
        :raises TypeMismatchError: a number is too large for its column, or a value is missing that may not be
        """
        columns = []
        for given in self.given:
            column = table[given.name]
            if column.null_count and not given.nullable:
                raise TypeMismatchError(f"{place}: {given.name} is null in a record, and NOT NULL in the schema")
            try:
                columns.append(column.cast(given.type))
            except pa.ArrowInvalid as error:
                raise TypeMismatchError(f"{place}: {given.name}: {error}; give the column a wider type") from None
        return pa.Table.from_arrays(columns, schema=self.given)


def _arrow_field(field: StructField, leaves: Mapping[str, pa.DataType], above: str) -> pa.Field:
    """Return the Arrow field for a field of a Spark schema.

    :param leaves: Arrow types by the names of Spark's types
    :param above: path of the struct that the field belongs to, with a dot at its end; empty for a column
    """
    if above and not field.nullable:
        raise _unreadable(above + field.name, "NOT NULL inside of a column is not checked", "leave NOT NULL out")
    is_json = (field.metadata or {}).get("comment") == JSON_TEXT_DOC
    typed = _typed(field.name, field.dataType, leaves, is_json, above + field.name)
    return typed.with_nullable(field.nullable)


def _typed(name: str, kind: DataType, leaves: Mapping[str, pa.DataType], is_json: bool, path: str) -> pa.Field:
    # The attributes differ by class, and Spark's classes have no type hints.
    spark_type: Any = kind
    type_name = kind.typeName()
    if type_name == "struct":
        return pa.field(name, pa.struct([_arrow_field(field, leaves, f"{path}.") for field in spark_type.fields]))
    if type_name == "array":
        if not spark_type.containsNull:
            raise _unreadable(path, "NOT NULL inside of a column is not checked", "set containsNull")
        return pa.field(name, pa.list_(_typed("element", spark_type.elementType, leaves, is_json, f"{path}.element")))
    if type_name == "decimal":
        return pa.field(name, pa.decimal128(spark_type.precision, spark_type.scale))
    if type_name not in leaves:
        allowed = "write string, boolean, a number, decimal, date, timestamp, timestamp_ntz, array or struct"
        raise _unreadable(path, f"records can't be read into {kind.simpleString()}", allowed)
    return json_text_field(name) if is_json and type_name == "string" else pa.field(name, leaves[type_name])


def _unreadable(path: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"schema.{path}", problem, remedy)
