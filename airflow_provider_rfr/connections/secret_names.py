"""Which settings are secret by their name."""

from __future__ import annotations

import re
from typing import Final

_SECRET_NAME: Final = re.compile(
    r"secret|token|passw|passphrase|api_?key|access_?key$|private|credential|authorization|bearer|signature|cookie",
    re.IGNORECASE,
)
MASK: Final = "***"


def is_secret(name: str) -> bool:
    """Whether a setting of this name is kept out of everything that is shown."""
    return _SECRET_NAME.search(name.replace("-", "_")) is not None
