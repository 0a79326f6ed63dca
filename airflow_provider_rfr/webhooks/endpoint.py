"""One endpoint of a triggers block: its address, its body, its schedule, and the answers that count as delivered."""

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
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.webhooks._fields import (
    NONSENSITIVE,
    ConnectionId,
    HeaderName,
    Headers,
    HostPattern,
    JsonTree,
    SigningSecret,
    Success,
    Url,
    check_base,
    is_sealed_text,
    one_of,
    signing_key,
)
from airflow_provider_rfr.webhooks._model import (
    DURATION_SCHEMA,
    Duration,
    TriggerModel,
    Wait,
    between,
    mistake,
    nearest,
    read_duration,
)
from airflow_provider_rfr.webhooks.presets import AnyPreset, Preset, preset_named


class Schedule(str, Enum):
    """Waits between attempts: seconds, or up to days."""

    QUICK = "quick"
    STANDARD = "standard"


class OnFailure(str, Enum):
    """The reaction to an event that can't be delivered to the endpoint."""

    BLOCK = "block"
    DEAD_LETTER = "dead_letter"
    IGNORE = "ignore"


class Ordering(str, Enum):
    """Whether an event waits for the one before it."""

    NONE = "none"
    STRICT = "strict"


class Retry(TriggerModel):
    """How attempts follow each other.

    :ivar max_elapsed: time since the first attempt after which no further one is made; None for no such limit
    """

    schedule: Schedule = Field(default=Schedule.QUICK, json_schema_extra=NONSENSITIVE)
    max_elapsed: Annotated[Duration, PlainValidator(between("1s", "30d")), DURATION_SCHEMA] | None = Field(
        default=None, json_schema_extra=NONSENSITIVE
    )


class When(TriggerModel):
    """Which commits the endpoint gets.

    :ivar collections: patterns with ``*``, ``?`` and ``[...]``; None for all collections
    :ivar min_documents: fewest documents, of the collections that match
    """

    collections: tuple[str, ...] | None = Field(
        default=None, min_length=1, max_length=1000, json_schema_extra=NONSENSITIVE
    )
    min_documents: StrictInt = Field(default=1, ge=0, json_schema_extra=NONSENSITIVE)

    def accepts(self, event: CommitEvent) -> bool:
        """Tell whether this commit fulfils the conditions."""
        if self.collections is None:
            return event.documents >= self.min_documents
        names = {*event.collection_names, *(binding.collection for binding in event.bindings)}
        matching = {name for name in names if any(fnmatchcase(name, pattern) for pattern in self.collections)}
        documents = sum(binding.documents for binding in event.bindings if binding.collection in matching)
        return bool(matching) and documents >= self.min_documents


class Signing(TriggerModel):
    """Secrets that sign every call; with several the receiver may check with any, so that one can be replaced."""

    secrets: tuple[SigningSecret, ...] = Field(min_length=1, max_length=10)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the keys in the secrets' order; only of an opened document."""
        return tuple(map(signing_key, self.secrets))


_METHODS = ("POST", "PUT", "PATCH")
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 1, 300
_LONGEST_TEMPLATE = 64 * 1024
_MOST_ATTEMPTS = 100
_DEFAULT_ATTEMPTS = {Schedule.QUICK: 3, Schedule.STANDARD: 10}
_ONE_OF_TWO = (
    ("url", "connection"),
    ("payload", "payloadTemplate"),
    ("timeout", "timeoutSecs"),
    ("maxAttempts", "maxRetries"),
)


def _check_timeout(seconds: Any) -> Any:
    if seconds <= 0:
        remedy = f"write {_SHORTEST_TIMEOUT}s to {_LONGEST_TIMEOUT}s"
        raise mistake("timeout must be greater than 0", remedy, whole=True)
    if seconds > _LONGEST_TIMEOUT:
        raise mistake(f"timeout must be at most {_LONGEST_TIMEOUT}s", whole=True)
    return seconds


_Method = Annotated[str, PlainValidator(one_of(*_METHODS)), WithJsonSchema({"enum": list(_METHODS), "type": "string"})]
_Timeout = Annotated[Duration, PlainValidator(read_duration), AfterValidator(_check_timeout), DURATION_SCHEMA]


class Endpoint(TriggerModel):
    """An endpoint.

    :ivar url: where to; with a preset its base address
    :ivar connection: id of an Airflow connection of type ``rfr_http``, instead of ``url``
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
    :ivar written_interval: shortest time between two calls; commits in between are merged into one event
    :ivar when: which commits the endpoint gets
    :ivar on_failure: what happens with the target once an event can't be delivered
    :ivar success: which answers are delivery
    :ivar signing: Standard Webhooks
    :ivar ordering: ``strict``: an event waits until the one before it is delivered
    :ivar enabled: false: nothing is sent
    :ivar allowed_hosts: of the private hosts that the installation allows, those that may be called; empty for all
    """

    camel_case_only: ClassVar[frozenset[str]] = frozenset({"timeout_secs", "max_retries"})

    # Fields are validated in this order: defaults below depend on fields above them.
    url: Url | None = None
    connection: ConnectionId | None = None
    preset: str | None = None
    parameters: Preset | None = Field(default=None, alias="with", validate_default=True)
    method: _Method = _METHODS[0]
    headers: Headers = Field(default_factory=dict)
    expose_headers: tuple[HeaderName, ...] = ()
    payload_template: str | None = Field(default=None, max_length=_LONGEST_TEMPLATE, json_schema_extra=NONSENSITIVE)
    payload: JsonTree = Field(default=None, json_schema_extra=NONSENSITIVE)
    timeout_secs: Annotated[StrictInt, AfterValidator(_check_timeout)] | None = Field(
        default=None, json_schema_extra=NONSENSITIVE
    )
    timeout: _Timeout = Field(
        default_factory=lambda data: Duration(f"{data['timeout_secs'] or 30}s"),
        json_schema_extra={**NONSENSITIVE, "default": "30s"},
    )
    retry: Retry = Field(default=Retry(), json_schema_extra=NONSENSITIVE)
    max_retries: StrictInt | None = Field(default=None, ge=0, lt=_MOST_ATTEMPTS, json_schema_extra=NONSENSITIVE)
    max_attempts: StrictInt = Field(
        default_factory=lambda data: (
            _DEFAULT_ATTEMPTS[data["retry"].schedule] if data["max_retries"] is None else data["max_retries"] + 1
        ),
        ge=0,
        le=_MOST_ATTEMPTS,
        json_schema_extra={**NONSENSITIVE, "default": 3},
    )
    written_interval: Wait | None = Field(default=None, alias="interval", json_schema_extra=NONSENSITIVE)
    when: When = Field(default=When(), json_schema_extra=NONSENSITIVE)
    on_failure: OnFailure = Field(default=OnFailure.DEAD_LETTER, json_schema_extra=NONSENSITIVE)
    success: Success = Field(
        default_factory=lambda data: data["parameters"].receiver.success if data["parameters"] else Success()
    )
    signing: Signing | None = None
    ordering: Ordering = Field(default=Ordering.NONE, json_schema_extra=NONSENSITIVE)
    enabled: StrictBool = Field(default=True, json_schema_extra=NONSENSITIVE)
    allowed_hosts: tuple[HostPattern, ...] = Field(default=(), max_length=100)

    _name: str = PrivateAttr(default="")
    _interval: float = PrivateAttr(default=0.0)

    @property
    def name(self) -> str:
        """Return the endpoint's name in the block; empty outside of one."""
        return self._name

    @property
    def interval(self) -> float:
        """Return the least number of seconds between two calls; by default the block's."""
        return self._interval if self.written_interval is None else float(self.written_interval)

    @property
    def attempts(self) -> int:
        """Return the number of attempts, at least one."""
        return max(1, self.max_attempts)

    @property
    def address_digest(self) -> str:
        """Return a digest of the address in the document: it changes with the address, and does not reveal it."""
        url = None if self.url is None else self.url.get_secret_value()
        parameters = None if self.parameters is None else self.parameters.dump()
        address = json.dumps([url, self.connection, self.preset, parameters], sort_keys=True)
        return hashlib.sha256(address.encode()).hexdigest()[:16]

    def exposed_headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the values that templates may print, by the names under which headers and ``exposeHeaders`` have them.

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
        """Return the same endpoint in a block of this interval."""
        placed = self.model_copy()
        placed._name, placed._interval = name, interval
        return placed

    def dump(self) -> dict[str, Any]:
        """Return the document, always with its method, and without empty headers."""
        document = {**super().dump(), "method": self.method}
        if not self.headers:
            document.pop("headers", None)
        return document

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, value: str | None) -> str | None:
        if value is not None and not is_sealed_text(value):
            preset_named(value)
        return value

    @field_validator("parameters", mode="plain", json_schema_input_type=AnyPreset | None)
    @classmethod
    def _read_parameters(cls, value: Any, info: ValidationInfo) -> Preset | None:
        name = info.data.get("preset")
        if name is None or is_sealed_text(name):
            return None
        preset = preset_named(name).model_validate({} if value is None else value)
        url = info.data.get("url")
        if url is not None and preset.path():
            check_base(url.get_secret_value(), preset.path())
        return preset

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """Refuse fields that exclude each other, and the lack of fields of which one is needed."""
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
        headers, exposed = written.get("headers") or {}, written.get("exposeHeaders") or ()
        # Headers of a connection are not known before delivery.
        if "connection" not in given and isinstance(headers, Mapping) and isinstance(exposed, list | tuple):
            known = {str(name).lower() for name in headers}
            found += [
                mistake("is not a header of this endpoint", nearest(name, map(str, headers)), at=("exposeHeaders", n))
                for n, name in enumerate(exposed)
                if isinstance(name, str) and name.lower() not in known and not is_sealed_text(name)
            ]
        return found


def _needs_address(preset: Any) -> bool:
    if not isinstance(preset, str):
        return True
    try:
        return not preset_named(preset).receiver.base
    except PydanticCustomError:
        # Unknown, which is reported elsewhere, or sealed.
        return False
