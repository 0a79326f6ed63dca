"""Two keys, so that the other side always knows one of ours: rotating promotes the second and makes a new one.

The new public key has to be put beside the others there before the next rotation.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from airflow_provider_rfr.connections.definition import Definition

CURRENT, NEXT, PUBLIC = "extra.private_key", "extra.next_private_key", "extra.public_keys"
FILE = "extra.key_file"


def rotated(stored: Definition) -> tuple[Definition, str]:
    """The connection with the next key in use and a new one behind it, and the new public key.

    A connection that has one key only keeps it and gets its second one.
    """
    private, public = _new_pair(stored.name)
    following = stored.get(NEXT)
    known = str(stored.get(PUBLIC) or "").splitlines()
    made = stored.having(CURRENT, following).having(FILE, None) if following else stored
    if not (made.get(CURRENT) or made.get(FILE)):
        return made.having(CURRENT, private).having(PUBLIC, public), public
    kept = known[-1:] if following else known
    return made.having(NEXT, private).having(PUBLIC, "\n".join([*kept, public])), public


def _new_pair(comment: str) -> tuple[str, str]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return private, f"{public} airflow-{comment}"
