"""Puts credentials into requests."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod

from airflow_provider_rfr.streams.context import ReadContext
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.transport import Draft


class Authenticator(ABC):
    """Thread-safe.  What it holds never shows in its repr."""

    @abstractmethod
    def apply(self, draft: Draft, context: ReadContext) -> None:
        """Add the credentials; may fetch a token first.

        :raises AuthenticationError: a token can't be obtained
        """

    def renew(self, draft: Draft, context: ReadContext) -> bool:
        """The API answered 401 to ``draft``.  Whether there are newer credentials to try it with now."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NoAuthenticator(Authenticator):
    """Nothing to add."""

    def apply(self, draft: Draft, context: ReadContext) -> None:
        return None


class ApiKeyInQuery(Authenticator):
    """A key as a query parameter; never part of a page token or a message."""

    def __init__(self, name: str, value: str, redactor: Redactor) -> None:
        redactor.add(value)
        redactor.add_parameter(name)
        self._name = name
        self._value = value

    def apply(self, draft: Draft, context: ReadContext) -> None:
        draft.query[self._name] = self._value


class FixedHeader(Authenticator):
    """A credential that does not change, in a header: API key, bearer token."""

    def __init__(self, name: str, secret: str, redactor: Redactor, prefix: str = "") -> None:
        redactor.add(secret)
        self._name = name
        self._value = f"{prefix}{secret}"

    def apply(self, draft: Draft, context: ReadContext) -> None:
        draft.headers[self._name] = self._value


def basic_header(username: str, password: str, redactor: Redactor) -> str:
    """The value of ``Authorization`` for basic authentication."""
    redactor.add_pair(username, password)
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
