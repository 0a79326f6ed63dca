"""Which settings are secret by their name, and what of an address is."""

from __future__ import annotations

import re
from typing import Final

_SECRET_NAME: Final = re.compile(
    r"secret|token|passw|passphrase|api_?key|access_?key$|private|credential|authorization|bearer|signature|cookie",
    re.IGNORECASE,
)
_WHOLE_SECRET: Final = re.compile(r"keyfile_dict|connection_string|account_key|dsn|pwd", re.IGNORECASE)
MASK: Final = "***"
_PASSWORD: Final = re.compile(r"(^|//)([^\s@/?#:]*):(?!//)\S*@")
_USER: Final = re.compile(r"//[^\s@/?#:]+@")
_ARGUMENT: Final = re.compile(r"([?&;]([^\s=&;#]+)=)[^\s&;#]+")


def is_secret(name: str) -> bool:
    """Whether a setting of this name is kept out of everything that is shown."""
    return _SECRET_NAME.search(name.replace("-", "_")) is not None


def may_hold_secret(name: str) -> bool:
    """The same, and fields of other providers that have a secret within."""
    return is_secret(name) or _WHOLE_SECRET.search(name.replace("-", "_")) is not None


def without_credentials(text: str) -> str:
    """An address, or text with addresses in it, as it may be shown."""
    text = _USER.sub(f"//{MASK}@", _PASSWORD.sub(rf"\1\2:{MASK}@", text))
    return _ARGUMENT.sub(lambda found: f"{found[1]}{MASK}" if is_secret(found[2]) else found[0], text)
