"""One sealed value: its text ``ENC[AES256_GCM,...]``, its type, and the path that it is bound to.

AES-256-GCM with a nonce of 32 random bytes. The associated data are the map keys on the way to the value, each
followed by a colon; places in lists do not count. The type stands outside of what is authenticated: that is
SOPS, so whoever opens a document has to check that text is text.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.extra import extra

Scalar = str | int | float | bool

KEY_BYTES = 32
LARGEST_INTEGER = 2**63 - 1
_EXACT_FLOAT = 2**53
_NONCE_BYTES = 32
_TAG_BYTES = 16
_BASE64 = "[A-Za-z0-9+/]*={0,2}"
_SEALED = re.compile(
    rf"ENC\[AES256_GCM,data:(?P<data>{_BASE64}),iv:(?P<iv>{_BASE64}),tag:(?P<tag>{_BASE64}),type:(?P<kind>[a-z0-9]+)\]"
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_BOOLEANS = {"True": True, "true": True, "False": False, "false": False}


def is_sealed(value: object) -> bool:
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def looks_sealed(value: object) -> bool:
    """Whether it is, or was once, a sealed value."""
    return isinstance(value, str) and value.lstrip().startswith("ENC[")


def associated_data(keys: Sequence[str]) -> bytes:
    return "".join(f"{key}:" for key in keys).encode()


def text_of(value: Scalar) -> str:
    """The text that is encrypted, and that counts for the document's code."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        digits = format(Decimal(repr(value)), "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return str(value)


def encrypt(value: Scalar, key: bytes, data: bytes) -> str:
    """:param data: associated data"""
    nonce = os.urandom(_NONCE_BYTES)
    sealed = _cipher(key).encrypt(nonce, text_of(value).encode(), data)
    body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    text = [base64.b64encode(each).decode() for each in (body, nonce, tag)]
    return f"ENC[AES256_GCM,data:{text[0]},iv:{text[1]},tag:{text[2]},type:{_kind(value)}]"


def decrypt(sealed: str, key: bytes, data: bytes) -> Scalar | None:
    """The value, or None: not a sealed value, of another key or path, changed, or not of its type.

    Which of them is never told apart, and no exception is left behind whose context might hold plaintext.
    """
    found = _SEALED.fullmatch(sealed)
    parts = [_decoded(found[name]) for name in ("data", "iv", "tag")] if found else [None]
    if found is None or None in parts:
        return None
    body, nonce, tag = (part or b"" for part in parts)
    if len(tag) != _TAG_BYTES or not 12 <= len(nonce) <= 2 * _NONCE_BYTES:
        return None
    plain = _plain(_cipher(key), nonce, body + tag, data)
    return None if plain is None else _typed(plain, found["kind"])


def _kind(value: Scalar) -> str:
    return {bool: "bool", int: "int", float: "float"}.get(type(value), "str")


def _cipher(key: bytes) -> Any:
    return extra("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _plain(cipher: Any, nonce: bytes, sealed: bytes, data: bytes) -> str | None:
    try:
        return str(cipher.decrypt(nonce, sealed, data), "utf-8")
    except (extra("cryptography.exceptions").InvalidTag, UnicodeDecodeError):
        return None


def _typed(text: str, kind: str) -> Scalar | None:
    """Comments and bytes are refused: neither is JSON, and SOPS leaves comments out of the document's code."""
    if kind == "str":
        return text
    if kind == "bool":
        return _BOOLEANS.get(text)
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text) if abs(int(text)) <= LARGEST_INTEGER + 1 else None
    if kind == "float" and _FLOAT.fullmatch(text):
        return _number(float(text))
    return None


def _number(value: float) -> int | float | None:
    """Whole numbers are integers again, as in what the sops binary prints (it seals those of JSON as floats)."""
    if math.isinf(value):
        return None
    minus_zero = value == 0 and math.copysign(1, value) < 0
    return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT and not minus_zero else value


def open_or_refuse(sealed: str, key: bytes, data: bytes, place: str) -> Scalar:
    """:raises SealError: see :func:`decrypt`"""
    value = decrypt(sealed, key, data)
    if value is None:
        raise SealError(
            f"{place}: this sealed value is not the one that was sealed here; it was changed, cut, or moved"
            " from another place: restore it, or seal the document again"
        )
    return value
