"""An API that moved while it was being read: what was begun at its former address goes on at the present one.

Who alters the connection vouches that it is the same upstream. The fingerprint is then taken as if nothing had moved,
and page tokens that are addresses are asked for at the new place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_rfr.refresh.partitions import PartitionBook


@dataclass(frozen=True, slots=True)
class Moves:
    """Where an API was and is.

    :ivar addresses: base URLs, the oldest first, the present one last
    :ivar logins: the same of the user that it was asked as
    :ivar upstream: names another API than there was before at the connection; None while there was one only
    """

    addresses: Sequence[str] = ()
    logins: Sequence[str] = ()
    upstream: str | None = None

    @classmethod
    def of(cls, moved: Sequence[Any]) -> Moves:
        """From the document's ``run.moved``."""
        return cls(
            [each.base_url.rstrip("/") for each in moved if each.base_url],
            [each.login for each in moved if each.login],
            next((each.upstream for each in reversed(moved) if each.upstream), None),
        )

    def as_begun(self, fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fingerprint with the first address and login in the place of the present ones."""
        found = {key: self._text_by_text(value) for key, value in fingerprint.items()}
        return found if self.upstream is None else {**found, "upstream": self.upstream}

    def token(self, text: str | None) -> str | None:
        """A page token's JSON; an address that leads to a former place leads to the present one."""
        if text is None or len(self.addresses) < 2:
            return text
        # The longest first: one address may be the beginning of another.
        for place in sorted(self.addresses, key=len, reverse=True):
            if text.startswith((f'"{place}/', f'"{place}?', f'"{place}"')):
                return f'"{self.addresses[-1]}{text[len(place) + 1 :]}'
        return text

    def follow(self, book: PartitionBook) -> None:
        """Move the cursors of a refresh that is resumed."""
        if len(self.addresses) < 2:
            return
        for ordinal, cursor in book.cursors.items():
            book.cursors[ordinal] = replace(cursor, token=self.token(cursor.token))
        for ordinal, overlap in book.overlaps.items():
            book.overlaps[ordinal] = replace(overlap, token_in=self.token(overlap.token_in))

    def _text_by_text(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._text_by_text(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._text_by_text(each) for each in value]
        return self._former(value) if isinstance(value, str) else value

    def _former(self, text: str) -> str:
        if len(self.logins) > 1 and text == self.logins[-1]:
            return self.logins[0]
        present = self.addresses[-1] if len(self.addresses) > 1 else None
        if present is not None and (text == present or text.startswith((f"{present}/", f"{present}?"))):
            return self.addresses[0] + text[len(present) :]
        return text
