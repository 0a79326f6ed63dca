"""Which names are those of secrets: of settings, headers, parameters, fields. One answer for the whole package.

Imports nothing of it, so that every room can ask, and travels to a cluster with a refresh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

SECRET_NAMES: Final = (
    r"secret|token|passw|passphrase|pwd|credential|authorization|bearer|signature|cookie"
    r"|(?:api|access|account|private)[._-]?key|keyfile|connection[._-]?string"
    r"|(?<![a-z])(?:sas|dsn)(?![a-z])"
)
"""A part of a secret's name, as a regular expression that Java understands as well; case does not count."""
MASK: Final = "***"
_SECRET: Final = re.compile(SECRET_NAMES, re.IGNORECASE)
_ABOUT: Final = re.compile(r"(?:url|uri|endpoint|path|file|field|header|param|parameter|name|type)s?$", re.IGNORECASE)
"""``token_url`` says where a token comes from, and is none."""
_SHORTEST: Final = 4
_PASSWORD: Final = re.compile(r"(^|//)([^\s@/?#:]*):(?!//)\S*@")
_USER: Final = re.compile(r"//[^\s@/?#:]+@")
_ARGUMENT: Final = re.compile(r"([?&;]([^\s=&;#]+)=)[^\s&;#]+")


def is_secret(name: str) -> bool:
    """Whether something of this name is kept out of everything that is shown."""
    return _SECRET.search(name) is not None and _ABOUT.search(name) is None


def secrets_in(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The values of a catalog's properties that are secret: by their names, and passwords in addresses.

    Values of less than four characters are left out: to replace them would spoil any text.
    """
    found = {value for name, value in properties.items() if is_secret(name)}
    for value in properties.values():
        password = urlsplit(value).password if "://" in value else None
        found |= {password, unquote(password)} if password else set()
    return tuple(sorted(each for each in found if len(each) >= _SHORTEST))


def without_credentials(text: str) -> str:
    """An address, or text with addresses in it, as it may be shown."""
    text = _USER.sub(f"//{MASK}@", _PASSWORD.sub(rf"\1\2:{MASK}@", text))
    return _ARGUMENT.sub(lambda found: f"{found[1]}{MASK}" if is_secret(found[2]) else found[0], text)
