"""One endpoint of a triggers block: whom to call, with what, how often, and what counts as delivered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.webhooks.config_errors import (
    DURATION_SCHEMA,
    Duration,
    TriggerModel,
    Wait,
    between,
    mistake,
    nearest,
    read_duration,
    refusal,
    worded,
)
from airflow_provider_rfr.webhooks.fields import (
    MOST_HEADERS,
    NONSENSITIVE,
    TOKEN,
    Secret,
    SigningSecret,
    Success,
    Text,
    check_base,
    check_connection,
    check_headers,
    check_host_pattern,
    check_url,
    is_sealed_text,
    plain_tree,
    signing_key,
)
from airflow_provider_rfr.webhooks.presets import AnyPreset, Preset, preset_named

_METHODS = ("POST", "PUT", "PATCH")
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 1, 300


class Schedule(str, Enum):
    """Waits between attempts: seconds, or up to days."""

    QUICK = "quick"
    STANDARD = "standard"


class OnFailure(str, Enum):
    """What happens once an event can't be delivered to the endpoint."""

    BLOCK = "block"
    DEAD_LETTER = "dead_letter"
    IGNORE = "ignore"


class Ordering(str, Enum):
    """Whether an event waits for the one before it."""

    NONE = "none"
    STRICT = "strict"


_DEFAULT_ATTEMPTS = {Schedule.QUICK: 3, Schedule.STANDARD: 10}


class Retry(TriggerModel):
    """How attempts follow each other.

    :ivar max_elapsed: time since the first attempt after which no further one is made; None for no such limit
    """

    schedule: Schedule = Field(default=Schedule.QUICK, json_schema_extra=NONSENSITIVE)
    max_elapsed: Annotated[Duration, PlainValidator(between("1s", "30d")), DURATION_SCHEMA] | None = Field(
        default=None, json_schema_extra=NONSENSITIVE
    )


class When(TriggerModel):
    """Which commits the endpoint hears of.

    :ivar collections: patterns with ``*``, ``?`` and ``[...]``; None for all collections
    :ivar min_documents: fewest documents, of the collections that match
    """

    collections: tuple[str, ...] | None = Field(
        default=None, min_length=1, max_length=1000, json_schema_extra=NONSENSITIVE
    )
    min_documents: StrictInt = Field(default=1, ge=0, json_schema_extra=NONSENSITIVE)

    def accepts(self, event: CommitEvent) -> bool:
        """Whether this commit is one of them."""
        if self.collections is None:
            return event.documents >= self.min_documents
        bindings = [each for each in event.bindings if self._matches(each.collection)]
        heard = bool(bindings) or any(map(self._matches, event.collection_names))
        return heard and sum(each.documents for each in bindings) >= self.min_documents

    def _matches(self, collection: str) -> bool:
        return any(fnmatchcase(collection, pattern) for pattern in self.collections or ())


class Signing(TriggerModel):
    """Secrets that sign every call; with several the receiver may check with any, so that one can be replaced."""

    secrets: tuple[SigningSecret, ...] = Field(min_length=1, max_length=10)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys in the secrets' order; only of an opened document."""
        return tuple(map(signing_key, self.secrets))


def _check_method(value: Any) -> str:
    """One of the methods that carry a body; a sealed one is told once it is opened."""
    if isinstance(value, str) and (value in _METHODS or is_sealed_text(value)):
        return value
    raise mistake(f"must be {', '.join(_METHODS[:-1])} or {_METHODS[-1]}")


def _check_timeout(value: Any) -> Duration:
    """Time for one attempt, from connecting to the answer's end."""
    duration = read_duration(value)
    _check_seconds(duration)
    return duration


def _check_timeout_seconds(value: int) -> int:
    """The same as a number of seconds."""
    _check_seconds(value)
    return value


def _check_seconds(seconds: float) -> None:
    if seconds <= 0:
        raise mistake(
            "timeout must be greater than 0", f"write {_SHORTEST_TIMEOUT}s to {_LONGEST_TIMEOUT}s", whole=True
        )
    if seconds > _LONGEST_TIMEOUT:
        raise mistake(f"timeout must be at most {_LONGEST_TIMEOUT}s", whole=True)


_LONGEST_TEMPLATE = 64 * 1024
_MOST_ATTEMPTS = 100
_ONE_OF_TWO = (
    ("url", "connection"),
    ("payload", "payloadTemplate"),
    ("timeout", "timeoutSecs"),
    ("maxAttempts", "maxRetries"),
)


def _header_name(name: str) -> str:
    if not TOKEN.fullmatch(name) and not is_sealed_text(name):
        raise mistake("is not a header name")
    return name


def _timeout(data: Mapping[str, Any]) -> Duration:
    seconds = data["timeout_secs"]
    return Duration("30s" if seconds is None else f"{seconds}s")


def _attempts(data: Mapping[str, Any]) -> int:
    if data["max_retries"] is not None:
        return int(data["max_retries"]) + 1
    return _DEFAULT_ATTEMPTS[data["retry"].schedule]


def _success(data: Mapping[str, Any]) -> Success:
    preset: Preset | None = data["parameters"]
    return Success() if preset is None else preset.accepted


class Endpoint(TriggerModel):
    """An endpoint.

    :ivar url: where to; with a preset its base address
    :ivar connection: id of an Airflow connection of type HTTP, instead of ``url``
    :ivar preset: name of a preset, which fills in what is not given here
    :ivar parameters: what the preset needs to know
    :ivar headers: values are secret
    :ivar expose_headers: headers that templates may print
    :ivar payload_template: text of a template whose result is JSON
    :ivar payload: JSON whose string leaves are templates; the better way to say it
    :ivar timeout: of one attempt, from connecting to the end of the answer; seconds
    :ivar timeout_secs: the same as a number
    :ivar max_attempts: 3, or 10 with the schedule ``standard``; 0 is one attempt too
    :ivar max_retries: attempts after the first, instead of the number of all
    :ivar retry: how attempts follow each other
    :ivar written_interval: shortest time between two calls; commits in between are told in one
    :ivar when: which commits the endpoint hears of
    :ivar on_failure: what happens with the target once an event can't be delivered
    :ivar success: which answers are delivery
    :ivar signing: Standard Webhooks
    :ivar ordering: ``strict``: an event waits until the one before it is delivered
    :ivar enabled: false: nothing is sent
    :ivar allowed_hosts: of the private hosts that the installation allows, those that may be called; empty for all
    """

    camel_case_only: ClassVar[frozenset[str]] = frozenset({"timeout_secs", "max_retries"})

    url: Annotated[Secret, AfterValidator(check_url)] | None = None
    connection: Annotated[str, AfterValidator(check_connection)] | None = None
    preset: str | None = None
    parameters: Preset | None = Field(default=None, alias="with", validate_default=True)
    method: Annotated[
        str, PlainValidator(_check_method), WithJsonSchema({"enum": list(_METHODS), "type": "string"})
    ] = _METHODS[0]
    headers: dict[str, Text] = Field(default_factory=dict, max_length=MOST_HEADERS)
    expose_headers: tuple[Annotated[str, AfterValidator(_header_name)], ...] = ()
    payload_template: str | None = Field(default=None, max_length=_LONGEST_TEMPLATE, json_schema_extra=NONSENSITIVE)
    payload: Annotated[Any, AfterValidator(plain_tree)] = Field(default=None, json_schema_extra=NONSENSITIVE)
    timeout_secs: Annotated[StrictInt, AfterValidator(_check_timeout_seconds)] | None = Field(
        default=None, json_schema_extra=NONSENSITIVE
    )
    timeout: Annotated[Duration, PlainValidator(_check_timeout), DURATION_SCHEMA] = Field(
        default_factory=_timeout, json_schema_extra={**NONSENSITIVE, "default": "30s"}
    )
    retry: Retry = Field(default=Retry(), json_schema_extra=NONSENSITIVE)
    max_retries: StrictInt | None = Field(default=None, ge=0, lt=_MOST_ATTEMPTS, json_schema_extra=NONSENSITIVE)
    max_attempts: StrictInt = Field(
        default_factory=_attempts, ge=0, le=_MOST_ATTEMPTS, json_schema_extra={**NONSENSITIVE, "default": 3}
    )
    written_interval: Wait | None = Field(default=None, alias="interval", json_schema_extra=NONSENSITIVE)
    when: When = Field(default=When(), json_schema_extra=NONSENSITIVE)
    on_failure: OnFailure = Field(default=OnFailure.DEAD_LETTER, json_schema_extra=NONSENSITIVE)
    success: Success = Field(default_factory=_success)
    signing: Signing | None = None
    ordering: Ordering = Field(default=Ordering.NONE, json_schema_extra=NONSENSITIVE)
    enabled: StrictBool = Field(default=True, json_schema_extra=NONSENSITIVE)
    allowed_hosts: tuple[Annotated[str, AfterValidator(check_host_pattern)], ...] = Field(default=(), max_length=100)

    _name: str = PrivateAttr(default="")
    _interval: float = PrivateAttr(default=0.0)

    @property
    def name(self) -> str:
        """In the block; empty outside of one."""
        return self._name

    @property
    def interval(self) -> float:
        """Shortest seconds between two calls; without one of its own the block's."""
        return self._interval if self.written_interval is None else float(self.written_interval)

    @property
    def attempts(self) -> int:
        """How often it is tried, at least once."""
        return max(1, self.max_attempts)

    @property
    def address_digest(self) -> str:
        """Tells whether the address in the document is another one, without telling which."""
        url = None if self.url is None else self.url.get_secret_value()
        parameters = None if self.parameters is None else self.parameters.dump()
        address = json.dumps([url, self.connection, self.preset, parameters], sort_keys=True)
        return hashlib.sha256(address.encode()).hexdigest()[:16]

    def accepts_commit(self, event: CommitEvent) -> bool:
        """Whether the endpoint hears of this commit (``when``)."""
        return self.when.accepts(event)

    def exposed_headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Values that templates may print, by the names under which headers and ``exposeHeaders`` have them.

        :param more: headers of the connection
        """
        own = {name: value.get_secret_value() for name, value in self.headers.items()}
        wanted = {name.lower(): name for name in self.expose_headers}
        found: dict[str, str] = {}
        for name, value in {**(more or {}), **own}.items():
            if name.lower() in wanted:
                found |= {name: value, wanted[name.lower()]: value}
        return found

    def placed(self, name: str, interval: float) -> Endpoint:
        """The same endpoint in a block.

        :param interval: the block's
        """
        placed = self.model_copy()
        placed._name, placed._interval = name, interval
        return placed

    def dump(self) -> dict[str, Any]:
        """The document; the method always stands in it, empty headers do not."""
        document = {**super().dump(), "method": self.method}
        if not self.headers:
            document.pop("headers", None)
        return document

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and not is_sealed_text(value):
            preset_named(value)
        return value

    @field_validator("parameters", mode="plain", json_schema_input_type=AnyPreset | None)
    @classmethod
    def _of_the_preset(cls, value: Any, info: ValidationInfo) -> Preset | None:
        name = info.data.get("preset")
        if name is None or is_sealed_text(name):
            return None
        preset = preset_named(name).model_validate({} if value is None else value)
        url = info.data.get("url")
        if url is not None and preset.path():
            check_base(url.get_secret_value(), preset.path())
        return preset

    @field_validator("headers", mode="wrap")
    @classmethod
    def _headers(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        found = check_headers(value) if isinstance(value, Mapping) else []
        try:
            headers = handler(value)
        except ValidationError as error:
            raise refusal("headers", [*worded(error, {}), *found]) from None
        if found:
            raise refusal("headers", found)
        return headers

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """What excludes each other, and what one of has to be there."""
        given = {name for name, value in written.items() if value is not None}
        found = [
            mistake(f"{one} and {other} are both given", "keep one of them")
            for one, other in _ONE_OF_TWO
            if {one, other} <= given
        ]
        if not {"payload", "payloadTemplate", "preset"} & given:
            found.append(mistake("has no body", "write payload, payloadTemplate or preset"))
        if "with" in given and "preset" not in given:
            found.append(mistake("goes with preset", "name the preset", at=("with",)))
        if not {"url", "connection"} & given and _needs_address(written.get("preset")):
            found.append(mistake("has no address", "write url, or connection with an HTTP connection of Airflow"))
        return found + _not_exposable(written)


def _needs_address(preset: Any) -> bool:
    if is_sealed_text(preset):
        return False
    try:
        return not preset_named(preset).base if isinstance(preset, str) else True
    except PydanticCustomError:
        return False


def _not_exposable(written: Mapping[str, Any]) -> list[PydanticCustomError]:
    """Names to expose that are no header here; those of a connection are not known before delivery."""
    headers, names = written.get("headers") or {}, written.get("exposeHeaders") or ()
    if written.get("connection") is not None or not isinstance(headers, Mapping) or not isinstance(names, list | tuple):
        return []
    known = {str(name).lower() for name in headers}
    return [
        mistake("is no header of this endpoint", nearest(name, map(str, headers)), at=("exposeHeaders", number))
        for number, name in enumerate(names)
        if isinstance(name, str) and name.lower() not in known and not is_sealed_text(name)
    ]
