"""The triggers block: what a user writes in YAML or Python, read strictly and checked as a whole.

No error shows what the file holds.
"""

from __future__ import annotations

import json
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
from airflow_provider_rfr.exceptions import TriggerConfigError, TriggerProblem
from airflow_provider_rfr.webhooks.config_errors import (
    TriggerModel,
    Wait,
    check_name,
    details,
    label,
    mistake,
    problem_of,
    quoted,
    refusal,
)
from airflow_provider_rfr.webhooks.endpoint import Endpoint
from airflow_provider_rfr.webhooks.fields import NONSENSITIVE, holds_sealed_text, plain_tree

_LARGEST_FILE = 4 * 1024 * 1024


def _read_document(path: str | Path) -> Any:
    """The file's content: JSON by its suffix, else YAML.

    :raises DocumentError: there is no such file, or it is neither
    """
    file = Path(path)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise DocumentError(f"has more than {_LARGEST_FILE} bytes")
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DocumentError("is not in UTF-8") from None
    except OSError as error:
        raise DocumentError(f"can't be read: {error.strerror or type(error).__name__}") from None
    return _parse_document(text, is_json=file.suffix.lower() == ".json")


def _parse_document(text: str, *, is_json: bool = False) -> Any:
    """The content of a file with this text; raises :class:`DocumentError`."""
    try:
        return json.loads(text, object_pairs_hook=_once) if is_json else read_yaml(text)
    except DocumentError as error:
        problem = f"duplicate key {quoted(error.key)}," if error.key is not None else error.problem
        raise DocumentError(f"{problem} at line {error.line}" if error.line else problem.rstrip(",")) from None
    except json.JSONDecodeError as error:
        raise DocumentError(f"is no JSON at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError, OverflowError):
        raise DocumentError("holds a value that can't be read") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DocumentError("duplicate key", key=key)
        found[key] = value
    return found


MOST_ENDPOINTS = 100


def _check_block_name(name: str) -> str:
    return check_name(name, "block")


class TriggerBlock(TriggerModel):
    """Endpoints by name.

    :ivar name: tells the block from others that hear of the same tables; of a file its name, of a block in a DAG the
        DAG's, if left out
    :ivar interval: shortest time between two calls of an endpoint that gives none
    :ivar config: endpoints in the order of the document
    :ivar sops: how a sealed document is opened; None where nothing is sealed
    """

    name: Annotated[str, AfterValidator(_check_block_name)] = Field(default="", json_schema_extra=NONSENSITIVE)
    interval: Wait | None = Field(default=None, json_schema_extra=NONSENSITIVE)
    config: dict[Annotated[str, AfterValidator(check_name)], Endpoint] = Field(max_length=MOST_ENDPOINTS)
    sops: SkipJsonSchema[Mapping[str, Any] | None] = None

    _as_list: bool = PrivateAttr(default=False)
    _sealed: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them; each knows its name."""
        return tuple(self.config.values())

    @property
    def is_sealed(self) -> bool:
        """Whether values are sealed: then they are text (``ENC[...]``) until the block is opened."""
        return self.sops is not None

    def opened(self, decrypt: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> TriggerBlock:
        """The block with its values.

        :param decrypt: from the document as it was read to the one without ``sops``
        :raises TriggerConfigError: what was sealed is wrong
        """
        return parse_triggers(decrypt(self.dump())) if self.is_sealed else self

    def dump(self) -> dict[str, Any]:
        """The document that was read, secrets included; of a sealed one, as it is."""
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
        document = plain_tree(_in_plain(data))
        endpoints = document.get("config") if isinstance(document, Mapping) else None
        if as_list := isinstance(endpoints, list):
            document = {**document, "config": {f"trigger{n}": each for n, each in enumerate(endpoints)}}
        block = handler(document)
        block._as_list = as_list
        if block.is_sealed:
            block._sealed = plain_tree(_in_plain(data))
        else:
            _refuse_sealed(block)
        return block

    @field_validator("config")
    @classmethod
    def _placed(cls, value: dict[str, Endpoint], info: ValidationInfo) -> dict[str, Endpoint]:
        interval = float(info.data.get("interval") or 0)
        return {name: endpoint.placed(name, interval) for name, endpoint in value.items()}


def parse_triggers(
    document: Mapping[str, Any] | Sequence[Any] | TriggerBlock, *, where: str = "triggers"
) -> TriggerBlock:
    """Read a block: a mapping with ``config``, or a list of endpoints; it may stand below a key ``triggers``.

    Nothing is opened, asked or sent. Templates are checked by :mod:`.validation`.

    :param where: where the document is from, for problems of the block as a whole
    :raises TriggerConfigError: with every problem
    """
    if isinstance(document, TriggerBlock):
        return document
    try:
        return TriggerBlock.model_validate(unwrapped(document))
    except ValidationError as error:
        raise TriggerConfigError(_problems_of(error, where)) from None


def load_triggers(path: str | Path) -> TriggerBlock:
    """Read the block of a YAML or JSON file, at its top or below a key ``triggers``.

    :raises TriggerConfigError: the file can't be read, or with every problem of the block
    """
    return parse_triggers(load_document(path), where=str(path))


def load_document(path: str | Path) -> Any:
    """The file's content, whatever it is; raises :class:`TriggerConfigError` where it is neither YAML nor JSON."""
    try:
        return _read_document(path)
    except DocumentError as error:
        raise TriggerConfigError([TriggerProblem("", str(path), str(error))]) from None


def unwrapped(document: Any) -> Any:
    """The block itself, where it stands below ``triggers`` or is a bare list."""
    if isinstance(document, Mapping) and "triggers" in document and "config" not in document:
        document = document["triggers"]
    if isinstance(document, Sequence) and not isinstance(document, str):
        return {"config": document}
    return document


def _problems_of(error: ValidationError, where: str = "triggers") -> list[TriggerProblem]:
    """What the user reads."""
    prefix = () if where == "triggers" else (where,)
    found = []
    for item in error.errors(include_url=False, include_input=False):
        location = item["loc"]
        if location[:1] == ("config",) and len(location) > 1 and location[2:] != ("[key]",):
            found.append(problem_of(item, label(str(location[1])), location[2:]))
        else:
            problem = problem_of(item, "", location[:1])
            path = ": ".join((*prefix, problem.path)) if problem.path else "".join(prefix)
            found.append(TriggerProblem("", path, problem.problem, problem.remedy))
    return found


def _in_plain(data: Any) -> Any:
    """The document with endpoints that were made in Python as documents of their own."""
    if not isinstance(data, Mapping):
        return data
    config = data.get("config")
    if isinstance(config, Mapping):
        made: Any = {name: _dumped(each) for name, each in config.items()}
    elif isinstance(config, (list, tuple)):
        made = [_dumped(each) for each in config]
    else:
        return data
    return {**data, "config": made}


def _dumped(value: Any) -> Any:
    return value.dump() if isinstance(value, Endpoint) else value


def _refuse_sealed(block: TriggerBlock) -> None:
    found = [
        details(mistake("holds a sealed value, and the document has no sops to open it"), ("config", name))
        for name, endpoint in block.config.items()
        if holds_sealed_text(endpoint.dump())
    ]
    if found:
        raise refusal("TriggerBlock", found)
