"""Values that must not be shown, and values that are sealed until delivery."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, SecretStr, WithJsonSchema

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake

SIGNING_PREFIX = "whsec_"
SIGNING_BYTES = (24, 64)
SECRET_SCHEMA: dict[str, Any] = {"type": "string", "secret": True}
_SEALED = re.compile(r"ENC\[AES256_GCM,[^\]]*\]")


def is_sealed_text(value: object) -> bool:
    """Whether it is one value of a SOPS document, not yet opened."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def holds_sealed_text(value: object) -> bool:
    """Whether a sealed value stands anywhere in it."""
    if isinstance(value, Mapping):
        return any(map(holds_sealed_text, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_sealed_text, value))
    return is_sealed_text(value)


def signing_key(secret: SecretStr) -> bytes:
    """The key in ``whsec_`` and base64.

    :raises ValueError: it is of another form
    """
    text = secret.get_secret_value()
    if not text.startswith(SIGNING_PREFIX):
        raise ValueError("no signing secret")
    # binascii's message would show where the text stops to be base64.
    try:
        key = base64.b64decode(text.removeprefix(SIGNING_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("no signing secret") from None
    if not SIGNING_BYTES[0] <= len(key) <= SIGNING_BYTES[1]:
        raise ValueError("no signing secret")
    return key


def _text_only(value: Any) -> Any:
    if not isinstance(value, (str, SecretStr)):
        raise mistake("must be text; if it is text to you, put it in quotes")
    return value


def _not_empty(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise mistake("is empty")
    return secret


def _signs(secret: SecretStr) -> SecretStr:
    if not is_sealed_text(secret):
        try:
            signing_key(secret)
        except ValueError:
            low, high = SIGNING_BYTES
            raise mistake(
                "is no signing secret", f"write {SIGNING_PREFIX} and the base64 of {low} to {high} random bytes"
            ) from None
    return secret


Text = Annotated[SecretStr, BeforeValidator(_text_only), WithJsonSchema(SECRET_SCHEMA)]
"""A secret that may be empty."""

Secret = Annotated[SecretStr, BeforeValidator(_text_only), AfterValidator(_not_empty), WithJsonSchema(SECRET_SCHEMA)]

SigningSecret = Annotated[SecretStr, BeforeValidator(_text_only), AfterValidator(_signs), WithJsonSchema(SECRET_SCHEMA)]
