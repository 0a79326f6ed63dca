"""What a preset is: a receiver's way to be called, as parameters that know address, headers, body and success."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator, SecretStr, WithJsonSchema

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake
from airflow_provider_rfr.webhooks.configuration.secret_values import Secret, is_sealed_text
from airflow_provider_rfr.webhooks.configuration.success import Success
from airflow_provider_rfr.webhooks.configuration.trees import plain_tree
from airflow_provider_rfr.webhooks.configuration.trigger_model import TriggerModel
from airflow_provider_rfr.webhooks.configuration.web import check_header_value

BEARER = ("Authorization", "Bearer {}")
_LONGEST_NAME = 500
_DIGITS = re.compile(r"[0-9]{1,18}")
_PATH = re.compile(r"/[A-Za-z0-9._~/\-]*")
_NOT_IN_A_NAME = re.compile(r"[\x00-\x1f\x7f]|\{\{")


@dataclass(frozen=True, slots=True)
class TokenStep:
    """A request whose answer holds the token that the webhook is sent with.

    The token is kept for the endpoint; when the receiver says 401, it is fetched again once.

    :ivar body: JSON to POST; it holds a password
    :ivar pointer: JSON pointer to the token in the answer
    :ivar header: that carries the token
    :ivar value: of that header; ``{}`` stands for the token
    """

    url: str = field(repr=False)
    body: Mapping[str, str] = field(repr=False)
    pointer: str = "/access_token"
    header: str = "Authorization"
    value: str = "Bearer {}"


def _name(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise mistake("must be text or a whole number")
    if not value.strip() or value in (".", "..") or len(value) > _LONGEST_NAME:
        raise mistake("is no name")
    if _NOT_IN_A_NAME.search(value):
        raise mistake("is no template, and has no control characters", "write the name as it is")
    return value


def _number(value: Any) -> int | str:
    if is_sealed_text(value):
        return str(value)
    if isinstance(value, bool) or not _DIGITS.fullmatch(str(value)):
        raise mistake("must be a whole number")
    return int(value)


def _path(value: str) -> str:
    if not _PATH.fullmatch(value) and not is_sealed_text(value):
        raise mistake("is no path", "write e.g. /auth/token")
    return value


Name = Annotated[int | str, BeforeValidator(_name), WithJsonSchema({"type": ["string", "integer"]})]
"""What the receiver calls it; never a template."""

Number = Annotated[int | str, BeforeValidator(_number), WithJsonSchema({"type": ["integer", "string"]})]
"""A number that the receiver gave."""

UrlPath = Annotated[str, AfterValidator(_path)]

Token = Annotated[Secret, AfterValidator(check_header_value)]
"""A secret that is sent in a header."""

Tree = Annotated[Any, AfterValidator(plain_tree)]
"""JSON whose string leaves are templates."""


_HALF_ENTITY = re.compile(r"&[a-z]{0,3}\Z")


class Preset(TriggerModel):
    """Parameters of one preset (``with``); the endpoint's own settings go before what a preset says.

    :cvar kind: its name
    :cvar base: address to call where the endpoint has none
    :cvar accepted: what counts as delivered
    :cvar credential: header of the token, and its value
    :cvar texts: places in the body that have to be text, ``*`` for all below, and the most characters it may have
    :cvar idempotent: where the receiver gets the delivery id to tell a repeat by; empty where it can't
    """

    kind: ClassVar[str] = ""
    base: ClassVar[str] = ""
    accepted: ClassVar[Success] = Success()
    credential: ClassVar[tuple[str, str] | None] = None
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {}
    idempotent: ClassVar[str] = ""

    @property
    def needs_address(self) -> bool:
        """Whether the endpoint has to give url or connection."""
        return not self.base

    def path(self) -> str:
        """What follows the base address."""
        return ""

    def headers(self) -> dict[str, str]:
        """Headers of every call, without credentials."""
        return {}

    def payload(self) -> Any:
        """The body: a tree whose string leaves are templates."""
        raise NotImplementedError

    def body_secrets(self) -> Mapping[str, SecretStr]:
        """What templates find as ``preset.NAME``: the receiver wants it in the body."""
        return {}

    def token_step(self, base: str, login: str, password: str) -> TokenStep | None:
        """How to get a token; None for what needs none.

        :param login: of the connection, as the password; empty for none
        """
        return None

    def escaped(self, text: str) -> str:
        """A text of the commit as templates get it: without what the receiver would take for markup."""
        return text

    def fitted(self, body: Any) -> Any:
        """The body with text where the receiver wants it, cut to what it takes.

        A template that is one expression alone gives a value of its own type, also where only text will do.
        """
        for place, most in self.texts.items():
            body = _fitted(body, place, most)
        return body


class TokenPreset(Preset):
    """A preset whose receiver takes a token; without ``token`` it is the connection's password.

    :ivar token: sent in the header of the receiver's choice
    """

    credential: ClassVar[tuple[str, str] | None] = BEARER
    token: Token | None = None


def segment(name: object) -> str:
    """The name as one segment of a path."""
    return quote(str(name), safe="")


def without_nothing(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are given."""
    return {key: value for key, value in tree.items() if value is not None}


def _fitted(body: Any, place: tuple[str, ...], most: int | None) -> Any:
    if not place:
        return fitted_text(body, most)
    first, rest = place[0], place[1:]
    if isinstance(body, list):
        return [_fitted(each, rest, most) for each in body] if first == "*" else body
    if not isinstance(body, Mapping):
        return body
    return {key: _fitted(each, rest, most) if first in ("*", key) else each for key, each in body.items()}


def fitted_text(value: Any, most: int | None) -> str:
    """The value as text of at most so many characters; what is cut ends in ``…``, and with no half of an entity."""
    if not isinstance(value, str):
        value = "" if value is None else json.dumps(value, ensure_ascii=False)
    if most is None or len(value) <= most:
        return str(value)
    return _HALF_ENTITY.sub("", value[: most - 1]) + "…"
