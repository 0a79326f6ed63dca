"""What counts as delivered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake
from airflow_provider_rfr.webhooks.configuration.secret_values import is_sealed_text
from airflow_provider_rfr.webhooks.configuration.trees import plain_tree
from airflow_provider_rfr.webhooks.configuration.trigger_model import TriggerModel

NONSENSITIVE: dict[str, Any] = {"nonsensitive": True}
_CLASS = re.compile(r"[245]xx")
_CODE = re.compile(r"[245][0-9][0-9]")
_INDEX = re.compile(r"0|[1-9][0-9]*")
_ABSENT = object()


def _status(value: Any) -> int | str:
    if is_sealed_text(value):
        return str(value)
    text = str(value).lower() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if text.startswith("3") and len(text) == 3:
        raise mistake("a redirect is never delivery", "write the address that it leads to as url")
    if _CLASS.fullmatch(text):
        return text
    if _CODE.fullmatch(text):
        return int(text)
    raise mistake("is no status", "write e.g. 2xx, 204 or 409")


def _pointer(value: str) -> str:
    parts = value.split("/")
    if is_sealed_text(value):
        return value
    if (value and parts[0]) or re.search("~(?![01])", value):
        raise mistake("is no JSON pointer", "write e.g. /data/launchRun/__typename")
    return value


Status = Annotated[
    int | str,
    BeforeValidator(_status),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 200, "maximum": 599},
                {"type": "string", "pattern": "^[245]([xX]{2}|[0-9]{2})$"},
            ]
        }
    ),
]


class Success(TriggerModel):
    """Which answers are delivery; all that is given has to hold.

    :ivar status: statuses (``409``) and classes of them (``2xx``)
    :ivar pointer: JSON pointer (RFC 6901) into the answer; what it points at has to be there
    :ivar equals: ... and to be this value, if it is given
    """

    status: tuple[Status, ...] = Field(default=("2xx",), min_length=1, max_length=50)
    pointer: Annotated[str, AfterValidator(_pointer)] | None = Field(default=None, max_length=1000)
    equals: Annotated[Any, AfterValidator(plain_tree)] = None

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """A value to compare with needs something that it is compared to."""
        if "equals" in written and written.get("pointer") is None:
            return [mistake("needs a pointer", "write pointer: /path/in/the/answer", at=("equals",))]
        return []

    def dump(self) -> dict[str, Any]:
        """As all models; ``equals: null`` is a value like others."""
        return {
            **super().dump(),
            **({"equals": None} if self.equals is None and "equals" in self.model_fields_set else {}),
        }

    @property
    def reads_body(self) -> bool:
        """Whether the answer's body decides."""
        return self.pointer is not None

    def accepts(self, status: int, body: bytes) -> bool:
        """Whether this answer is delivery; a body that is no JSON has nothing that could be pointed at."""
        if 300 <= status < 400 or not any(each in (status, f"{status // 100}xx") for each in self.status):
            return False
        if self.pointer is None:
            return True
        found = _at(self.pointer, body)
        if found is _ABSENT:
            return False
        return "equals" not in self.model_fields_set or _same(found, self.equals)


def _at(pointer: str, body: bytes) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _ABSENT
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            return _ABSENT
    return value


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
