"""The SOPS format: sealed values, the rule that selects them, the MAC over a document, and its keys.

A value is ``ENC[AES256_GCM,...]`` with a nonce of 32 random bytes. The associated data are the map keys on the way to
it, each followed by a colon; list indexes do not count. Neither its type nor the metadata are authenticated: the
opener has to check that text is text, and a regular expression in the metadata is never run as one.

The MAC is SHA-512 over the texts of the leaves in document order without separators. So it protects sealed leaves, each
of which is bound to its path. Between plaintext leaves, text can be moved without a change of the MAC.

Keys are age identities of this machine, and other key sources through the ``sops`` program. The text of a key is in no
message and no repr; ``str()`` of pyrage's identities is the secret key itself, so identities stay inside this module.
The program gets the document on standard input and only the environment that its key sources need; what it prints on
stderr is never repeated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.text import cut, printable

KEY_BYTES = 32
Place = tuple[str | int, ...]
_Scalar = str | int | float | bool

_MAX_SHOWN = 120


def short_name(text: object) -> str:
    """Return a key or name for a message: printable, one line, short. Never used for values."""
    return cut(printable(str(text)), _MAX_SHOWN)


def pointer(place: Sequence[str | int]) -> str:
    """Return the JSON pointer (RFC 6901); empty for the document itself."""
    return "".join(f"/{short_name(str(part).replace('~', '~0').replace('/', '~1'))}" for part in place)


def extra(module: str) -> ModuleType:
    """Import a module of pyrage or cryptography, which are optional.

    :raises SealError: it is not installed
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        pass  # raised below, so that the error has no context
    package = module.partition(".")[0]
    raise SealError(f"sealed documents need {package}, which is not installed: pip install airflow-provider-rfr[sops]")


# The rule.

_RULES = ("unencrypted_suffix", "encrypted_suffix", "unencrypted_regex", "encrypted_regex")
_COMMENT_RULES = ("unencrypted_comment_regex", "encrypted_comment_regex")
_WORD = r"(?:[A-Za-z0-9_-]|\\[.\-_])+"
_WORDS = re.compile(rf"(\^?)(?:\(({_WORD}(?:\|{_WORD})*)\)|({_WORD}))(\$?)", re.ASCII)
_MAX_RULE = 2000


@dataclass(frozen=True)
class SealingRule:
    """A rule that decides which leaves are sealed, and which the MAC covers.

    :ivar matches: tells whether the rule names a map key
    :ivar seals: True: leaves below such keys are sealed; False: all other leaves are
    :ivar mac_only: whether the MAC covers sealed values only
    """

    matches: Callable[[str], bool]
    seals: bool
    mac_only: bool

    def selects(self, keys: Sequence[str]) -> bool:
        return any(map(self.matches, keys)) == self.seals


def names_regex(*names: str) -> str:
    """Return the regular expression that matches exactly these names, here and in the sops program."""
    return f"^({'|'.join(names)})$"


def rule_of(metadata: Mapping[str, Any]) -> SealingRule:
    """Return the rule that decides which values of the document are sealed.

    :raises SealError: the rule is wrong, or only the sops program understands it
    """
    for name in (*_RULES, *_COMMENT_RULES):
        if not isinstance(metadata.get(name) or "", str):
            raise SealError(f"sops.{name} must be text")
    mac_only = metadata.get("mac_only_encrypted") or False
    if not isinstance(mac_only, bool):
        raise SealError("sops.mac_only_encrypted must be a boolean")
    rules = {name: metadata[name] for name in _RULES if metadata.get(name)}
    if any(metadata.get(name) for name in _COMMENT_RULES) or len(rules) > 1:
        raise SealError(f"the document's sealing rule is not supported; only one of {', '.join(_RULES)} is allowed")
    name, text = next(iter(rules.items()), ("unencrypted_suffix", "_unencrypted"))
    names: tuple[str, ...] = (text,)
    at_start, at_end = False, True
    if name.endswith("_regex"):
        words = _WORDS.fullmatch(text) if len(text) <= _MAX_RULE else None
        if words is None:
            raise SealError(f"sops.{name} is not supported; it must be a list of names as in ^(url|headers)$")
        at_start, at_end = bool(words[1]), bool(words[4])
        names = tuple(part.replace("\\", "") for part in (words[2] or words[3]).split("|"))

    def matches(key: str) -> bool:
        if at_start and at_end:
            return key in names
        if at_start or at_end:
            return key.startswith(names) if at_start else key.endswith(names)
        return any(name in key for name in names)

    return SealingRule(matches, name.startswith("encrypted"), mac_only)


# Values.

MAX_INTEGER = 2**63 - 1
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
    """Tell whether a value is sealed, or was before it was damaged."""
    return isinstance(value, str) and value.lstrip().startswith("ENC[")


def _text_of(value: _Scalar) -> str:
    """Return the text that is encrypted and hashed."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        digits = format(Decimal(repr(value)), "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return str(value)


def encrypt(value: _Scalar, key: bytes, data: bytes) -> str:
    """Return the sealed value.

    :param data: associated data
    """
    nonce = os.urandom(_NONCE_BYTES)
    cipher = extra("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)
    sealed = cipher.encrypt(nonce, _text_of(value).encode(), data)
    parts = (sealed[:-_TAG_BYTES], nonce, sealed[-_TAG_BYTES:])
    body, iv, tag = (base64.b64encode(part).decode() for part in parts)
    kind = {bool: "bool", int: "int", float: "float"}.get(type(value), "str")
    return f"ENC[AES256_GCM,data:{body},iv:{iv},tag:{tag},type:{kind}]"


def decrypt(sealed: str, key: bytes, data: bytes) -> _Scalar | None:
    """Open a sealed value.

    Return None if it is not a sealed value, is for another key or path, was changed, or is not of its type. Callers
    can't distinguish these cases, and no exception is left whose context might hold plaintext.
    """
    match = _SEALED.fullmatch(sealed)
    if match is None:
        return None
    try:
        body, nonce, tag = (base64.b64decode(match[name], validate=True) for name in ("data", "iv", "tag"))
    except binascii.Error:
        return None
    if len(tag) != _TAG_BYTES or not 12 <= len(nonce) <= 2 * _NONCE_BYTES:
        return None
    cipher = extra("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)
    try:
        plain = str(cipher.decrypt(nonce, body + tag, data), "utf-8")
    except (extra("cryptography.exceptions").InvalidTag, UnicodeDecodeError):
        return None
    kind = match["kind"]
    if kind == "str":
        return plain
    if kind == "bool":
        return _BOOLEANS.get(plain)
    if kind == "int" and _INTEGER.fullmatch(plain):
        return int(plain) if abs(int(plain)) <= MAX_INTEGER + 1 else None
    # Comments and bytes are refused: neither is JSON, and no MAC covers comments.
    if kind != "float" or not _FLOAT.fullmatch(plain) or math.isinf(float(plain)):
        return None
    value = float(plain)
    # The sops program seals JSON's integers as floats, and prints whole floats as integers.
    minus_zero = value == 0 and math.copysign(1, value) < 0
    return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT and not minus_zero else value


def location(place: Place) -> str:
    return pointer(place) or "the document"


# Gets a selected leaf, its associated data and its place; returns the new leaf and the plaintext.
_Convert = Callable[[Any, bytes, Place], tuple[Any, _Scalar]]


def seal_tree(tree: dict[str, Any], key: bytes, rule: SealingRule) -> tuple[dict[str, Any], str]:
    """Return the tree with its leaves sealed, and its MAC."""
    return _converted(tree, rule, lambda value, data, _: (encrypt(value, key, data), value))


def open_tree(tree: dict[str, Any], key: bytes, rule: SealingRule) -> tuple[dict[str, Any], str]:
    """Return the tree with its leaves opened, and its MAC.

    :raises SealError: a leaf was changed, moved, or is plaintext
    """

    def opened(value: Any, data: bytes, place: Place) -> tuple[Any, _Scalar]:
        if not looks_sealed(value):
            raise SealError(f"{location(place)}: plaintext where a sealed value is due")
        plain = decrypt(value, key, data)
        if plain is None:
            raise SealError(
                f"{location(place)}: this sealed value is not the one that was sealed here; it was changed, cut, or"
                " moved from another place: restore it, or seal the document again"
            )
        return plain, plain

    return _converted(tree, rule, opened)


def _converted(tree: dict[str, Any], rule: SealingRule, convert: _Convert) -> tuple[dict[str, Any], str]:
    # With mac_only_encrypted, the sops program starts the hash with SHA-256 of the word "sops".
    mac = hashlib.sha512(hashlib.sha256(b"sops").digest() if rule.mac_only else b"")

    def walked(node: Any, keys: tuple[str, ...], place: Place) -> Any:
        if isinstance(node, dict):
            return {key: walked(value, (*keys, key), (*place, key)) for key, value in node.items()}
        if isinstance(node, list):
            return [walked(value, keys, (*place, index)) for index, value in enumerate(node)]
        selected = rule.selects(keys)
        new = plain = node
        if selected and node not in (None, ""):  # SOPS seals no empty values
            new, plain = convert(node, "".join(f"{key}:" for key in keys).encode(), place)
        if plain is not None and (selected or not rule.mac_only):
            mac.update(_text_of(plain).encode())
        return new

    return walked(tree, (), ()), mac.hexdigest().upper()


# Key sources.

# The fields that name a key of each kind, in the order in which messages list them.
_NAME_FIELDS: dict[str, tuple[str, ...]] = {
    "age": ("recipient",),
    "pgp": ("fp",),
    "kms": ("arn",),
    "gcp_kms": ("resource_id",),
    "azure_kv": ("vault_url", "name"),
    "hc_vault": ("vault_address", "engine_path", "key_name"),
}
_MAX_SOURCES = 50


@dataclass(frozen=True)
class KeySource:
    """A key that opens the document: an entry of one of the metadata's lists; nothing in it is secret."""

    kind: str
    entry: Mapping[str, Any]

    @property
    def recipient(self) -> str:
        return str(self.entry.get("recipient", ""))

    @property
    def is_plain_age(self) -> bool:
        """Tell whether age itself reads the recipient; recipients with another ``1`` in them are for plugins."""
        return self.kind == "age" and (self.recipient.startswith("ssh-") or self.recipient.count("1") < 2)

    def __str__(self) -> str:
        parts = [short_name(self.entry[field]) for field in _NAME_FIELDS[self.kind] if self.entry.get(field)]
        return f"{self.kind} {' '.join(parts) or '(no name)'}"


@dataclass(frozen=True)
class KeySources:
    """The key sources of a document.

    :ivar shared: the key is split over groups of sources (``key_groups``), several of which are needed
    """

    all: tuple[KeySource, ...]
    shared: bool

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> KeySources:
        """Return the key sources that the metadata lists.

        :raises SealError: there is none, or the lists are malformed
        """

        def entries(group: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
            listed = group.get(name) or []
            if not isinstance(listed, list) or not all(isinstance(entry, Mapping) for entry in listed):
                raise SealError(f"sops.{name} must be a list of mappings")
            return listed

        def sources(group: Mapping[str, Any]) -> tuple[KeySource, ...]:
            return tuple(KeySource(kind, entry) for kind in _NAME_FIELDS for entry in entries(group, kind))

        groups = entries(metadata, "key_groups")
        alone = sources(metadata)
        all_sources = alone or tuple(source for group in groups for source in sources(group))
        if not all_sources:
            raise SealError(f"the document has no key source ({', '.join(_NAME_FIELDS)}), so nothing can open it")
        if len(all_sources) > _MAX_SOURCES:
            raise SealError(f"the document has more than {_MAX_SOURCES} key sources")
        return cls(all_sources, shared=not alone)

    @property
    def foreign(self) -> tuple[KeySource, ...]:
        """Return the key sources that only the sops program can open."""
        return self.all if self.shared else tuple(source for source in self.all if not source.is_plain_age)

    def unopened(self, searched: Sequence[Keys]) -> str:
        """Return the error message that explains why no key source opened the document."""
        lines = [f"no key of this machine opens the document. It was sealed for: {self}."]
        if searched:
            lines.append(f"Looked for age keys in: {'; '.join(map(str, searched))}.")
        if self.foreign:
            kinds = ", ".join(sorted({source.kind for source in self.foreign}))
            groups = " and for keys shared between groups" if self.shared else ""
            lines.append(f"For {kinds}{groups} the sops program (3.9 or newer) is needed; there is none in PATH.")
        return " ".join(lines)

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))


# Keys of age.

_MAX_KEY_FILE = 2**20
# pyrage's time is quadratic in the length of the header: a second for 10,000 characters.
_MAX_ENVELOPE = 3000
_COMMAND_SECONDS = 30


@dataclass(frozen=True)
class Keys:
    """The keys at one place; ``summary``: a description of them, for messages."""

    place: str
    summary: str
    identities: Sequence[Any] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.place}: {self.summary}"


def envelope(data_key: bytes, recipient: str) -> str:
    """Encrypt the data key for one recipient and return it as armored text."""
    return str(extra("pyrage").encrypt(data_key, [_recipient(recipient)], armored=True), "ascii")


def check_recipients(recipients: Sequence[str]) -> tuple[str, ...]:
    """Return the recipients without duplicates.

    :raises SealError: there is none, or one is not a public key; the message does not repeat it, as it may be a secret
    """
    if isinstance(recipients, str) or not isinstance(recipients, Sequence):
        raise SealError("recipients must be a list of age public keys, not one text")
    unique = tuple(dict.fromkeys(str(recipient).strip() for recipient in recipients))
    if not unique:
        raise SealError("a document is sealed for at least one recipient: give an age public key (age1...)")
    for number, recipient in enumerate(unique, start=1):
        if _recipient(recipient) is None:
            raise SealError(
                f"recipient {number} is not a public key that age knows: write age1... (age-keygen -y prints it)"
                " or an SSH public key (ssh-ed25519 or ssh-rsa)"
            )
    return unique


def _recipient(text: str) -> Any:
    pyrage = extra("pyrage")
    read = pyrage.ssh.Recipient.from_str if text.startswith("ssh-") else pyrage.x25519.Recipient.from_str
    try:
        return read(text)
    except (pyrage.RecipientError, ValueError):
        return None


def data_key(sources: KeySources, environment: Mapping[str, str]) -> tuple[bytes | None, list[Keys]]:
    """Return the data key, if a key of this machine opens it; and the places that were searched until then."""
    envelopes = [source.entry.get("enc") for source in sources.all if source.kind == "age"]
    texts = [text for text in envelopes if isinstance(text, str) and len(text) <= _MAX_ENVELOPE]
    searched: list[Keys] = []
    if sources.shared or not envelopes:
        return None, searched
    for keys in _places(environment):
        searched.append(keys)
        for text in texts if keys.identities else ():
            pyrage = extra("pyrage")
            try:
                opened = bytes(pyrage.decrypt(text.strip().encode(), list(keys.identities)))
            except (pyrage.DecryptError, ValueError):
                continue
            if len(opened) == KEY_BYTES:
                return opened, searched
    return None, searched


def _places(environment: Mapping[str, str]) -> Iterator[Keys]:
    """Yield keys, the cheapest place first and the command last; a place is read only if those before did not help."""

    def from_variable(name: str, read: Callable[[str], Keys]) -> Keys:
        value = environment.get(name)
        return read(value) if value else Keys(name, "not set")

    yield from_variable("SOPS_AGE_KEY", lambda text: _age_keys("SOPS_AGE_KEY", text.encode("utf-8", "replace")))
    yield from_variable(
        "SOPS_AGE_KEY_FILE", lambda path: _file(f"SOPS_AGE_KEY_FILE {short_name(path)}", path, _age_keys)
    )
    home = environment.get("HOME")
    folder = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    if folder is None:
        yield Keys("~/.config/sops/age/keys.txt", "HOME is not set")
    else:
        path = str(Path(folder, "sops", "age", "keys.txt"))
        yield _file(short_name(path), path, _age_keys)
    name = "SOPS_AGE_SSH_PRIVATE_KEY_FILE"
    yield from_variable(name, lambda path: _file(f"{name} {short_name(path)}", path, _ssh_key))
    yield from_variable("SOPS_AGE_KEY_CMD", lambda command: _command("SOPS_AGE_KEY_CMD", command, environment))


def _file(place: str, path: str, parse: Callable[[str, bytes], Keys]) -> Keys:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_KEY_FILE + 1)
    except (OSError, ValueError) as error:
        return Keys(place, f"can't be read ({getattr(error, 'strerror', None) or 'invalid path'})")
    return Keys(place, "too large for a key file") if len(content) > _MAX_KEY_FILE else parse(place, content)


def _command(place: str, command: str, environment: Mapping[str, str]) -> Keys:
    """Return the keys that a command prints.

    The command is run without a shell, and is not shown, as its arguments may be secret.
    """
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
        return Keys(place, "the command could not be run, or took too long")
    if done.returncode != 0:
        return Keys(place, f"the command ended with {done.returncode}")
    return _age_keys(place, done.stdout)


def _ssh_key(place: str, content: bytes) -> Keys:
    pyrage = extra("pyrage")
    try:
        return Keys(place, "an SSH key", (pyrage.ssh.Identity.from_buffer(content),))
    except (pyrage.IdentityError, ValueError):
        return Keys(place, "not an SSH private key, or one with a passphrase")


def _age_keys(place: str, content: bytes) -> Keys:
    """Return the identities of a key file: one a line, comments begin with ``#``."""
    pyrage = extra("pyrage")
    identities, public, wrong = [], [], []
    text = content.decode("utf-8", errors="replace").lstrip("\ufeff")
    for number, line in enumerate(text.splitlines(), start=1):
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
    summary = f"{len(identities)} key(s) {', '.join(public[:10])}" if identities else "no key"
    lines = f"; not read as a key: line {', '.join(wrong[:10])}" if wrong else ""
    return Keys(place, summary + lines, tuple(identities))


# The sops program.

_SECONDS = 60
_MAX_OUTPUT = 16 * 2**20
_ARGUMENTS = ("--decrypt", "--input-type", "json", "--output-type", "json", "/dev/stdin")
_ALWAYS = frozenset(
    {"PATH", "HOME", "XDG_CONFIG_HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {name for variable in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") for name in (variable, variable.lower())}
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
    24: "the document's MAC can't be opened",
    25: "a value can't be opened: it was changed or moved",
    51: "the document's MAC does not match: it was changed after sealing",
    52: "the document has no MAC",
    128: "none of its key sources gave the data key",
}


def program(environment: Mapping[str, str]) -> str | None:
    """Return the absolute path of ``sops``. Relative entries of PATH do not count."""
    path = shutil.which("sops", path=environment.get("PATH", ""))
    return path if path and os.path.isabs(path) else None


def open_with_program(
    program_path: str, document: Mapping[str, Any], sources: KeySources, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the opened document without ``sops``; the program checks its MAC.

    :raises SealError: the program refuses, fails or takes longer than a minute, or a Vault is not this machine's
    """
    for source in sources.all:
        asked = str(source.entry.get("vault_address", "")).rstrip("/")
        # An edited document could otherwise have this machine's Vault token sent to any server.
        if source.kind == "hc_vault" and asked != environment.get("VAULT_ADDR", "").rstrip("/"):
            raise SealError(
                f"the document asks for the Vault at {short_name(asked)}, which is not VAULT_ADDR of this machine;"
                " set VAULT_ADDR to it if that Vault may get this machine's token"
            )
    # The program gets only the variables that these kinds of key sources need.
    prefixes = tuple(prefix for source in sources.all for prefix in _PREFIXES[source.kind])
    limited = {name: text for name, text in environment.items() if name in _ALWAYS or name.startswith(prefixes)}
    done, command, content = None, [program_path, *_ARGUMENTS], json.dumps(document).encode()
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=_SECONDS, env=limited, check=False)
    except (OSError, subprocess.SubprocessError):
        pass  # raised below: the error of a timeout holds what was printed
    if done is None:
        raise SealError(f"the sops program could not be run, or took longer than {_SECONDS} seconds")
    if done.returncode != 0:
        meaning = _MEANINGS.get(done.returncode, "run sops decrypt by hand as the same user to see why")
        raise SealError(f"the sops program ended with status {done.returncode}: {meaning}")
    if len(done.stdout) > _MAX_OUTPUT:
        raise SealError("the sops program printed more than a document can have")
    try:
        opened = json.loads(done.stdout)
    except (ValueError, RecursionError):
        opened = None  # raised below, so that the error has no context
    if not isinstance(opened, dict):
        raise SealError("the sops program printed something other than a JSON object")
    return {key: value for key, value in opened.items() if key != "sops"}
