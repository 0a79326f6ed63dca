"""The configuration document of a refresh: what a user writes, and what the operator ships."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from airflow_provider_rfr.documents import DocumentError, read_yaml
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.names import check_identifier


class PublishMode(str, Enum):
    """What the publish does with the rows that the table holds."""

    REPLACE = "replace"
    APPEND = "append"


class _OnSourceChange(str, Enum):
    """What a resume does when a committed page reads differently now."""

    RESTART = "restart"
    FAIL = "fail"
    ACCEPT = "accept"


class _OnTypeError(str, Enum):
    """What the publish does with a value that does not fit its column."""

    FAIL = "fail"
    NULL = "null"


class _OnSchemaChange(str, Enum):
    """Whether the publish may change the table's columns: add, widen, and replace where all rows are replaced."""

    EVOLVE = "evolve"
    FAIL = "fail"


class OnRepeatedPage(str, Enum):
    """What a page means that has the very content of an earlier page of its chain."""

    FAIL = "fail"
    ACCEPT = "accept"


class OnBusy(str, Enum):
    """What a refresh does while another run is at the same one."""

    WAIT = "wait"
    FAIL = "fail"
    TAKE_OVER = "take_over"


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_enum_values=False)


_NOT_PUBLISH_RULES = (
    *("concurrency", "round_seconds", "round_bytes", "requests_per_second", "head_start", "max_offenders"),
    *("on_source_change", "on_repeated_page", "resume_within", "on_busy", "force_restart", "expire"),
)


class RefreshOptions(_Document):
    """How a refresh runs.

    :ivar mode: ``replace`` the table, or ``append`` to it
    :ivar replace_where: replace only the rows that match this filter, e.g. ``day = '2026-01-01'``
    :ivar concurrency: requests in flight, over the whole application
    :ivar round_seconds: seconds after which a round is committed
    :ivar round_bytes: bytes of records after which a round is committed
    :ivar requests_per_second: budget over the whole application; None for no limit
    :ivar on_source_change: what to do where the overlap check finds another page than was committed
    :ivar on_repeated_page: what to do where a page has the content of an earlier page of its chain
    :ivar on_type_error: fail, or null with the change noted in ``_rfr_meta``
    :ivar max_offenders: offending values that a type error lists
    :ivar on_schema_change: whether the publish may change the table's columns so that new rows fit
    :ivar allow_empty: whether a refresh without rows may be published
    :ivar max_shrink: share of the last published rows (0 to 1) that may vanish; None for any
    :ivar resume_within: seconds for which an unfinished refresh is resumed by a later run
    :ivar on_busy: what to do while another run is at the same refresh: wait, fail, or take it over
    :ivar force_restart: open a new generation although one could be resumed
    :ivar head_start: read in the driver while Spark starts
    :ivar expire: after the publish, expire old snapshots of the table and drop ledgers of its parts that nobody
        resumes; None: only snapshots of tables that this package made
    """

    mode: PublishMode = PublishMode.REPLACE
    replace_where: str | None = None
    concurrency: int = Field(default=16, ge=1, le=4096)
    round_seconds: float = Field(default=30.0, gt=0)
    round_bytes: int = Field(default=256 * 1024 * 1024, ge=1024)
    requests_per_second: float | None = Field(default=None, gt=0)
    on_source_change: _OnSourceChange = _OnSourceChange.RESTART
    on_repeated_page: OnRepeatedPage = OnRepeatedPage.FAIL
    on_type_error: _OnTypeError = _OnTypeError.FAIL
    max_offenders: int = Field(default=10, ge=1, le=1000)
    on_schema_change: _OnSchemaChange = _OnSchemaChange.EVOLVE
    allow_empty: bool = False
    max_shrink: float | None = Field(default=0.5, ge=0, le=1)
    resume_within: float = Field(default=7 * 86400.0, ge=0)
    on_busy: OnBusy = OnBusy.WAIT
    force_restart: bool = False
    head_start: bool = True
    expire: bool | None = None

    def publish_rules(self) -> dict[str, Any]:
        """The options that decide what a publish makes of the rows that were read."""
        return self.model_dump(mode="json", exclude=set(_NOT_PUBLISH_RULES))

    @model_validator(mode="after")
    def _filter_goes_with_replace(self) -> RefreshOptions:
        if self.replace_where is not None and self.mode is not PublishMode.REPLACE:
            raise ValueError("replace_where goes with mode: replace")
        return self


class _ReferredSecret(SecretStr):
    """A secret that the document only refers to, and so declares to be one."""


class _LakeDocument(_Document):
    """The catalog: its name and PyIceberg's properties."""

    name: str = "rfr"
    properties: dict[str, SecretStr]

    @field_validator("properties", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(k): v if isinstance(v, SecretStr) else _plain(k, v) for k, v in value.items()}
        return value

    def plain_properties(self) -> dict[str, str]:
        """The properties as PyIceberg wants them; they may hold secrets."""
        return {key: value.get_secret_value() for key, value in self.properties.items()}

    def referred_secrets(self) -> list[str]:
        """Values that the document only refers to."""
        return [value.get_secret_value() for value in self.properties.values() if isinstance(value, _ReferredSecret)]


class _SourceDocument(_Document):
    """Where streams come from: exactly one of ``class``, ``file`` and ``definition``."""

    class_path: str | None = Field(default=None, alias="class")
    file: str | None = None
    definition: dict[str, Any] | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    secrets: dict[str, Any] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _one_origin(self) -> _SourceDocument:
        if sum(x is not None for x in (self.class_path, self.file, self.definition)) != 1:
            raise ValueError("name exactly one of class, file and definition")
        return self

    def as_source(self) -> dict[str, Any]:
        """The mapping that :func:`airflow_provider_rfr.streams.loader.load_streams` reads."""
        return self.model_dump(by_alias=True, exclude_none=True)


class _Supervisor(_Document):
    """The process on whose behalf the refresh runs; the driver ends when it is gone."""

    pid: int
    started: int
    host: str


class _AirflowRun(_Document):
    """The task that runs the refresh, as webhooks name it.

    :ivar map_index: -1 where the task is not mapped
    :ivar logical_date: RFC 3339; None where the run has none
    """

    dag_id: str
    dag_run_id: str
    task_id: str
    map_index: int = -1
    logical_date: str | None = None


class _Address(_Document):
    """Where an API was or is, and as whom it is asked.

    :ivar upstream: names another API than there was before at the connection
    """

    base_url: str | None = None
    login: str | None = None
    upstream: str | None = None


class _RunDocument(_Document):
    """Who runs: ``key`` names one run of one task, the same over its retries.

    :ivar materialization_name: what webhooks call the target; None for its table name
    :ivar moved: addresses of the one API, the oldest first, the present one last; empty where it never moved
    """

    key: str | None = None
    supervisor: _Supervisor | None = None
    airflow: _AirflowRun | None = None
    materialization_name: str | None = None
    moved: list[_Address] = []


class RefreshConfig(_Document):
    """The whole document."""

    source: _SourceDocument
    streams: list[str] = Field(min_length=1)
    target: str
    lake: _LakeDocument
    options: RefreshOptions = RefreshOptions()
    run: _RunDocument = _RunDocument()

    @model_validator(mode="after")
    def _one_target_each(self) -> RefreshConfig:
        if len(self.streams) > 1 and "{stream}" not in self.target:
            raise ValueError("several streams need a target that names them, e.g. raw.{stream}")
        if len(set(self.streams)) != len(self.streams):
            raise ValueError("streams: duplicate name")
        for stream in self.streams:
            _check_target(self.target_of(stream))
        return self

    def target_of(self, stream: str) -> str:
        """The table that ``stream`` is published to."""
        return self.target.replace("{stream}", stream)


def parse_config(document: Any, origin: str = "config") -> RefreshConfig:
    """Validate the document; raises :class:`ConfigurationError` with every mistake in it."""
    if not isinstance(document, Mapping):
        raise ConfigurationError(origin, "is not a mapping", "write source, streams, target, lake, options")
    try:
        return RefreshConfig.model_validate(_with_secrets(document, origin))
    except ValidationError as error:
        mistakes = [_mistake(item) for item in error.errors(include_url=False, include_input=False)]
        raise ConfigurationError(origin, "; ".join(mistakes)) from None


def parse_options(options: Mapping[str, Any]) -> RefreshOptions:
    """Validate the options alone, as the operator does while a DAG is parsed."""
    try:
        return RefreshOptions.model_validate(dict(options))
    except ValidationError as error:
        mistakes = [_mistake(item, "options") for item in error.errors(include_url=False, include_input=False)]
        raise ConfigurationError("options", "; ".join(mistakes)) from None


def read_config(path: str) -> RefreshConfig:
    """Read a YAML or JSON file; raises :class:`ConfigurationError` that names it."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("--config", f"{path} can't be read: {error}") from None
    try:
        document = json.loads(text) if file.suffix == ".json" else read_yaml(text)
    except DocumentError as error:
        problem = error.problem if error.key is None else f"has the key {error.key!r} twice"
        where = f" at line {error.line}" if error.line else ""
        raise ConfigurationError("--config", f"{path} {problem}{where}") from None
    except ValueError as error:
        raise ConfigurationError("--config", f"{path} is not JSON: {error}") from None
    return parse_config(document, str(path))


def _with_secrets(document: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The document with the secrets that ``{env: NAME}`` and ``{file: PATH}`` in it refer to.

    Not where Airflow runs it: there, secrets are connections, and whoever edits one must not read the driver's files.
    """
    whole = dict(document)
    run, problems = whole.get("run"), list[str]()
    if isinstance(run, Mapping) and run.get("airflow"):
        return whole
    made: Callable[[str], Any]
    for part, field, made in (("source", "secrets", str), ("lake", "properties", _ReferredSecret)):
        holder = whole.get(part)
        if isinstance(holder, Mapping) and isinstance(holder.get(field), Mapping):
            whole[part] = {**holder, field: _resolved(holder[field], f"{part}.{field}", made, problems)}
    if problems:
        raise ConfigurationError(origin, "; ".join(problems))
    return whole


def _resolved(value: Any, place: str, made: Callable[[str], Any], problems: list[str]) -> Any:
    """The value with secrets in place of references; what can't be had is added to ``problems``."""
    if isinstance(value, list):
        return [_resolved(item, f"{place}.{number}", made, problems) for number, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    kind, name = next(iter(value.items())) if len(value) == 1 else ("", None)
    if kind not in ("env", "file") or not isinstance(name, str):
        return {key: _resolved(item, f"{place}.{key}", made, problems) for key, item in value.items()}
    secret = os.environ.get(name, "") if kind == "env" else _of_file(name, place, problems)
    if secret == "":
        what = "the environment variable" if kind == "env" else "the file"
        problems.append(f"{place}: {what} {name} is {'not set, or ' if kind == 'env' else ''}empty")
    return made(secret or "")


def _of_file(path: str, place: str, problems: list[str]) -> str | None:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        # The error of a text that is no UTF-8 holds the file's content.
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        problems.append(f"{place}: the file {path} can't be read: {reason}")
        return None


def _check_target(identifier: str) -> None:
    try:
        check_identifier(identifier)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _plain(name: Any, value: Any) -> str:
    if isinstance(value, (Mapping, list)):
        raise ValueError(f"{name} is not text; write text, {{env: NAME}} or {{file: PATH}}")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mistake(item: Mapping[str, Any], prefix: str = "") -> str:
    place = ".".join(str(part) for part in (*([prefix] if prefix else []), *item["loc"]))
    if item["type"] != "extra_forbidden":
        return f"{place}: {item['msg'].removeprefix('Value error, ')}" if place else str(item["msg"])
    known = _fields_at(item["loc"][:-1], RefreshOptions if prefix else RefreshConfig)
    near = difflib.get_close_matches(str(item["loc"][-1]), known, 1)
    return f"{place}: unknown" + (f", did you mean {near[0]}?" if near else f", known are {', '.join(known)}")


def _fields_at(path: tuple[Any, ...], model: type[BaseModel]) -> list[str]:
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return [info.alias or name for name, info in model.model_fields.items()]
