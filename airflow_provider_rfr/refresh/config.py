"""The configuration document of a refresh, written by a user or by the operator, and the secrets in it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from airflow_provider_rfr.documents import DocumentError, problems_of, read_yaml
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.redaction import passwords_in, secrets_in
from airflow_provider_rfr.lake.types import STREAM_PLACE, table_of, tables_of
from airflow_provider_rfr.streams.incremental import CursorWindow


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_NOT_PUBLISH_RULES = (
    *("concurrency", "streams_at_once", "round_seconds", "round_bytes", "requests_per_second", "head_start"),
    *("max_offenders", "on_source_change", "on_repeated_page", "resume_within", "on_busy", "force_restart", "expire"),
    *("executor_wait", "spark", "only_generation"),
    "constants",  # part of the publish fingerprint, where there are any
)


_MERGE_RULES = ("max_deleted", "max_rewrite_bytes")


class RefreshOptions(_Document):
    """The options of a refresh.

    :ivar mode: ``replace`` the table, or ``append`` to it; in an incremental sync ``append``, or ``merge`` by primary
        key
    :ivar replace_where: replace only the rows that match this filter, e.g. ``day = '2026-01-01'``. A row of the refresh
        that does not match it is an error; only with ``mode: replace``
    :ivar constants: columns that each row of the refresh has besides, with their values: text, numbers, booleans, or
        null, which makes no column. So tenants can share one table, each with its own ``replace_where``
    :ivar concurrency: requests in flight, over the whole application; at most what the source allows
    :ivar streams_at_once: streams that are refreshed at the same time; None for as many as keep ``concurrency`` busy
    :ivar round_seconds: seconds after which a round is committed. A kill costs less than a round, because tasks flush
        in between
    :ivar round_bytes: bytes of records after which a round is committed
    :ivar requests_per_second: budget over the whole application, parents and retries included; None for what the source
        says. Write slightly less than the API allows, because clocks differ and each 429 pauses all readers
    :ivar on_source_change: what to do if the overlap check finds another page than was committed: ``restart`` its
        partition, ``fail``, or ``accept``, which does not check
    :ivar on_repeated_page: what to do if a page has the content of an earlier page of its partition: ``fail`` after one
        more read of the partition, ``accept`` up to 100 such pages in a row, or take a page that directly repeats the
        one before it for the ``end`` of the partition
    :ivar on_missing_records: what to do if fewer records came than the API's own count promises: ``warn``, or ``fail``,
        which publishes nothing
    :ivar on_type_error: what to do about a value that does not fit its column: ``fail``, or write ``null`` and note the
        change in ``_rfr_meta``
    :ivar max_offenders: offending values that a type error lists
    :ivar on_schema_change: what to do if the rows need other columns than the table has, or a column would lose all its
        values: ``evolve`` the table (add, widen, and replace where all rows are replaced), or ``fail``, which publishes
        nothing
    :ivar allow_empty: whether a refresh without rows may be published
    :ivar max_shrink: by what share of the last published rows (0 to 1) the table may shrink; None for any. It is not
        checked for ``append``
    :ivar max_deleted: by what share of the table's rows (0 to 1) records of an incremental sync may remove
    :ivar max_rewrite_bytes: bytes of the table's files that a merge may write again; None for any
    :ivar resume_within: seconds since its last commit for which an unfinished refresh is resumed by a later run
    :ivar on_busy: what to do while another run works on the same refresh: ``wait`` until it ends, ``fail`` at once, or
        ``take_over``, which ends it
    :ivar force_restart: open a new generation even if one could be resumed, once per run: its retries and clears resume
        that one
    :ivar only_generation: number of the only generation to finish and publish: if it is not the newest one, or can't be
        resumed, the refresh fails and changes nothing; None for no such limit
    :ivar head_start: read in the driver while Spark starts
    :ivar spark: start Spark ``when_needed``, after 1.5 s or 16 MiB of reading, so that the driver reads and publishes a
        small load alone; or ``always``. An application that spark-submit started, as in Airflow, has Spark already
    :ivar executor_wait: seconds that a job waits while the cluster gives no executor; None for no limit
    :ivar expire: after the publish, expire old snapshots of the table and drop ledgers of its parts that will not be
        resumed; None: expire snapshots only of tables that this package made
    """

    mode: Literal["replace", "append", "merge"] = "replace"
    replace_where: str | None = None
    constants: dict[str, str | int | float | bool | None] | None = None
    concurrency: int = Field(default=16, ge=1, le=4096)
    streams_at_once: int | None = Field(default=None, ge=1)
    round_seconds: float = Field(default=30.0, gt=0)
    round_bytes: int = Field(default=256 * 1024 * 1024, ge=1024)
    requests_per_second: float | None = Field(default=None, gt=0)
    on_source_change: Literal["restart", "fail", "accept"] = "restart"
    on_repeated_page: Literal["fail", "accept", "end"] = "fail"
    on_missing_records: Literal["warn", "fail"] = "warn"
    on_type_error: Literal["fail", "null"] = "fail"
    max_offenders: int = Field(default=10, ge=1, le=1000)
    on_schema_change: Literal["evolve", "fail"] = "evolve"
    allow_empty: bool = False
    max_shrink: float | None = Field(default=0.5, ge=0, le=1)
    max_deleted: float = Field(default=0.2, ge=0, le=1)
    max_rewrite_bytes: int | None = Field(default=None, ge=1)
    resume_within: float = Field(default=7 * 86400.0, ge=0)
    on_busy: Literal["wait", "fail", "take_over"] = "wait"
    force_restart: bool = False
    only_generation: int | None = Field(default=None, ge=1)
    head_start: bool = True
    spark: Literal["when_needed", "always"] = "when_needed"
    executor_wait: float | None = Field(default=600.0, gt=0)
    expire: bool | None = None

    def publish_rules(self) -> dict[str, Any]:
        """Return the options that a publish applies to the rows that were read."""
        rules = self.model_dump(mode="json", exclude={*_NOT_PUBLISH_RULES, *_MERGE_RULES})
        return rules | self.model_dump(mode="json", include=set(_MERGE_RULES), exclude_defaults=True)

    @model_validator(mode="after")
    def _filter_goes_with_replace(self) -> RefreshOptions:
        if self.replace_where is not None and self.mode != "replace":
            raise ValueError("replace_where goes with mode: replace")
        return self

    @model_validator(mode="after")
    def _constants_agree_with_filter(self) -> RefreshOptions:
        for name, value in (self.constants or {}).items():
            if not name or "." in name or name.startswith("_rfr_"):
                raise ValueError(f"constants: {name!r} is no name for a column; write one without dots and _rfr_")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"constants.{name}: is beyond 64 bits; write it as text, in quotes")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"constants.{name}: is not a finite number; write another one, or null")
        if self.constants and self.replace_where is not None:
            # Imported here, because it loads PyIceberg, which would slow down the parsing of every other DAG.
            from airflow_provider_rfr.lake.row_filter import equalities

            for name, value in equalities(self.replace_where):
                if name in self.constants and self.constants[name] != value:
                    meant = json.dumps(self.constants[name])
                    raise ValueError(f"constants.{name}: is {meant}, and replace_where says {value!r}; write one value")
        return self


class _ReferredSecret(SecretStr):
    """A secret that replaced a reference in the document; it is redacted, whatever the name of its property."""


class _LakeDocument(_Document):
    """The catalog: its name and PyIceberg's properties.

    :ivar name: name of the catalog. SQL catalogs store tables under it, so all programs have to use the same
    :ivar properties: PyIceberg's properties of the catalog: ``type``, ``uri``, ``warehouse``, credentials; a value may
        be a reference to a secret
    """

    name: str = "rfr"
    properties: dict[str, SecretStr]

    @field_validator("properties", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        texts: dict[str, Any] = {}
        for name, item in value.items():
            if isinstance(item, (Mapping, list)):
                raise ValueError(f"{name} must be text, {{env: NAME}} or {{file: PATH}}")
            # YAML's true is PyIceberg's "true".
            text = str(item).lower() if isinstance(item, bool) else str(item)
            texts[str(name)] = item if isinstance(item, SecretStr) else text
        return texts

    def plain_properties(self) -> dict[str, str]:
        """Return the properties as plain text, for PyIceberg; they may contain secrets."""
        return {key: value.get_secret_value() for key, value in self.properties.items()}

    def referred_secrets(self) -> list[str]:
        """Return the values that replaced references in the document."""
        return [value.get_secret_value() for value in self.properties.values() if isinstance(value, _ReferredSecret)]


class _SourceDocument(_Document):
    """The source of the streams: exactly one of ``class``, ``file``, ``definition`` and ``manifest``.

    :ivar class_path: Python: ``package.module:Name``, a class of a stream or a function that returns streams
    :ivar file: path of a YAML definition
    :ivar definition: a definition, written in place
    :ivar manifest: a manifest of Airbyte: its path, or the manifest itself
    :ivar components: path of the manifest's ``components.py``, Python code that is run
    :ivar components_keep_state: whether these components keep something between two pages, so that an interrupted
        partition is read from its start
    :ivar allowed_hosts: hosts that a manifest may call, besides those of its own addresses
    :ivar config: what the source's templates see as ``config``; part of the fingerprint
    :ivar secrets: the same for secrets, which are in no fingerprint, message, log or table; a value may be a reference
    """

    class_path: str | None = Field(default=None, alias="class")
    file: str | None = None
    definition: dict[str, Any] | None = None
    manifest: str | dict[str, Any] | None = None
    components: str | None = None
    components_keep_state: bool | None = None
    allowed_hosts: list[str] | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    secrets: dict[str, Any] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _one_origin(self) -> _SourceDocument:
        if sum(x is not None for x in (self.class_path, self.file, self.definition, self.manifest)) != 1:
            raise ValueError("name exactly one of class, file, definition and manifest")
        return self

    def as_source(self) -> dict[str, Any]:
        """Return the mapping that :func:`airflow_provider_rfr.streams.loader.load_streams` reads."""
        return self.model_dump(by_alias=True, exclude_none=True)


class _Supervisor(_Document):
    """The process for which the refresh runs; the driver ends when that process does not exist any more.

    :ivar pid: number of the process
    :ivar started: its start, in clock ticks since boot
    :ivar host: name of its machine
    """

    pid: int
    started: int
    host: str


class _AirflowRun(_Document):
    """The task that runs the refresh, as webhooks name it.

    :ivar dag_id: id of the DAG
    :ivar dag_run_id: id of the run
    :ivar task_id: id of the task
    :ivar map_index: -1 where the task is not mapped
    :ivar logical_date: RFC 3339; None where the run has none
    :ivar try_number: of the task, from 1; webhooks do not name it
    """

    dag_id: str
    dag_run_id: str
    task_id: str
    map_index: int = -1
    logical_date: str | None = None
    try_number: int | None = None

    def for_webhooks(self) -> dict[str, Any]:
        """Return the fields that webhooks name; those without a value are left out."""
        return self.model_dump(exclude={"try_number"}, exclude_none=True)


class _Address(_Document):
    """A former or present address of an API, and the user name it is read with.

    :ivar base_url: address of the API
    :ivar login: name of the user
    :ivar upstream: name of another API than the connection had before
    """

    base_url: str | None = None
    login: str | None = None
    upstream: str | None = None


class _RunDocument(_Document):
    """The run for which the refresh is made.

    :ivar key: names one run of one task; the same for all its retries
    :ivar supervisor: the process for which the refresh runs; the driver ends when that process does
    :ivar airflow: the task, as webhooks name it
    :ivar materialization_name: the target's name in webhooks; None for its table name
    :ivar moved: addresses of the API, the oldest first, the present one last; empty if it never moved
    """

    key: str | None = None
    supervisor: _Supervisor | None = None
    airflow: _AirflowRun | None = None
    materialization_name: str | None = None
    moved: list[_Address] = []


class RefreshConfig(_Document):
    """The whole document.

    :ivar source: where the streams come from
    :ivar streams: names of the streams; each has a ledger and a publish of its own
    :ivar target: ``namespace.table``; with several streams it contains ``{stream}``. Both are created if they are
        missing
    :ivar lake: the catalog with the table
    :ivar sync: ``full`` reads everything; ``incremental`` what changed since the last sync, and everything at first
    :ivar window: ``start/end``: read this part of the cursor's values instead, and leave the state as it is
    :ivar options: the options of the refresh
    :ivar run: the run for which the refresh is made; the operator sets it
    :ivar store: SQLAlchemy's address of the control store, which takes rows of the history tables, and keeps refresh
        tokens that replace the configured ones
    """

    source: _SourceDocument
    streams: list[str] = Field(min_length=1)
    target: str
    lake: _LakeDocument
    sync: Literal["full", "incremental"] = "full"
    window: str | None = None
    options: RefreshOptions = RefreshOptions()
    run: _RunDocument = _RunDocument()
    store: SecretStr | None = None

    @model_validator(mode="after")
    def _one_target_each(self) -> RefreshConfig:
        if len(self.streams) > 1 and STREAM_PLACE not in self.target:
            raise ValueError("several streams need a target that names them, e.g. raw.{stream}")
        if len(set(self.streams)) != len(self.streams):
            raise ValueError("streams: duplicate name")
        try:
            tables_of(self.streams, self.target)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    @field_validator("window")
    @classmethod
    def _is_window(cls, value: str | None) -> str | None:
        if value is not None:
            CursorWindow.parse(value)
        return value

    @model_validator(mode="after")
    def _mode_fits_sync(self) -> RefreshConfig:
        mode = self.options.mode
        if self.sync == "full" and mode == "merge":
            raise ValueError("options.mode: merge needs sync: incremental")
        if self.sync == "full" and self.window is not None:
            raise ValueError("window: needs sync: incremental; leave it out of a full refresh")
        if self.sync == "incremental" and mode == "replace":
            raise ValueError("options.mode: an incremental sync needs append or merge")
        return self

    def target_of(self, stream: str) -> str:
        return table_of(stream, self.target)

    def mapped_tables(self) -> dict[str, str]:
        """Return the tables, by stream, of streams whose own names are not valid names of tables."""
        tables = tables_of(self.streams, self.target)
        return {name: table for name, table in tables.items() if table != self.target.replace(STREAM_PLACE, name)}


def parse_config(document: Any, origin: str = "config", *, may_refer: bool = True) -> RefreshConfig:
    """Resolve the secrets to which ``{env: NAME}`` and ``{file: PATH}`` refer, and validate the document.

    :param origin: name of the document in errors
    :param may_refer: whether references are resolved; those in the document of an Airflow run never are
    :raises ConfigurationError: the document is wrong; it lists every mistake
    """
    if not isinstance(document, Mapping):
        raise ConfigurationError(origin, "must be a mapping", "write source, streams, target, lake, options")
    whole, run = dict(document), document.get("run")
    # Under Airflow, secrets are in connections. A user who may edit one must not be able to read the driver's files by
    # a reference.
    if may_refer and not (isinstance(run, Mapping) and run.get("airflow")):
        problems: list[str] = []
        secret_type: Callable[[str], Any]
        for part, field, secret_type in (("source", "secrets", str), ("lake", "properties", _ReferredSecret)):
            holder = whole.get(part)
            if isinstance(holder, Mapping) and isinstance(holder.get(field), Mapping):
                whole[part] = {
                    **holder,
                    field: resolve_references(holder[field], f"{part}.{field}", problems, secret_type),
                }
        if isinstance(whole.get("store"), Mapping):
            whole["store"] = resolve_references(whole["store"], "store", problems)
        if problems:
            raise ConfigurationError(origin, "; ".join(problems))
    try:
        return RefreshConfig.model_validate(whole)
    except ValidationError as error:
        raise ConfigurationError.of(problems_of(error, RefreshConfig).values()).at(origin) from None


def parse_options(options: Mapping[str, Any]) -> RefreshOptions:
    """Validate the options alone, as the operator does while a DAG is parsed.

    :raises ConfigurationError: an option is wrong; it lists every mistake
    """
    try:
        return RefreshOptions.model_validate(dict(options))
    except ValidationError as error:
        problems = problems_of(error, RefreshOptions).values()
        raise ConfigurationError.of(
            replace(problem, field=f"options.{problem.field}".rstrip(".")) for problem in problems
        ) from None


def read_config(path: str) -> RefreshConfig:
    """Read and validate the document in a YAML or JSON file.

    :raises ConfigurationError: the file can't be read, or its document is wrong; it names the file
    """
    return parse_config(read_document(Path(path), "--config"), str(path))


def read_document(file: Path, field: str) -> Any:
    """Return the content of a YAML or JSON file.

    :param field: the argument that names the file, for errors
    :raises ConfigurationError: it can't be read
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(field, f"{file} can't be read: {error}") from None
    try:
        return json.loads(text) if file.suffix == ".json" else read_yaml(text)
    except DocumentError as error:
        problem = error.problem if error.key is None else f"has a duplicate key {error.key!r}"
        where = f" at line {error.line}" if error.line else ""
        raise ConfigurationError(field, f"{file} {problem}{where}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(field, f"{file} is not JSON: {error}") from None


def is_reference(value: Any) -> bool:
    """Tell whether the value refers to a secret: ``{env: NAME}`` or ``{file: PATH}``."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return False
    [(kind, name)] = value.items()
    return kind in ("env", "file") and isinstance(name, str)


def resolve_references(value: Any, place: str, problems: list[str], secret_type: Callable[[str], Any] = str) -> Any:
    """Replace references in the value by the secrets; add a problem for each one that can't be resolved.

    :param place: path of the value in its document, for the problems
    :param problems: list that problems are added to
    :param secret_type: converts the text of a secret
    """
    if isinstance(value, list):
        return [
            resolve_references(item, f"{place}.{number}", problems, secret_type) for number, item in enumerate(value)
        ]
    if not isinstance(value, Mapping):
        return value
    if not is_reference(value):
        return {key: resolve_references(item, f"{place}.{key}", problems, secret_type) for key, item in value.items()}
    [(kind, name)] = value.items()
    secret = ""
    if kind == "env":
        secret = os.environ.get(name, "")
        problem = "" if secret else f"the environment variable {name} is not set, or empty"
    else:
        try:
            secret = Path(name).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
            problem = "" if secret else f"the file {name} is empty"
        except OSError as error:
            problem = f"the file {name} can't be read: {error.strerror}"
        except ValueError:
            # Without the error's own text, which holds the file's content.
            problem = f"the file {name} can't be read: it is not UTF-8 text"
    if problem:
        problems.append(f"{place}: {problem}")
    return secret_type(secret)


def secret_values(*containers: Any) -> list[str]:
    """Return every value of at least four characters in nested mappings and lists, as text."""
    values: list[str] = []
    for container in containers:
        if isinstance(container, Mapping):
            values += secret_values(*container.values())
        elif isinstance(container, (list, tuple)):
            values += secret_values(*container)
        elif container is not None and len(str(container)) >= 4 and not isinstance(container, bool):
            values.append(str(container))
    return values


def secrets_of(config: RefreshConfig) -> list[str]:
    """Return every secret value in the document: of the source, the catalog and the control store."""
    lake, store = config.lake, config.store
    passwords = [] if store is None else sorted(passwords_in(store.get_secret_value()))
    return secret_values(config.source.secrets, passwords, secrets_in(lake.plain_properties()), lake.referred_secrets())
