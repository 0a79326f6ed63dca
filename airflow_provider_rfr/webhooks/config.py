"""The triggers block, which a user writes in YAML or Python, read strictly and checked as a whole.

No error shows a value of the document.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from airflow_provider_rfr.documents import DocumentError, read_yaml
from airflow_provider_rfr.exceptions import Problem, TriggerConfigError
from airflow_provider_rfr.webhooks._fields import NONSENSITIVE, holds_sealed_text, plain_tree
from airflow_provider_rfr.webhooks._model import TriggerModel, Wait, details, mistake, path_of, refusal
from airflow_provider_rfr.webhooks.endpoint import Endpoint

LONGEST_NAME = 128
NAME_PATTERN = r"^[\w.\-]+$"
"""For JSON schema; as near as regular expressions of both Python and JavaScript come."""

MOST_ENDPOINTS = 100
_LONGEST_QUOTED = 60
_LARGEST_FILE = 4 * 1024 * 1024


def made_name(text: str) -> str:
    """Return a valid name that is made from any text."""
    usable = "".join(part if _name_fault(part) is None else "_" for part in text[:LONGEST_NAME])
    return usable or "_"


def label(name: str) -> str:
    """Return the name as errors show it, valid or not."""
    return name if _name_fault(name) is None else _quoted(name)


def _quoted(text: str) -> str:
    """Quote a text on one line and shorten it if it is too long."""
    cut = text if len(text) <= _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}…"
    return json.dumps(cut, ensure_ascii=not cut.isprintable())


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

    :ivar name: distinguishes blocks of the same tables; by default the name of the file or of the DAG
    :ivar interval: shortest time between two calls of an endpoint that gives none
    :ivar config: endpoints in the order of the document
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

        :param decrypt: from the document as it was read to the one without ``sops``
        :raises TriggerConfigError: a value that was sealed is wrong
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
            raise refusal("TriggerBlock", [details(many, ("config",))])
        block = handler(document)
        block._as_list = as_list
        if block.is_sealed:
            block._sealed = written
            return block
        sealed = [
            details(mistake("holds a sealed value, and the document has no sops to open it"), ("config", name))
            for name, endpoint in block.config.items()
            if holds_sealed_text(endpoint.dump())
        ]
        if sealed:
            raise refusal("TriggerBlock", sealed)
        return block

    @field_validator("config")
    @classmethod
    def _place_endpoints(cls, value: dict[str, Endpoint], info: ValidationInfo) -> dict[str, Endpoint]:
        interval = float(info.data.get("interval") or 0)
        return {name: endpoint.placed(name, interval) for name, endpoint in value.items()}


def parse_triggers(
    document: Mapping[str, Any] | Sequence[Any] | TriggerBlock, *, where: str = "triggers"
) -> TriggerBlock:
    """Read a block: a mapping with ``config``, or a list of endpoints, at the top or below a key ``triggers``.

    Nothing is opened, asked or sent. Templates are checked by :mod:`.validation`.

    :param where: where the document is from, for problems of the block as a whole
    :raises TriggerConfigError: with every problem
    """
    if isinstance(document, TriggerBlock):
        return document
    try:
        return TriggerBlock.model_validate(unwrapped(document))
    except ValidationError as error:
        found = error
    problems = []
    for item in found.errors(include_url=False, include_input=False):
        location, trigger, context = item["loc"], "", item.get("ctx", {})
        if location[:1] == ("config",) and len(location) > 1 and location[2:] != ("[key]",):
            trigger, path = label(str(location[1])), path_of(location[2:])
        else:
            place = path_of(location[:1])
            path = place if where == "triggers" else f"{where}: {place}".removesuffix(": ")
        if context.get("whole"):
            path = "" if trigger or where == "triggers" else where
        problem = str(context.get("problem", item["msg"]))
        at = f"trigger {trigger}" if trigger else "triggers"
        problems.append(Problem(path, problem, str(context.get("remedy", "")), at))
    raise TriggerConfigError.of(problems)


def unwrapped(document: Any) -> Any:
    """Return the block itself: without a key ``triggers`` above it, and a list as its ``config``."""
    if isinstance(document, Mapping) and "triggers" in document and "config" not in document:
        document = document["triggers"]
    if isinstance(document, Sequence) and not isinstance(document, str):
        return {"config": document}
    return document


def load_document(path: str | Path) -> Any:
    """Return the content of a YAML or JSON file.

    :raises TriggerConfigError: it can't be read, or is neither
    """
    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise DocumentError(f"has more than {_LARGEST_FILE} bytes")
        return _parse_document(file.read_text(encoding="utf-8-sig"), is_json=file.suffix.lower() == ".json")
    except UnicodeDecodeError:
        problem = "is not in UTF-8"
    except OSError as error:
        problem = f"can't be read: {error.strerror or type(error).__name__}"
    except DocumentError as error:
        problem = str(error)
    raise TriggerConfigError(str(path), problem, place="triggers")


def _parse_document(text: str, *, is_json: bool = False) -> Any:
    """Parse the text of a file; raise :class:`DocumentError` if it can't be parsed."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = next((key for key, times in Counter(key for key, _ in pairs).items() if times > 1), None)
        if repeated is not None:
            raise DocumentError("duplicate key", key=repeated)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique) if is_json else read_yaml(text)
    except DocumentError as error:
        problem = f"duplicate key {_quoted(error.key)}" if error.key is not None else error.problem
        if error.line:
            problem += f"{',' if error.key is not None else ''} at line {error.line}"
        raise DocumentError(problem) from None
    except json.JSONDecodeError as error:
        raise DocumentError(f"is not JSON at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError, OverflowError):
        raise DocumentError("holds a value that can't be read") from None
