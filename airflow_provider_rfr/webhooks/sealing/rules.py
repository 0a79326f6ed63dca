"""Which leaves of a document are sealed, by the rule in its ``sops`` metadata.

The metadata are not authenticated, so a regular expression there is never run as one: only alternatives of
plain words are understood in process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import SealError

_DEFAULT_SUFFIX = "_unencrypted"
_RULES = ("unencrypted_suffix", "encrypted_suffix", "unencrypted_regex", "encrypted_regex")
_COMMENT_RULES = ("unencrypted_comment_regex", "encrypted_comment_regex")
_WORD = r"(?:[A-Za-z0-9_-]|\\[.\-_])+"
_WORDS = re.compile(rf"(\^?)(?:\(({_WORD}(?:\|{_WORD})*)\)|({_WORD}))(\$?)", re.ASCII)
_LONGEST_RULE = 2000


@dataclass(frozen=True)
class Rule:
    """Which leaves are sealed, and which the document's code covers.

    :ivar matches: whether a map key on the way to a leaf is named by the rule
    :ivar seals: whether the leaves below such a key are the sealed ones, or all others
    :ivar mac_only: whether the document's code covers the sealed values alone
    """

    matches: Callable[[str], bool]
    seals: bool
    mac_only: bool

    def selects(self, keys: Sequence[str]) -> bool:
        return any(map(self.matches, keys)) == self.seals


def words(*names: str) -> str:
    """The regular expression that this module, and the sops binary, read as these names."""
    return f"^({'|'.join(names)})$"


def rule_of(metadata: Mapping[str, Any]) -> Rule:
    """:raises SealError: the rule is wrong, or only the sops binary understands it"""
    for name in (*_RULES, *_COMMENT_RULES):
        if not isinstance(metadata.get(name) or "", str):
            raise SealError(f"sops.{name} is not text")
    mac_only = metadata.get("mac_only_encrypted") or False
    if not isinstance(mac_only, bool):
        raise SealError("sops.mac_only_encrypted is neither true nor false")
    given = {name: metadata[name] for name in _RULES if metadata.get(name)}
    if any(metadata.get(name) for name in _COMMENT_RULES) or len(given) > 1:
        raise SealError(f"the document's sealing rule is not understood; only one of {', '.join(_RULES)} may be there")
    name, text = next(iter(given.items()), ("unencrypted_suffix", _DEFAULT_SUFFIX))
    matches = _by_words(name, text) if name.endswith("_regex") else _by_suffix(text)
    return Rule(matches, name.startswith("encrypted"), mac_only)


def _by_suffix(suffix: str) -> Callable[[str], bool]:
    return lambda key: key.endswith(suffix)


def _by_words(name: str, pattern: str) -> Callable[[str], bool]:
    found = _WORDS.fullmatch(pattern) if len(pattern) <= _LONGEST_RULE else None
    if found is None:
        raise SealError(f"sops.{name} is not understood: only a list of names as in ^(url|headers)$ is")
    names = tuple(each.replace("\\", "") for each in (found[2] or found[3]).split("|"))
    if found[1] and found[4]:
        return frozenset(names).__contains__
    if found[1]:
        return lambda key: key.startswith(names)
    if found[4]:
        return lambda key: key.endswith(names)
    return lambda key: any(each in key for each in names)
