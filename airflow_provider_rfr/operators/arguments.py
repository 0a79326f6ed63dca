"""Checks of the refresh operator's arguments, and the fields of forms that the ready DAGs have for them.

An argument is checked while the DAG is parsed, if that needs no connection. A value that Airflow has yet to render is
checked in the task.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.documents import DocumentError, read_yaml, suggestion
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.dag_arguments import (
    RUN_SETTINGS,
    is_pending,
    path_from_dag,
    paths_in,
    place_of,
    possible_places,
)
from airflow_provider_rfr.lake import types as lake_types
from airflow_provider_rfr.refresh.config import RefreshOptions, parse_options

if TYPE_CHECKING:
    from airflow.sdk import Param

_log = logging.getLogger(__name__)

_ONCE: Final = (
    *("full_refresh", "force_restart", "only_generation"),
    *("allow_empty", "max_shrink", "max_deleted", "on_missing_records"),
)
"""Settings of one run: ``full_refresh`` of an incremental sync, and options."""
MAPPED: Final = "{{ mapped }}"
"""Placeholder for a mapped argument, whose value is known in the task. Checks skip it, because it is a template."""
REFRESH_ARGUMENTS: Final = ("source", "streams", "target", "options", "api_conn_id", "lake_conn_id")
"""The arguments that say what a refresh reads and writes."""
_INLINE: Final = ("definition", "manifest")
"""Fields of a source whose templates a refresh fills in itself, where they hold a mapping."""
_LINEAGE: Final = "openlineage"
"""The key that ``TriggerDagRunOperator`` adds to the conf of a triggered run if OpenLineage is enabled."""
_START, _REST = r"(?:[A-Za-z_]|\{stream\})", r"(?:[A-Za-z0-9_-]|\{stream\})"
TARGET_PATTERN = rf"^{_START}{_REST}*(?:\.{_START}{_REST}*)+$"
"""``namespace.table``, with ``{stream}`` anywhere in it."""


def form_fields(stream: str, **own: Param) -> dict[str, Param]:
    """Return the fields of a form for the source, the table and the connections.

    :param stream: the stream that the form has by default
    :param own: fields of the form itself, which are shown between the table and the connections
    """
    return {**_table_fields(stream), **own, **_connection_fields()}


def _table_fields(stream: str) -> dict[str, Param]:
    from airflow.sdk import Param

    return {
        "source_file": Param(
            os.environ.get("RFR_SOURCE_FILE", "source.yaml"),
            type="string",
            minLength=1,
            title="Source file",
            description="YAML file of the source; a relative one is looked up next to the DAG's file.",
        ),
        **stream_fields(stream, "Streams of the source, one a line."),
    }


def stream_fields(stream: str, description: str) -> dict[str, Param]:
    """Return the fields of a form for the streams and the table.

    :param stream: the stream that the form has by default
    :param description: description of the field for the streams
    """
    from airflow.sdk import Param

    return {
        "streams": Param(
            [stream],
            type="array",
            items={"type": "string", "minLength": 1},
            minItems=1,
            uniqueItems=True,
            title="Streams",
            description=description,
        ),
        "target": Param(
            "raw.{stream}",
            type="string",
            pattern=TARGET_PATTERN,
            title="Table",
            description="namespace.table; {stream} becomes the stream's name, and is needed for several streams.",
        ),
    }


def _connection_fields() -> dict[str, Param]:
    from airflow.sdk import Param

    config = (
        'What the source\'s templates see as config, e.g. {"page_size": 500}. Secrets belong into the connection:'
        " everyone who can see the run can see these."
    )
    return {
        "api_conn_id": Param(
            "rfr_api_default",
            type=["string", "null"],
            minLength=1,
            title="Connection of the API",
            description="Its id, of type rfr_api; none for an API that needs neither an address nor a secret from it.",
        ),
        "lake_conn_id": Param(
            "rfr_lake_default",
            type="string",
            minLength=1,
            title="Connection of the lake",
            description="Its id, of type rfr_lake: the catalog with the table.",
        ),
        "conn_id": Param(
            "spark_default",
            type="string",
            minLength=1,
            title="Connection of Spark",
            description="Its id, of type spark: the cluster, or local[*].",
        ),
        "source_config": Param({}, type="object", title="Source settings", description=config),
    }


def options_in(params: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Return the options in the params of a run; the operator refuses a name that it does not know.

    :param fields: names of the form's fields that are no options
    """
    return {name: value for name, value in params.items() if name not in (*fields, _LINEAGE, RUN_SETTINGS)}


def option_fields(*without: str, incremental: bool = False) -> dict[str, Param]:
    """Return a field of a form for each of the refresh's options, in the section *Options*.

    :param without: options that the form has another field for
    :param incremental: whether they are for an :class:`~airflow_provider_rfr.operators.IncrementalSyncOperator`
    """
    # Imported here, because it loads jsonschema, which no parse of a DAG without a form has to wait for.
    from airflow.sdk import Param

    text = (inspect.getdoc(RefreshOptions) or "").replace("``", "")
    notes = re.findall(r":ivar (\w+): (.)(.*?)(?=\n:ivar|\Z)", text, re.DOTALL)
    meanings = {name: " ".join(f"{first.upper()}{rest}".split()) for name, first, rest in notes}
    schemas = RefreshOptions.model_json_schema()["properties"]
    # A merge is not for full refreshes, and for a sync ``mode`` is no option.
    schemas["mode"]["enum"] = [mode for mode in schemas["mode"]["enum"] if mode != "merge"]
    without = (*without, *(("mode", "replace_where") if incremental else ("max_deleted", "max_rewrite_bytes")))
    return {
        name: Param(
            section="Options",
            title=name.replace("_", " ").capitalize(),
            description=meanings.get(name),
            **_with_one_type({key: value for key, value in schema.items() if key != "title"}),
        )
        for name, schema in schemas.items()
        if name not in without
    }


def _with_one_type(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without ``anyOf``.

    Airflow's form chooses a field by ``type`` alone, and accepts null if ``type`` lists it.
    """
    value = next((option for option in schema.pop("anyOf", ()) if option != {"type": "null"}), None)
    return schema if value is None else {**schema, **value, "type": [value["type"], "null"]}


def check_arguments(source: Any, streams: Any, target: Any, options: Any, folders: Sequence[Path]) -> None:
    """Check everything that is known while the DAG is parsed.

    :param folders: folders in which relative paths are looked up
    :raises ConfigurationError: field, problem and remedy of the first mistake
    """
    check_reading(check_source(source, folders), streams, target, options)


def check_reading(known: Sequence[str] | None, streams: Any, target: Any, options: Any) -> None:
    """Check the arguments of a refresh: its streams, its target and its options.

    :param known: what :func:`check_source` returned
    :raises ConfigurationError: field, problem and remedy of the first mistake
    """
    if not is_pending(streams):
        check_streams(stream_names(streams), known)
    if not is_pending(target):
        tables_of(["stream"] if is_pending(streams) else stream_names(streams), target)
    if isinstance(options, Mapping):
        pending = {key for key, value in options.items() if is_pending(value)}
        # The name of an option is checked, too, where only its value is a template.
        unknown = {key: None for key in pending if key not in RefreshOptions.model_fields}
        parse_options({**{key: value for key, value in options.items() if key not in pending}, **unknown})
        if options.get("mode") == "merge":
            raise ConfigurationError("options.mode", "merge needs an incremental sync", "use IncrementalSyncOperator")
    elif options is not None and not is_pending(options):
        raise ConfigurationError("options", f"is {type(options).__name__}, not a mapping", "write {'concurrency': 8}")


def check_source(source: Any, folders: Sequence[Path]) -> list[str] | None:
    """Check the source; return the names of its streams where they are known without running its code."""
    if hasattr(source, "resolve") or (isinstance(source, str) and is_pending(source)):
        return None
    if isinstance(source, Mapping):
        if source.get("secrets"):
            remedy = "put them into the connection that api_conn_id names"
            raise ConfigurationError("source.secrets", "secrets in a DAG are shown to its readers", remedy)
        if source.get("manifest") is not None:
            _check_manifest(source, folders)
            # A manifest is not read for its streams: it may be long, and the DAG processor need not have its library.
            return None
        if any(is_pending(source.get(key)) for key in ("class", "file")):
            return None
        file = source.get("file")
        if isinstance(file, str) and not set(source) - {"file", "config", "secrets"}:
            # An absolute path may exist only where the task runs.
            path = Path(file).expanduser()
            if path.is_absolute() and not path.is_file():
                return None
    definition = shipped_source(source, folders).get("definition")
    if definition is None:
        return None
    streams = definition["streams"]
    return list(streams) if isinstance(streams, Mapping) else [stream["name"] for stream in streams]


def _check_manifest(source: Mapping[str, Any], folders: Sequence[Path]) -> None:
    """Check that the DAG holds no secret of the manifest's configuration.

    :raises ConfigurationError: the DAG holds a field of the configuration that the manifest calls secret
    """
    from airflow_provider_rfr.streams.airbyte.spec import (
        connection_field,
        secret_places,
        specification,
        written_specification,
    )

    manifest = source["manifest"]
    spec: Mapping[str, Any] = {}
    if isinstance(manifest, Mapping):
        spec = specification(manifest)
    elif isinstance(manifest, str) and not is_pending(manifest):
        # A file that only workers have is checked in the task.
        spec = written_specification(place_of(manifest, folders))
    for place in secret_places(spec, source.get("config")):
        field = connection_field(place, secret=True)
        problem = "the manifest calls it secret, and what a DAG holds is shown to its readers"
        remedy = f"put it into the connection that api_conn_id names, as {field}"
        raise ConfigurationError(f"source.config.{'.'.join(place)}", problem, remedy)


def pending_arguments(task: Any, *names: str) -> list[str]:
    """Return those of a refresh's arguments that Airflow has yet to render; fields of mappings by their own names.

    :param names: of the arguments, e.g. ``source``, of which ``source.config`` may be a template
    """
    arguments: dict[str, Any] = {}
    for name in names:
        value = getattr(task, name)
        if isinstance(value, Mapping):
            inline = _INLINE if name == "source" else ()
            fields = {key: item for key, item in value.items() if key not in inline or isinstance(item, str)}
            arguments |= {f"{name}.{key}": item for key, item in fields.items()}
        else:
            arguments[name] = value
    return [name for name, value in arguments.items() if is_pending(value)]


def from_dag_folder(source: Any, folders: Sequence[Path]) -> Any:
    """Return the source with its relative paths rewritten to be relative to the first folder, the DAG's."""
    if not isinstance(source, Mapping):
        return source
    paths = {key: path for key, path in paths_in(source).items() if not is_pending(path)}
    return {**source, **{key: path_from_dag(path, folders) for key, path in paths.items()}}


def shipped_source(source: Any, folders: Sequence[Path]) -> dict[str, Any]:
    """Return the source with the content of its files, so that another machine can read it.

    :param folders: folders in which relative paths are looked up
    :raises ConfigurationError: the source, or its file, is wrong
    """
    from airflow_provider_rfr.streams.loader import inline_source

    if isinstance(source, Mapping):
        source = dict(source)
        for key, file in paths_in(source).items():
            places, place = possible_places(file, folders), place_of(file, folders)
            if len(places) > 1 and not place.exists():
                problem = f"{' and '.join(map(str, places))} do not exist"
                remedy = "put it next to the DAG's file, or write an absolute path"
                raise ConfigurationError(f"source.{key}", problem, remedy)
            source[key] = str(place)
    shipped = inline_source(source)
    if "manifest" in shipped:
        _check_manifest(shipped, folders)
    path = shipped.get("class")
    if path is not None and (not isinstance(path, str) or path.count(":") != 1):
        raise ConfigurationError("source.class", f"{path!r} is not an import path", "write package.module:Name")
    return shipped


def names_in(value: str | Sequence[str]) -> list[str]:
    """Return the names in an argument that is one name or several, without blank ones, which templates may leave."""
    return [name for name in ([value] if isinstance(value, str) else value) if name.strip()]


def stream_names(streams: Any) -> list[str]:
    """Return the names as a list; a rendered template may be ``a``, ``a, b`` or ``['a', 'b']``.

    :raises ConfigurationError: the value holds something other than names
    """
    if isinstance(streams, str):
        text = streams.strip()
        try:
            streams = read_yaml(text) if text.startswith("[") else [part.strip() for part in text.split(",")]
        except DocumentError as error:
            raise ConfigurationError("streams", f"{text!r} {error.problem}", 'write e.g. ["orders"]') from None
    if not isinstance(streams, Sequence) or not all(isinstance(name, str) for name in streams):
        raise ConfigurationError("streams", f"{streams!r} is not a list of names", 'write e.g. ["orders"]')
    return [name for name in streams if name]


def check_streams(names: Sequence[str], known: Sequence[str] | None) -> None:
    """Check names of streams.

    :param known: the streams of the source; None if they are not known here
    :raises ConfigurationError: no name, a duplicate, or one that the source does not have
    """
    if not names:
        raise ConfigurationError("streams", "is empty", "name at least one stream of the source")
    if len(set(names)) != len(names):
        raise ConfigurationError("streams", "duplicate name", "name each stream once")
    unknown = [name for name in names if known is not None and name not in known]
    if known is not None and unknown:
        raise ConfigurationError("streams", f"the source has no stream {unknown[0]!r}", suggestion(unknown[0], known))


def tables_of(names: Sequence[str], target: Any) -> dict[str, str]:
    """Return the table of each stream.

    :raises ConfigurationError: ``target`` is not a table name, or names one table for several streams
    """
    if not isinstance(target, str):
        raise ConfigurationError("target", f"{target!r} is not a table name", "write namespace.table, e.g. raw.orders")
    return lake_types.tables_of(names, target)


def options_mapping(options: Any) -> Mapping[str, Any]:
    """Return the rendered options; an empty mapping for None.

    :raises ConfigurationError: they are not a mapping
    """
    if options is None or isinstance(options, Mapping):
        return options or {}
    raise ConfigurationError(
        "options", f"is {type(options).__name__}, not a mapping", "set render_template_as_native_obj on the DAG"
    )


def with_run_settings(document: Mapping[str, Any], tables: Mapping[str, str], conf: Any) -> dict[str, Any]:
    """Return the document of a refresh with the settings of its run, which its configuration has below ``rfr``.

    They are ``full_refresh`` of an incremental sync, ``force_restart``, ``only_generation``, ``allow_empty``,
    ``max_shrink``, ``max_deleted`` and ``on_missing_records``. With ``table``, they are for the task that loads it,
    which then loads no other table.

    :param tables: of the task, by stream
    :param conf: configuration of the run; None without one
    :raises ConfigurationError: a setting is unknown, or is no setting
    """
    place = f"conf.{RUN_SETTINGS}"
    settings = conf.get(RUN_SETTINGS) if isinstance(conf, Mapping) else None
    if settings is None:
        return dict(document)
    if not isinstance(settings, Mapping):
        raise ConfigurationError(place, f"is {type(settings).__name__}, not a mapping", 'write {"force_restart": true}')
    for name in settings:
        if name not in (*_ONCE, "table"):
            raise ConfigurationError(f"{place}.{name}", "unknown field", suggestion(str(name), (*_ONCE, "table")))
    options, table = {name: settings[name] for name in _ONCE if name in settings}, settings.get("table")
    is_full = options.pop("full_refresh", False)
    if not isinstance(is_full, bool):
        raise ConfigurationError(
            f"{place}.full_refresh", f"{is_full!r} is neither true nor false", "write true or false"
        )
    streams = [stream for stream in document["streams"] if table in (None, tables[stream])]
    if not streams:
        _log.info("The settings of this run are for the table %s, which this task does not load", table)
        return dict(document)
    changed = {**document, "streams": streams, "options": {**document["options"], **options}}
    if is_full and changed.pop("sync", None) is not None:
        changed.pop("window", None)
        changed["options"]["mode"] = RefreshOptions.model_fields["mode"].default
    return changed
