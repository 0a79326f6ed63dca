"""The hosts that may get the source's credentials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit, urlunsplit

from airflow_provider_rfr.exceptions import SourceError

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class _Origin:
    """Scheme, host and port of an address."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def of(cls, url: str) -> _Origin:
        """Return the origin of a URL.

        :raises ValueError: the URL has an impossible port
        """
        parts = urlsplit(url)
        scheme = parts.scheme.lower()
        return cls(scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(scheme))

    def __str__(self) -> str:
        port = "" if self.port == _DEFAULT_PORTS.get(self.scheme) else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The origin of the base URL, and the hosts (``host`` or ``host:port``) that are trusted like it."""

    base: _Origin
    allowed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, base_url: str, allowed: Iterable[str] = ()) -> HostPolicy:
        return cls(_Origin.of(base_url), frozenset(host.lower() for host in allowed))

    def is_base(self, url: str) -> bool:
        return _Origin.of(url) == self.base

    def is_allowed(self, url: str) -> bool:
        """Tell whether the URL's host was declared; plain http isn't, if the base URL is https."""
        origin = _Origin.of(url)
        if self.base.scheme == "https" and origin.scheme != "https":
            return False
        return origin.host in self.allowed or f"{origin.host}:{origin.port}" in self.allowed

    def checked(self, url: str, relative_to: str, what: str, request: str | None = None) -> str:
        """Return the absolute address, if the source's credentials may go there.

        :param what: the kind of address, for the error
        :raises SourceError: it leads to a foreign host; the error names both
        """
        problem = ""
        try:
            absolute = self.secured(urljoin(relative_to, url.strip()))
            origin = _Origin.of(absolute)
            if origin.scheme not in _DEFAULT_PORTS or not origin.host:
                problem = f"{what} is not an http address"
            elif not (origin == self.base or self.is_allowed(absolute)):
                problem = (
                    f"{what} leads to {origin}, not to {self.base}; "
                    "credentials are not sent there unless allowed_hosts lists it"
                )
        except ValueError:
            absolute, problem = "", f"{what} is not an address"
        if problem:
            raise SourceError(problem, request=request)
        return absolute

    def secured(self, url: str) -> str:
        """Return the address by https if the base is https: an API behind a proxy often links to itself by http."""
        parts = urlsplit(url)
        if self.base.scheme != "https" or parts.scheme.lower() != "http":
            return url
        upgraded = urlunsplit(("https", *parts[1:]))
        return upgraded if parts.port in (None, self.base.port) and self.is_base(upgraded) else url
