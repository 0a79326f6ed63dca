"""Sealed documents: triggers blocks whose secrets are sealed in the format of SOPS; checks, opens and reseals them.

What decides where a delivery goes, what goes with it, and what counts as delivered is sealed; docs/webhooks_sealing.md
has the reason. The MAC of SOPS does not say which fields have to be sealed, so this module checks that. Documents for
age keys are sealed and opened in process; for other key sources the ``sops`` program opens them.

Functions for files return the new text and write nothing. Errors give line and column and nothing of the text, which
may be secret. They are raised outside of ``except`` blocks, so that no context with a secret is attached to them.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_rfr.documents import DocumentError, leaves, nearest, read_yaml
from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks import _sops
from airflow_provider_rfr.webhooks._sops import (
    MAX_INTEGER,
    KeySources,
    Place,
    is_sealed,
    location,
    looks_sealed,
    names_regex,
    pointer,
    short_name,
)

__all__ = ["seal", "check_sealed", "open_sealed", "reseal", "seal_file", "reseal_file", "read_file"]

_BLOCK_FIELDS = ("name", "config", "interval", "sops")


@dataclass(frozen=True)
class _Shape:
    """The form that a field's value must have.

    SOPS does not bind a value to its place in a list, so lists are allowed only in the fields that need them.

    :ivar depth: levels of maps and lists above the leaves; None for any JSON
    :ivar holder: the type of the outermost level
    """

    depth: int | None
    holder: type = object

    def fits(self, value: Any) -> bool:
        return self.depth is None or (isinstance(value, self.holder) and _depth(value) <= self.depth)


_TEXT = _Shape(0)
_LIST = _Shape(1, list)
_MAP = _Shape(1, Mapping)

_SEALED: dict[str, _Shape] = {
    "url": _TEXT,
    "connection": _TEXT,
    "method": _TEXT,
    "headers": _MAP,
    "preset": _TEXT,
    "with": _Shape(None),
    "success": _Shape(None),
    "signing": _Shape(2, Mapping),
    "exposeHeaders": _LIST,
    "allowedHosts": _LIST,
}
_DELIVERY = ("payloadTemplate", "payload", "timeout", "timeoutSecs", "maxAttempts", "maxRetries", "retry", "interval")
_EDITABLE = (*_DELIVERY, "when", "onFailure", "ordering", "enabled")
# An endpoint needs one of these sealed fields: the path of a sealed value binds the endpoint to its name.
_DESTINATIONS = ("url", "connection", "preset")

# Both spellings of each field, camel case and snake case, with the field's name.
_SPELLINGS = {
    spelling: name
    for name in (*_SEALED, *_EDITABLE)
    for spelling in (re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name), name)
}
SEALED_NAMES = tuple(spelling for spelling, name in _SPELLINGS.items() if name in _SEALED)
ENCRYPTED_REGEX = names_regex(*SEALED_NAMES)

_MAX_PROBLEMS = 20
_COLON = "a colon separates the names in a sealed value's path, so names must not contain one"

# Gets a field's name and a leaf of it; returns what is wrong with the leaf, or "".
_LeafCheck = Callable[[str, Any], str]


def sealed_leaf(name: str, value: Any) -> str:
    """Return the problem of a value in a sealed document; empty if there is none."""
    if value in (None, ""):
        return "SOPS does not seal empty values, so anybody could have put it here; leave it out"
    return "" if is_sealed(value) else f"plaintext where a sealed value is due; {name} can't be edited in place"


def opened_leaf(name: str, value: Any) -> str:
    """Return the problem of a value in an opened document; empty if there is none.

    Types are not authenticated, so text that was turned into a number is refused here.
    """
    if looks_sealed(value):
        return "is still sealed: the document's own rule leaves it out; seal it again"
    return "must be text" if _SEALED[name].depth is not None and not isinstance(value, str) else ""


def plain_leaf(name: str, value: Any) -> str:
    """Return the problem of a value in a document that is to be sealed; empty if there is none."""
    if value in (None, ""):
        return "an empty value can't be sealed; leave it out"
    if looks_sealed(value):
        return "is a sealed value of another document; write the plaintext"
    return opened_leaf(name, value)


def check_block(block: Any, leaf: _LeafCheck, *, title: str) -> None:
    """Check the fields of a block, and the leaves of the sealed ones.

    :param leaf: returns the problem of a leaf, or an empty text
    :param title: beginning of the error's message
    :raises SealError: there are problems; the message has the first 20, each with its JSON pointer
    """
    problems = [f"{pointer(place) or 'the block'}: {problem}" for place, problem in _problems(block, leaf)]
    if problems:
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise SealError(f"{title}: " + "; ".join(problems[:_MAX_PROBLEMS]) + more)


def _problems(block: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(block, Mapping):
        yield (), "must be a mapping"
        return
    for name in block:
        if name not in _BLOCK_FIELDS:
            yield (name,), "unknown field"
    config = block.get("config")
    if isinstance(config, list) and len(config) > 1:
        yield (
            ("config",),
            "entries of a list share one path, so sealed values could be moved between them unseen;"
            " name the triggers (config: {name: ...}) and seal again",
        )
    if not isinstance(config, (Mapping, list)):
        yield ("config",), "must be a mapping of named triggers"
        return
    for name, endpoint in config.items() if isinstance(config, Mapping) else enumerate(config):
        yield from _endpoint_problems(("config", name), endpoint, leaf)


def _endpoint_problems(place: Place, endpoint: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(endpoint, Mapping):
        yield place, "must be a mapping"
        return
    if ":" in str(place[-1]):
        yield place, _COLON
    seen = set()
    for field, value in endpoint.items():
        name = _SPELLINGS.get(field)
        if name is None:
            near = nearest(field, _SPELLINGS)
            yield (*place, field), "unknown field" + (f"; did you mean {_SPELLINGS[near]}?" if near else "")
        elif name in seen:
            yield (*place, field), f"{name} is given in two spellings"
        elif name in _SEALED:
            yield from _sealed_field_problems((*place, field), name, value, leaf)
        seen.add(name)
    if not seen.intersection(_DESTINATIONS):
        yield place, f"must have one of {', '.join(_DESTINATIONS)}"


def _sealed_field_problems(place: Place, name: str, value: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not _SEALED[name].fits(value):
        yield place, "has the wrong form; see the field's description"
    for where, text in leaves(value, place):
        problem = leaf(name, text)
        if problem:
            yield where, problem
        if any(":" in str(part) for part in where[len(place) :]):
            yield where, _COLON


def _depth(value: Any) -> int:
    if not isinstance(value, (Mapping, list)):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, Mapping) else value), default=0)


_MAX_NODES = 50_000
_MAX_CHARACTERS = 8 * 2**20
_MAX_DEPTH = 50


class Opened(dict[str, Any]):
    """A dict whose repr shows its keys only, as its values are secret."""

    def __repr__(self) -> str:
        return f"<opened: {', '.join(self)}>"


class _OpenedList(list[Any]):
    def __repr__(self) -> str:
        return f"<opened: {len(self)} entries>"


def hidden(value: Any) -> Any:
    """Return the value with maps and lists whose repr shows no contents."""
    if isinstance(value, Mapping):
        return Opened({key: hidden(item) for key, item in value.items()})
    return _OpenedList(map(hidden, value)) if isinstance(value, list) else value


def plain_copy(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document as new dicts, lists and scalars of Python's own types.

    :raises SealError: it is not a mapping, too large or deep, or has keys or values that JSON does not have
    """
    if not isinstance(document, Mapping):
        raise SealError("the document must be a mapping")
    copied: dict[str, Any] = _Copier().copy(document, ())
    return copied


class _Copier:
    """A copier that counts values and characters, so that nested aliases and cycles can't fill memory."""

    def __init__(self) -> None:
        self._nodes = 0
        self._characters = 0

    def copy(self, node: object, place: Place) -> Any:
        self._count(1, 0)
        if len(place) > _MAX_DEPTH:
            raise SealError(f"the document is nested deeper than {_MAX_DEPTH} levels")
        if isinstance(node, Mapping):
            for key in node:
                if not isinstance(key, str):
                    kind = type(key).__name__
                    raise SealError(f"{location(place)}: a key must be text, not {kind}; put it in quotes")
            return {self._text(key, place): self.copy(value, (*place, key)) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [self.copy(value, (*place, index)) for index, value in enumerate(node)]
        if isinstance(node, str):
            return self._text(node, place)
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, int) and -MAX_INTEGER - 1 <= node <= MAX_INTEGER:
            return int(node)
        if isinstance(node, float) and math.isfinite(node):
            return float(node)
        raise SealError(f"{location(place)}: a {type(node).__name__} of this size or kind can't be sealed")

    def _text(self, text: str, place: Place) -> str:
        self._count(0, len(text))
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise SealError(f"{location(place)}: the text contains a lone surrogate, which is not a character")
        return str.__str__(text)  # a subclass may override __str__

    def _count(self, nodes: int, characters: int) -> None:
        self._nodes += nodes
        self._characters += characters
        if self._nodes > _MAX_NODES or self._characters > _MAX_CHARACTERS:
            raise SealError(
                f"the document is too large: {_MAX_NODES:,} values and {_MAX_CHARACTERS:,} characters at most"
            )


_TRIGGERS = "triggers"
# The first version of the sops program that knows mac_only_encrypted.
_FORMAT_VERSION = "3.9.0"


def seal(document: Mapping[str, Any], recipients: Sequence[str]) -> dict[str, Any]:
    """Seal the secret fields of a document; a list of triggers becomes a map of named ones.

    A document that is sealed already is checked and returned unchanged; see :func:`reseal`.

    :param recipients: age or SSH public keys, each of which can open it
    :raises SealError: fields are unknown or empty, or a seal would not protect them
    """
    located = _BlockLocation.of(plain_copy(document))
    if located.metadata is not None:
        return dict(_checked(document).document)
    recipients = _sops.check_recipients(recipients)
    config = located.block.get("config") if isinstance(located.block, Mapping) else None
    if isinstance(config, list):
        # Entries of a list get the names that they have anyway.
        config = {f"trigger{index}": endpoint for index, endpoint in enumerate(config)}
    if not isinstance(config, Mapping):
        raise SealError("the document has no triggers: config must be a mapping of them by their names")
    block = {**located.block, "config": config}
    block.pop("sops", None)
    for name in block["config"]:
        if name in SEALED_NAMES:
            raise SealError(f"a trigger can't be named {name} in a sealed document: all of it would be sealed")
    check_block(block, plain_leaf, title="the document can't be sealed")
    key = os.urandom(_sops.KEY_BYTES)
    # The MAC covers the sealed values only, so that everything else stays editable.
    rule: dict[str, Any] = {"encrypted_regex": ENCRYPTED_REGEX, "mac_only_encrypted": True}
    sealed, mac = _sops.seal_tree(block, key, _sops.rule_of(rule))
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    sealed["sops"] = {
        "age": [{"recipient": recipient, "enc": _sops.envelope(key, recipient)} for recipient in recipients],
        "lastmodified": stamp,
        "mac": _sops.encrypt(mac, key, stamp.encode()),
        **rule,
        "version": _FORMAT_VERSION,
    }
    return located.with_block(sealed)


def check_sealed(document: Mapping[str, Any]) -> None:
    """Check that everything that has to be sealed is sealed. Needs no key.

    :raises SealError: the document is not sealed, or has unknown fields, or plaintext where a sealed value is due
    """
    _checked(document)


def _checked(document: Mapping[str, Any]) -> _BlockLocation:
    """Return a copy of a sealed document; raise as :func:`check_sealed`."""
    located = _sealed_document(document)
    KeySources.of(located.metadata)
    if located.metadata.get("overlay") is not None:
        # No code here applies an overlay, and to ignore it silently would hide that.
        raise SealError("sops.overlay is not supported; write its values into the fields: readable ones need no key")
    check_block(located.block, sealed_leaf, title="the sealed document is refused")
    return located


def open_sealed(document: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the document's plaintext without ``sops``. Its repr shows no values.

    It is called at delivery, never while a DAG file is parsed.

    :param document: the document as it was loaded; renamed or reordered fields break the seal
    :param environment: environment variables with the keys or their places (``SOPS_AGE_KEY`` and others)
    :raises SealError: no key opens it, or it was changed after it was sealed
    """
    located = _checked(document)
    content = open_document(located.sealed, environment)
    opened = _BlockLocation.of(content if located.outside else located.with_block(content))
    check_block(opened.block, opened_leaf, title="the opened document is refused")
    plain: dict[str, Any] = hidden(opened.document)
    return plain


def reseal(
    document: Mapping[str, Any],
    *,
    recipients: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Open a document and seal it with a new data key.

    :param recipients: default: those of the document, which must all be age keys then
    :raises SealError: as :func:`open_sealed` and :func:`seal`
    """
    located = _sealed_document(document)
    if recipients is None:
        sources = KeySources.of(located.metadata)
        if not all(source.is_plain_age for source in sources.all):
            raise SealError(f"give the recipients: the document is sealed for {sources}, which are not all age keys")
        recipients = [source.recipient for source in sources.all]
    _sops.check_recipients(recipients)
    if located.outside and set(located.document) - {_TRIGGERS, "sops"}:
        # seal() would leave the other fields in plaintext.
        raise SealError(f"the document has more than {_TRIGGERS} under its seal; change it with the sops program")
    return seal(open_sealed(document, environment=environment), recipients)


def open_document(document: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the plaintext of any SOPS document without ``sops``.

    :raises SealError: as :func:`open_sealed`
    """
    tree = plain_copy(document)
    metadata = tree.pop("sops")
    sources = KeySources.of(metadata)
    key, searched = _sops.data_key(sources, environment)
    if key is None:
        path = _sops.program(environment) if sources.foreign else None
        if path is None:
            raise SealError(sources.unopened(searched))
        return _sops.open_with_program(path, {**tree, "sops": metadata}, sources, environment)
    rule = _sops.rule_of(metadata)
    sealed_mac, stamp = metadata.get("mac"), metadata.get("lastmodified")
    if not isinstance(sealed_mac, str) or not isinstance(stamp, str):
        raise SealError("sops.mac or sops.lastmodified is missing or is not text")
    mac = _sops.decrypt(sealed_mac, key, stamp.encode())
    if not isinstance(mac, str):
        raise SealError("the document's MAC (sops.mac) can't be opened: it or sops.lastmodified was changed")
    opened, computed = _sops.open_tree(tree, key, rule)
    if not hmac.compare_digest(computed.encode(), mac.encode()):
        raise SealError(
            "the document's MAC (sops.mac) does not match its content: a value was changed, added, removed or"
            " reordered after sealing, or the metadata were; restore it, or seal the document again"
        )
    return opened


@dataclass(frozen=True)
class _BlockLocation:
    """A document, with the places of its triggers block and of the metadata of SOPS in it.

    :ivar nested: the block is below the key ``triggers``
    :ivar outside: ``sops`` is next to the key ``triggers`` and covers the whole document
    """

    document: Mapping[str, Any]
    nested: bool
    outside: bool

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> _BlockLocation:
        """Locate the block and its seal in a document.

        :raises SealError: there are two blocks, or two seals
        """
        nested = _TRIGGERS in document
        if nested and ("config" in document or "interval" in document):
            raise SealError(f"the document has a triggers block at its top and another one below {_TRIGGERS}")
        outside = nested and bool(document.get("sops"))
        below = document[_TRIGGERS] if nested else None
        if outside and isinstance(below, Mapping) and below.get("sops"):
            raise SealError(f"the document has sops at its top and again below {_TRIGGERS}")
        return cls(document, nested, outside)

    @property
    def block(self) -> Any:
        return self.document[_TRIGGERS] if self.nested else self.document

    @property
    def sealed(self) -> Any:
        """Return the part of the document that ``sops`` belongs to."""
        return self.document if self.outside else self.block

    @property
    def metadata(self) -> Any:
        return self.sealed.get("sops") if isinstance(self.sealed, Mapping) else None

    def with_block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.document, _TRIGGERS: dict(block)} if self.nested else dict(block)


def _sealed_document(document: Mapping[str, Any]) -> _BlockLocation:
    """Return a copy of a sealed document.

    :raises SealError: it is not sealed
    """
    located = _BlockLocation.of(plain_copy(document))
    if not isinstance(located.metadata, Mapping):
        raise SealError("the document is not sealed: it has no mapping under the key sops")
    return located


_MAX_FILE = 2 * 2**20
_STR, _FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"


def seal_file(path: str | Path, recipients: Sequence[str]) -> str:
    """Return the file's text with its triggers sealed.

    Comments are dropped; a file that is sealed already is not changed.

    :raises SealError: as :func:`seal`, with the file's name
    """
    return _rewritten(path, lambda document: seal(document, recipients))


def reseal_file(
    path: str | Path,
    *,
    recipients: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return the text of a sealed file under a new data key; see :func:`reseal`."""
    return _rewritten(path, lambda document: reseal(document, recipients=recipients, environment=environment))


def read_file(path: str | Path) -> Any:
    """Return the document in a file: JSON if its name ends so, else YAML.

    :raises SealError: the file can't be read, is not UTF-8, has wrong syntax, duplicate keys or anchors
    """
    return _read(path)[1]


def _rewritten(path: str | Path, change: Callable[[Any], Any]) -> str:
    text, document = _read(path)
    try:
        changed = change(document)
    except SealError as error:
        problem = str(error)
    else:
        if changed == document:
            return text
        return json.dumps(changed, indent=2, ensure_ascii=False) + "\n" if _is_json(path) else _write_yaml(changed)
    raise SealError(f"{short_name(path)}: {problem}")


def _read(path: str | Path) -> tuple[str, Any]:
    """Return the file's text and document."""
    try:
        with Path(path).open("rb") as file:
            text = str(file.read(4 * _MAX_FILE + 1), "utf-8-sig")
        return text, _read_json(text) if _is_json(path) else read_yaml(_checked_size(text), explicit=True)
    except (SealError, DocumentError) as error:
        problem = str(error)
    except (OSError, ValueError) as error:
        problem = f"can't be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
    raise SealError(f"{short_name(path)}: {problem}")


def _is_json(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".json"


def _checked_size(text: str) -> str:
    if len(text) > _MAX_FILE:
        raise SealError(f"the file is larger than {_MAX_FILE:,} characters")
    return text


def _read_json(text: str) -> Any:
    """Parse JSON.

    :raises SealError: wrong syntax, a duplicate key, NaN or infinity
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def refused(constant: str) -> Any:
        raise ValueError

    try:
        return json.loads(_checked_size(text), object_pairs_hook=unique, parse_constant=refused)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: is not JSON"
    except (ValueError, RecursionError):
        problem = "duplicate key, invalid number, or nested too deeply"
    raise SealError(problem)


class _SealedDumper(yaml.SafeDumper):
    """A YAML dumper that writes texts of several lines as blocks, and quotes texts that other readers may misread."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if _LINE_BREAKS.search(text) else "|" if "\n" in text else None
        return self.represent_scalar(_STR, text, style=style)


# Line breaks that PyYAML writes into plain and single-quoted text and does not read back.
_LINE_BREAKS = re.compile("[\r\x85\u2028\u2029]")
# Numbers for YAML 1.2, and so for the sops program, but text for PyYAML. A resolver makes PyYAML quote them.
_NUMBER = re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+)$")
_SealedDumper.add_implicit_resolver(_FLOAT, _NUMBER, list("-+.0123456789"))
_SealedDumper.add_representer(str, _SealedDumper.represent_text)


def _write_yaml(document: Any) -> str:
    text: str = yaml.dump(document, Dumper=_SealedDumper, sort_keys=False, allow_unicode=True, width=2**30)
    return text
