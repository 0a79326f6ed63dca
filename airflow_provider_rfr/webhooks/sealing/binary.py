"""Opens documents by the ``sops`` program, for the key sources that are not age (KMS, PGP, Vault, ...).

The document goes in on standard input. The program sees of our environment only what its key sources need, and
nothing that it says on its error stream is ever repeated: it may hold what it opened.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.pointers import shown
from airflow_provider_rfr.webhooks.sealing.sources import Source

SECONDS = 60
_LARGEST_ANSWER = 16 * 2**20
_ARGUMENTS = ("--decrypt", "--input-type", "json", "--output-type", "json", "/dev/stdin")
_ALWAYS = frozenset(
    {"PATH", "HOME", "XDG_CONFIG_HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {name for each in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") for name in (each, each.lower())}
)
_PREFIXES = {
    "age": ("SOPS_AGE_",),
    "pgp": ("GNUPGHOME", "GPG_", "SOPS_GPG_"),
    "kms": ("AWS_",),
    "gcp_kms": ("GOOGLE_", "CLOUDSDK_"),
    "azure_kv": ("AZURE_", "IDENTITY_", "MSI_"),
    "hc_vault": ("VAULT_",),
}
# The program's own list of exit statuses.
_MEANINGS = {
    24: "the document's code (mac) can't be opened",
    25: "a value can't be opened: it was changed or moved",
    51: "the document's code (mac) does not match: it was changed after sealing",
    52: "the document has no code (mac)",
    128: "none of its key sources gave the data key",
}


def program(environment: Mapping[str, str]) -> str | None:
    """The absolute path of ``sops``; one that a relative entry of PATH leads to does not count."""
    found = shutil.which("sops", path=environment.get("PATH", ""))
    return found if found and os.path.isabs(found) else None


def open_with_program(
    path: str, document: Mapping[str, Any], sources: Iterable[Source], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The opened document, its code checked by the program, without ``sops``.

    :param path: of the program
    :raises SealError: it refuses, fails, takes longer than a minute, or a source would lead it astray
    """
    sources = tuple(sources)
    for source in sources:
        _check_vault(source, environment)
    answer = _run(path, json.dumps(document).encode(), limited(environment, {source.kind for source in sources}))
    try:
        opened = json.loads(answer)
    except (ValueError, RecursionError):
        opened = None  # raised below, so that no context hangs on the error
    if not isinstance(opened, dict):
        raise SealError("the sops program answered with something else than a JSON object")
    return {key: value for key, value in opened.items() if key != "sops"}


def limited(environment: Mapping[str, str], kinds: Iterable[str]) -> dict[str, str]:
    """What of the environment these kinds of key sources need."""
    prefixes = tuple(prefix for kind in kinds for prefix in _PREFIXES[kind])
    return {name: value for name, value in environment.items() if name in _ALWAYS or name.startswith(prefixes)}


def _check_vault(source: Source, environment: Mapping[str, str]) -> None:
    """Whoever edits the document could else have this machine's Vault token sent to a server of theirs."""
    if source.kind != "hc_vault":
        return
    asked = str(source.entry.get("vault_address", "")).rstrip("/")
    if asked != environment.get("VAULT_ADDR", "").rstrip("/"):
        raise SealError(
            f"the document asks for the Vault at {shown(asked)}, which is not VAULT_ADDR of this machine;"
            " set VAULT_ADDR to it if that Vault may get this machine's token"
        )


def _run(path: str, document: bytes, environment: Mapping[str, str]) -> bytes:
    status: int | None = None
    answer = b""
    try:
        done = subprocess.run(
            [path, *_ARGUMENTS], input=document, capture_output=True, timeout=SECONDS, env=environment, check=False
        )
        status, answer = done.returncode, done.stdout
    except (OSError, subprocess.SubprocessError):
        pass  # raised below: the error of a timeout holds what was printed
    if status is None:
        raise SealError(f"the sops program could not be run, or took longer than {SECONDS} seconds")
    if status != 0:
        meaning = _MEANINGS.get(status, "it says why when you run sops decrypt by hand as the same user")
        raise SealError(f"the sops program ended with status {status}: {meaning}")
    if len(answer) > _LARGEST_ANSWER:
        raise SealError("the sops program answered with more than a document has")
    return answer
