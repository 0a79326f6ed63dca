"""Keys of sealed documents: age identities of this machine, and other key sources through the ``sops`` program.

The text of a key is in no message and no repr; ``str()`` of pyrage's identities is the secret key itself, so identities
stay inside this module. The ``sops`` program gets the document on standard input and only the environment that its key
sources need; what it prints on stderr is never repeated.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.sops import KEY_BYTES, extra, shown

_LARGEST_KEY_FILE = 2**20
# Measured: pyrage takes a second for a header of 10,000 characters, and four times that for each doubling.
_LONGEST_ENVELOPE = 3000
_COMMAND_SECONDS = 30


@dataclass(frozen=True)
class Keys:
    """What one place holds.

    :ivar place: where was looked
    :ivar found: what was found there, as messages may say it
    """

    place: str
    found: str
    identities: Sequence[Any] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.place}: {self.found}"


def envelope(data_key: bytes, recipient: str) -> str:
    """The data key for one recipient, as armored text.

    :raises SealError: no recipient that age knows
    """
    pyrage = extra("pyrage")
    return str(pyrage.encrypt(data_key, [_recipient(recipient)], armored=True), "ascii")


def check_recipients(recipients: Sequence[str]) -> tuple[str, ...]:
    """The recipients, each once.

    :raises SealError: there is none, or one is no public key; what it is instead, perhaps a secret key, isn't told
    """
    if isinstance(recipients, str) or not isinstance(recipients, Sequence):
        raise SealError("recipients must be a list of age public keys, not one text")
    each_once = tuple(dict.fromkeys(str(recipient).strip() for recipient in recipients))
    if not each_once:
        raise SealError("a document is sealed for at least one recipient: give an age public key (age1...)")
    for number, recipient in enumerate(each_once, start=1):
        if _recipient(recipient) is None:
            raise SealError(
                f"recipient {number} is not a public key that age knows: write age1... (age-keygen -y prints it)"
                " or an SSH public key (ssh-ed25519 or ssh-rsa)"
            )
    return each_once


def data_key(entries: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> tuple[bytes | None, list[Keys]]:
    """The data key, or None; and the places that were looked at, as far as it was needed.

    :param entries: of the metadata's list ``age``
    """
    envelopes = [entry.get("enc") for entry in entries]
    texts = [text for text in envelopes if isinstance(text, str) and len(text) <= _LONGEST_ENVELOPE]
    looked = []
    for keys in _places(environment):
        looked.append(keys)
        for text in texts if keys.identities else ():
            opened = _opened(text, keys.identities)
            if opened is not None:
                return opened, looked
    return None, looked


def _recipient(text: str) -> Any:
    pyrage = extra("pyrage")
    read = pyrage.ssh.Recipient.from_str if text.startswith("ssh-") else pyrage.x25519.Recipient.from_str
    try:
        return read(text)
    except (pyrage.RecipientError, ValueError):
        return None


def _opened(text: str, identities: Sequence[Any]) -> bytes | None:
    pyrage = extra("pyrage")
    try:
        opened = bytes(pyrage.decrypt(text.strip().encode(), list(identities)))
    except (pyrage.DecryptError, ValueError):
        return None
    return opened if len(opened) == KEY_BYTES else None


def _places(environment: Mapping[str, str]) -> Iterator[Keys]:
    """In the order of what they cost; each is read when those before did not help."""
    yield _given("SOPS_AGE_KEY", environment, lambda text: _parsed("SOPS_AGE_KEY", text))
    yield _given("SOPS_AGE_KEY_FILE", environment, lambda path: _file(f"SOPS_AGE_KEY_FILE {shown(path)}", Path(path)))
    yield _default(environment)
    yield _given("SOPS_AGE_SSH_PRIVATE_KEY_FILE", environment, _ssh)
    yield _given("SOPS_AGE_KEY_CMD", environment, lambda command: _command(command, environment))


def _given(name: str, environment: Mapping[str, str], read: Callable[[str], Keys]) -> Keys:
    value = environment.get(name)
    return read(value) if value else Keys(name, "not set")


def _default(environment: Mapping[str, str]) -> Keys:
    home = environment.get("HOME")
    folder = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    if folder is None:
        return Keys("~/.config/sops/age/keys.txt", "HOME is not set")
    path = Path(folder, "sops", "age", "keys.txt")
    return _file(shown(path), path)


def _file(place: str, path: Path) -> Keys:
    content = _content(path)
    return content if isinstance(content, Keys) else _parsed(place, content.decode("utf-8", errors="replace"))


def _ssh(path: str) -> Keys:
    place = f"SOPS_AGE_SSH_PRIVATE_KEY_FILE {shown(path)}"
    content = _content(Path(path))
    if isinstance(content, Keys):
        return Keys(place, content.found)
    pyrage = extra("pyrage")
    try:
        return Keys(place, "an SSH key", (pyrage.ssh.Identity.from_buffer(content),))
    except (pyrage.IdentityError, ValueError):
        return Keys(place, "no SSH private key, or one with a passphrase")


def _content(path: Path) -> bytes | Keys:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_KEY_FILE + 1)
    except (OSError, ValueError) as error:
        return Keys(shown(path), f"can't be read ({getattr(error, 'strerror', None) or 'no path'})")
    return Keys(shown(path), "larger than a key file is") if len(content) > _LARGEST_KEY_FILE else content


def _command(command: str, environment: Mapping[str, str]) -> Keys:
    """The command is the operator's, as the environment is; it is run without a shell, and never shown."""
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            env=dict(environment),
            check=False,
        )
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return Keys("SOPS_AGE_KEY_CMD", "the command could not be run, or took too long")
    if done.returncode != 0:
        return Keys("SOPS_AGE_KEY_CMD", f"the command ended with {done.returncode}")
    return _parsed("SOPS_AGE_KEY_CMD", done.stdout.decode("utf-8", errors="replace"))


def _parsed(place: str, text: str) -> Keys:
    """The identities of a key file: one a line, comments begin with ``#``."""
    pyrage = extra("pyrage")
    identities, public, wrong = [], [], []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            identity = pyrage.x25519.Identity.from_str(line)
        except (pyrage.IdentityError, ValueError):
            wrong.append(str(number))
            continue
        identities.append(identity)
        public.append(str(identity.to_public()))
    found = f"{len(identities)} key(s) {', '.join(public[:10])}".strip() if identities else "no key"
    lines = f"; not read as a key: line {', '.join(wrong[:10])}" if wrong else ""
    return Keys(place, found + lines, tuple(identities))


# The fields that name a key of each kind, by the order in which messages list them.
_NAMES: dict[str, tuple[str, ...]] = {
    "age": ("recipient",),
    "pgp": ("fp",),
    "kms": ("arn",),
    "gcp_kms": ("resource_id",),
    "azure_kv": ("vault_url", "name"),
    "hc_vault": ("vault_address", "engine_path", "key_name"),
}
_MOST_SOURCES = 50


@dataclass(frozen=True)
class Source:
    """One key that opens the document.

    :ivar kind: the list of the metadata that it stands in
    :ivar entry: the metadata's entry; nothing in it is secret
    """

    kind: str
    entry: Mapping[str, Any]

    @property
    def is_plain_age(self) -> bool:
        """Whether age itself reads it; names with another ``1`` in them are of plugins."""
        recipient = str(self.entry.get("recipient", ""))
        return self.kind == "age" and (recipient.startswith("ssh-") or recipient.count("1") < 2)

    def __str__(self) -> str:
        parts = [shown(self.entry[field]) for field in _NAMES[self.kind] if self.entry.get(field)]
        return f"{self.kind} {' '.join(parts) or '(no name)'}"


@dataclass(frozen=True)
class Sources:
    """All of them.

    :ivar shared: the key is split over groups of sources (``key_groups``), several of which are needed
    """

    all: tuple[Source, ...]
    shared: bool

    def of(self, *kinds: str) -> tuple[Source, ...]:
        return tuple(source for source in self.all if source.kind in kinds)

    @property
    def foreign(self) -> tuple[Source, ...]:
        """Those that only the sops binary knows."""
        return self.all if self.shared else tuple(source for source in self.all if not source.is_plain_age)

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))


def sources_of(metadata: Mapping[str, Any]) -> Sources:
    """:raises SealError: there is none, or the lists are malformed"""
    groups = _list(metadata, "key_groups")
    alone = tuple(_sources(metadata))
    found = alone or tuple(source for group in groups for source in _sources(group))
    if not found:
        raise SealError(f"the document names no key source ({', '.join(_NAMES)}), so nothing can open it")
    if len(found) > _MOST_SOURCES:
        raise SealError(f"the document names more than {_MOST_SOURCES} key sources")
    return Sources(found, shared=not alone)


def _sources(group: Mapping[str, Any]) -> Iterator[Source]:
    return (Source(kind, entry) for kind in _NAMES for entry in _list(group, kind))


def _list(group: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = group.get(name) or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SealError(f"sops.{name} is not a list of maps")
    return entries


_SECONDS = 60
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
    answer = _run(path, json.dumps(document).encode(), _limited(environment, {source.kind for source in sources}))
    try:
        opened = json.loads(answer)
    except (ValueError, RecursionError):
        opened = None  # raised below, so that no context hangs on the error
    if not isinstance(opened, dict):
        raise SealError("the sops program answered with something else than a JSON object")
    return {key: value for key, value in opened.items() if key != "sops"}


def _limited(environment: Mapping[str, str], kinds: Iterable[str]) -> dict[str, str]:
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
            [path, *_ARGUMENTS], input=document, capture_output=True, timeout=_SECONDS, env=environment, check=False
        )
        status, answer = done.returncode, done.stdout
    except (OSError, subprocess.SubprocessError):
        pass  # raised below: the error of a timeout holds what was printed
    if status is None:
        raise SealError(f"the sops program could not be run, or took longer than {_SECONDS} seconds")
    if status != 0:
        meaning = _MEANINGS.get(status, "it says why when you run sops decrypt by hand as the same user")
        raise SealError(f"the sops program ended with status {status}: {meaning}")
    if len(answer) > _LARGEST_ANSWER:
        raise SealError("the sops program answered with more than a document has")
    return answer
