"""Age: makes out the keys of this machine, and seals and opens a document's data key with them.

The text of a key is in no message and no repr; ``str()`` of pyrage's identities is the secret key itself, so
identities stay inside of this module.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.extra import extra
from airflow_provider_rfr.webhooks.sealing.pointers import shown
from airflow_provider_rfr.webhooks.sealing.values import KEY_BYTES

_LARGEST_KEY_FILE = 2**20
# Measured: pyrage takes a second for a header of 10,000 characters, and four times that for each doubling.
LONGEST_ENVELOPE = 3000
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
    texts = [text for text in envelopes if isinstance(text, str) and len(text) <= LONGEST_ENVELOPE]
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
