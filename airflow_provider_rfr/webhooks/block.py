"""Models of the triggers block, which a user writes in YAML or Python, and its strict validation.

No error shows a value of the document. ``trigger_schema.json`` is the JSON schema of the block, for editors and forms:
it marks secrets, and fields that stay readable in a sealed document. ``scripts/trigger_schema.py`` writes the file from
these models.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.documents import DocumentError, read_yaml, suggestion, wording
from airflow_provider_rfr.exceptions import Problem, TriggerConfigError
from airflow_provider_rfr.text import cut
from airflow_provider_rfr.webhooks._fields import (
    NONSENSITIVE,
    ConnectionId,
    HeaderName,
    Headers,
    HostPattern,
    JsonTree,
    Signing,
    Success,
    Url,
    When,
    check_base,
    holds_sealed_text,
    is_sealed_text,
    one_of,
    plain_tree,
)
from airflow_provider_rfr.webhooks._model import (
    DURATION_SCHEMA,
    Duration,
    OtherSpelling,
    TriggerModel,
    Wait,
    between,
    details,
    mistake,
    path_of,
    printable_key,
    read_duration,
    refusal,
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
    """A rule for an event that comes while the one before it is not delivered."""

    NONE = "none"
    STRICT = "strict"


class Retry(TriggerModel):
    """How attempts follow each other.

    :ivar schedule: ``quick`` waits seconds between attempts; ``standard`` waits from seconds to a day
    :ivar max_elapsed: ``1s`` to ``30d`` since the first attempt, after which no further one is made
    """

    schedule: Schedule = Field(default=Schedule.QUICK, json_schema_extra=NONSENSITIVE)
    max_elapsed: Annotated[Duration, PlainValidator(between("1s", "30d")), DURATION_SCHEMA] | None = Field(
        default=None, json_schema_extra=NONSENSITIVE
    )


_METHODS = ("POST", "PUT", "PATCH")
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 1, 300
_LONGEST_TEMPLATE = 64 * 1024
_MOST_ATTEMPTS = 100
_DEFAULT_ATTEMPTS = {Schedule.QUICK: 3, Schedule.STANDARD: 10}


def _check_timeout(seconds: Any) -> Any:
    if seconds <= 0:
        remedy = f"write {_SHORTEST_TIMEOUT}s to {_LONGEST_TIMEOUT}s"
        raise mistake("timeout must be greater than 0", remedy, whole=True)
    if seconds > _LONGEST_TIMEOUT:
        raise mistake(f"timeout must be at most {_LONGEST_TIMEOUT}s", whole=True)
    return seconds


class TextTemplate(str):
    """A body that is one template as a whole, and not a tree of templates."""

    __slots__ = ()


_Method = Annotated[str, PlainValidator(one_of(*_METHODS)), WithJsonSchema({"enum": list(_METHODS), "type": "string"})]
_Timeout = Annotated[Duration, PlainValidator(read_duration), AfterValidator(_check_timeout), DURATION_SCHEMA]


class Endpoint(TriggerModel):
    """An endpoint: an address, the body that is sent to it, and the rules for repeated attempts.

    :ivar url: ``http`` or ``https`` address, without user name and fragment; a preset adds its path to it
    :ivar connection: id of an Airflow connection of type ``rfr_http``, instead of ``url``
    :ivar preset: name of a preset, which fills in the fields that are not given here
    :ivar parameters: parameters of the preset
    :ivar method: method of the request
    :ivar headers: names and values; ``Host``, ``Content-Length``, ``webhook-id`` and the like are refused
    :ivar expose_headers: headers that templates may print as ``{{headers.Name}}``
    :ivar payloadTemplate: one template whose result is JSON, of at most 64 KB, instead of ``payload``
    :ivar payload: JSON whose texts are templates
    :ivar timeout: ``1s`` to ``300s`` for one attempt, from connecting to the end of the answer
    :ivar timeoutSecs: the same as a number, instead of ``timeout``
    :ivar max_attempts: attempts with the first one, of which there always is one; by default 10 with ``standard``
    :ivar maxRetries: attempts after the first one, instead of ``maxAttempts``
    :ivar retry: how attempts follow each other
    :ivar written_interval: shortest time between two calls, up to ``30d``, by default the block's; commits in between
        are merged into one event
    :ivar when: which commits the endpoint gets
    :ivar on_failure: once an event can't be delivered: keep it (``dead_letter``), keep it without a notification
        (``ignore``), or keep it and ``block`` the table's next refresh
    :ivar success: which answers are delivery
    :ivar signing: how calls are signed, by Standard Webhooks
    :ivar ordering: with ``strict`` an event waits until the one before it is delivered; with ``none`` it does not
    :ivar enabled: with false, nothing is sent
    :ivar allowed_hosts: of the private hosts that the installation allows, those that may be called: names, addresses
        (with a port, or for any), networks; empty for all
    """

    other_spellings: ClassVar[Mapping[str, OtherSpelling]] = {
        "payload_template": OtherSpelling(
            "payload", TypeAdapter(Annotated[str, Field(max_length=_LONGEST_TEMPLATE)]), read=TextTemplate, write=str
        ),
        "timeoutSecs": OtherSpelling(
            "timeout",
            TypeAdapter(Annotated[StrictInt, AfterValidator(_check_timeout)]),
            read=lambda seconds: Duration(f"{seconds}s"),
            write=int,
        ),
        "maxRetries": OtherSpelling(
            "maxAttempts",
            TypeAdapter(Annotated[StrictInt, Field(ge=0, lt=_MOST_ATTEMPTS)]),
            read=lambda retries: retries + 1,
            write=lambda attempts: attempts - 1,
        ),
    }

    url: Url | None = None
    connection: ConnectionId | None = None
    preset: str | None = None
    # After preset and url, which its validator reads: a preset decides which parameters and addresses are valid.
    parameters: Preset | None = Field(default=None, alias="with", validate_default=True)
    method: _Method = _METHODS[0]
    headers: Headers = Field(default_factory=dict)
    expose_headers: tuple[HeaderName, ...] = ()
    payload: JsonTree = Field(default=None, json_schema_extra={**NONSENSITIVE, "not": {"type": "null"}})
    timeout: _Timeout = Field(
        default_factory=lambda: Duration("30s"), json_schema_extra={**NONSENSITIVE, "default": "30s"}
    )
    retry: Retry = Field(default=Retry(), json_schema_extra=NONSENSITIVE)
    max_attempts: StrictInt = Field(default=3, ge=0, le=_MOST_ATTEMPTS, json_schema_extra=NONSENSITIVE)
    written_interval: Wait | None = Field(default=None, alias="interval", json_schema_extra=NONSENSITIVE)
    when: When = Field(default=When(), json_schema_extra=NONSENSITIVE)
    on_failure: OnFailure = Field(default=OnFailure.DEAD_LETTER, json_schema_extra=NONSENSITIVE)
    success: Success = Success()
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
    def is_sealed(self) -> bool:
        """Tell whether any value of the endpoint is sealed."""
        return holds_sealed_text(self.dump())

    @property
    def text_template(self) -> TextTemplate | None:
        """Return the template of the whole body; None if the body is a tree of templates, or the preset's."""
        return self.payload if isinstance(self.payload, TextTemplate) else None

    @property
    def attempts(self) -> int:
        """Return the most attempts for a delivery, at least one; the default depends on the schedule."""
        is_written = "max_attempts" in self.model_fields_set
        return max(1, self.max_attempts if is_written else _DEFAULT_ATTEMPTS[self.retry.schedule])

    @property
    def address_digest(self) -> str:
        """Return a digest of the address in the document: it changes with the address, and does not reveal it.

        It has no secret parameter of a preset, and no tree, which may hold one: whoever reads the store could guess it.
        """
        url = None if self.url is None else self.url.get_secret_value()
        parameters = {} if self.parameters is None else dict(self.parameters)
        names = {name: value for name, value in parameters.items() if isinstance(value, (str, int))}
        address = json.dumps([url, self.connection, self.preset, names], sort_keys=True)
        return hashlib.sha256(address.encode()).hexdigest()[:16]

    def accepts(self, status: int, body: bytes) -> bool:
        """Tell whether this answer counts as delivery, by the endpoint's own rule or else by its preset's."""
        if self.parameters is None or "success" in self.model_fields_set:
            return self.success.accepts(status, body)
        return self.parameters.receiver.success.accepts(status, body)

    def exposed_headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the header values that templates may print.

        A value is listed under the spelling of its name in the headers, and under that in ``exposeHeaders``.

        :param more: headers of the connection; the endpoint's own take precedence
        """
        own = {name: value.get_secret_value() for name, value in self.headers.items()}
        wanted = {name.lower(): name for name in self.expose_headers}
        exposed: dict[str, str] = {}
        for name, value in {**(more or {}), **own}.items():
            if name.lower() in wanted:
                exposed |= {name: value, wanted[name.lower()]: value}
        return exposed

    def placed(self, name: str, interval: float) -> Endpoint:
        """Return a copy of the endpoint with its name and the interval of its block, in seconds."""
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
        """Return the problems of fields that exclude each other, and of alternatives that are all missing."""
        names = {name for name, value in written.items() if value is not None}
        problems = []
        if {"url", "connection"} <= names:
            problems.append(mistake("url and connection are both given", "keep one of them"))
        if not {"payload", "payloadTemplate", "preset"} & names:
            problems.append(mistake("has no body", "write payload, payloadTemplate or preset"))
        if "with" in names and "preset" not in names:
            problems.append(mistake("goes with preset", "name the preset", at=("with",)))
        preset = written.get("preset")
        try:
            needs_address = not isinstance(preset, str) or not preset_named(preset).receiver.base
        except PydanticCustomError:
            # Unknown, which is reported elsewhere, or sealed.
            needs_address = False
        if needs_address and not {"url", "connection"} & names:
            problems.append(mistake("has no address", "write url, or connection with an HTTP connection of Airflow"))
        headers, exposed = written.get("headers") or {}, written.get("exposeHeaders") or ()
        # Headers of a connection are not known before delivery.
        if "connection" not in names and isinstance(headers, Mapping) and isinstance(exposed, list | tuple):
            own_headers, known = {str(name).lower() for name in headers}, [printable_key(name) for name in headers]
            problems += [
                mistake("is not a header of this endpoint", suggestion(name, known), at=("exposeHeaders", n))
                for n, name in enumerate(exposed)
                if isinstance(name, str) and name.lower() not in own_headers and not is_sealed_text(name)
            ]
        return problems


SCHEMA_FILE: Final = Path(__file__).with_name("trigger_schema.json")
LONGEST_NAME = 128
NAME_PATTERN = r"^[\w.\-]+$"
"""The rule for names in the JSON schema, as close as regular expressions of both Python and JavaScript come."""

MOST_ENDPOINTS = 100
_LONGEST_QUOTED = 60
_LARGEST_FILE = 4 * 1024 * 1024


def valid_name(text: str) -> str:
    """Return the text as a valid name: shortened, with ``_`` for characters that names can't have."""
    usable = "".join(part if _name_fault(part) is None else "_" for part in text[:LONGEST_NAME])
    return usable or "_"


def label(name: str) -> str:
    """Return the name for an error message, quoted and shortened if it is not valid."""
    return name if _name_fault(name) is None else _quoted(name)


def _quoted(text: str) -> str:
    """Quote a text on one line and shorten it if it is too long."""
    return json.dumps(cut(text, _LONGEST_QUOTED), ensure_ascii=not text.isprintable())


def _name_fault(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > LONGEST_NAME:
        return f"it has more than {LONGEST_NAME} characters"
    wrong = next((part for part in name if part not in "-_." and unicodedata.category(part)[0] not in "LN"), None)
    return None if wrong is None else f"{_quoted(wrong)} is invalid"


def _name_check(kind: str) -> AfterValidator:
    def check(name: str) -> str:
        fault = _name_fault(name)
        if fault is not None:
            problem = f"{_quoted(name)} cannot be used as name for {kind} ({fault})"
            raise mistake(problem, "use letters, numbers, - _ .")
        return name

    return AfterValidator(check)


class TriggerBlock(TriggerModel):
    """Endpoints by name.

    :ivar name: name that distinguishes blocks of the same tables; by default that of the file, or the DAG's id
    :ivar interval: shortest time between two calls, for endpoints that give none
    :ivar config: endpoints by name, at most 100
    :ivar sops: how a sealed document is opened; None where nothing is sealed
    """

    name: Annotated[str, _name_check("block")] = Field(default="", json_schema_extra=NONSENSITIVE)
    interval: Wait | None = Field(default=None, json_schema_extra=NONSENSITIVE)
    config: dict[Annotated[str, _name_check("trigger")], Endpoint] = Field(max_length=MOST_ENDPOINTS)
    sops: SkipJsonSchema[Mapping[str, Any] | None] = None

    _as_list: bool = PrivateAttr(default=False)
    _sealed: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return all endpoints; each knows its name."""
        return tuple(self.config.values())

    @property
    def is_sealed(self) -> bool:
        """Tell whether values are sealed: then they are text (``ENC[...]``) until the block is opened."""
        return self.sops is not None

    def opened(self, decrypt: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> TriggerBlock:
        """Return the block with its sealed values opened.

        :param decrypt: converts the sealed document to the opened one, without ``sops``
        :raises TriggerConfigError: an opened value is not valid
        """
        return parse_triggers(decrypt(self.dump())) if self.is_sealed else self

    def dump(self) -> dict[str, Any]:
        """Return the document that was read, secrets included; a sealed one unchanged."""
        if self.is_sealed:
            return dict(plain_tree(self._sealed))
        endpoints = {name: endpoint.dump() for name, endpoint in self.config.items()}
        interval = {} if self.interval is None else {"interval": self.interval.text}
        name = {"name": self.name} if self.name else {}
        return {**name, **interval, "config": list(endpoints.values()) if self._as_list else endpoints}

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, data: Any, handler: ModelWrapValidatorHandler[TriggerBlock]) -> TriggerBlock:
        if isinstance(data, cls):
            return data
        document = written = plain_tree(data)
        endpoints = document.get("config") if isinstance(document, Mapping) else None
        if as_list := isinstance(endpoints, list):
            document = {**document, "config": {f"trigger{n}": endpoint for n, endpoint in enumerate(endpoints)}}
        if isinstance(endpoints, (Mapping, list)) and len(endpoints) > MOST_ENDPOINTS:
            # Checking them takes long.
            many = mistake(f"must have at most {MOST_ENDPOINTS} entries")
            raise refusal([details(many, ("config",))])
        block = handler(document)
        block._as_list = as_list
        interval = float(block.interval or 0)
        block.config.update({name: endpoint.placed(name, interval) for name, endpoint in block.config.items()})
        if block.is_sealed:
            block._sealed = written
            return block
        sealed = [
            details(mistake("holds a sealed value, and the document has no sops to open it"), ("config", name))
            for name, endpoint in block.config.items()
            if endpoint.is_sealed
        ]
        if sealed:
            raise refusal(sealed)
        return block


def parse_triggers(
    document: Mapping[str, Any] | Sequence[Any] | TriggerBlock, *, where: str = "triggers"
) -> TriggerBlock:
    """Validate a block: a mapping with ``config``, or a list of endpoints, at the top or below a key ``triggers``.

    Sealed values stay sealed, no connection is looked up, and nothing is sent. :mod:`.validation` checks templates.

    :param where: origin of the document, such as a file's path, for problems of the block as a whole
    :raises TriggerConfigError: the document is not valid; the error has every problem
    """
    if isinstance(document, TriggerBlock):
        return document
    try:
        return TriggerBlock.model_validate(unwrapped(document))
    except ValidationError as error:
        invalid = error
    problems = []
    for item in invalid.errors(include_url=False, include_input=False):
        location, trigger, context = item["loc"], "", item.get("ctx", {})
        if location[:1] == ("config",) and len(location) > 1 and location[2:] != ("[key]",):
            trigger, path = label(str(location[1])), path_of(location[2:])
        else:
            place = path_of(location[:1])
            path = place if where == "triggers" else f"{where}: {place}".removesuffix(": ")
        if context.get("whole"):
            path = "" if trigger or where == "triggers" else where
        at = f"trigger {trigger}" if trigger else "triggers"
        problems.append(Problem(path, *wording(item), at))
    raise TriggerConfigError.of(problems)


def unwrapped(document: Any) -> Any:
    """Return the block without a key ``triggers`` above it; a list of endpoints becomes its ``config``."""
    if isinstance(document, Mapping) and "triggers" in document and "config" not in document:
        document = document["triggers"]
    if isinstance(document, Sequence) and not isinstance(document, str):
        return {"config": document}
    return document


def load_document(path: str | Path) -> Any:
    """Return the content of a YAML or JSON file.

    :raises TriggerConfigError: it can't be read, or is neither
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = next((key for key, times in Counter(key for key, _ in pairs).items() if times > 1), None)
        if repeated is not None:
            raise DocumentError("duplicate key", key=repeated)
        return dict(pairs)

    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise DocumentError(f"has more than {_LARGEST_FILE} bytes")
        text = file.read_text(encoding="utf-8-sig")
        return json.loads(text, object_pairs_hook=unique) if file.suffix.lower() == ".json" else read_yaml(text)
    except UnicodeDecodeError:
        problem = "is not in UTF-8"
    except OSError as error:
        problem = f"can't be read: {error.strerror or type(error).__name__}"
    except json.JSONDecodeError as error:
        problem = f"is not JSON at line {error.lineno}, column {error.colno}"
    except DocumentError as error:
        problem = f"duplicate key {_quoted(error.key)}" if error.key is not None else error.problem
        if error.line:
            problem += f"{',' if error.key is not None else ''} at line {error.line}"
    except (ValueError, RecursionError, OverflowError):
        problem = "holds a value that can't be read"
    raise TriggerConfigError(str(path), problem, place="triggers")
