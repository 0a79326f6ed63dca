"""Models of the paginators."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from airflow_provider_rfr.streams.rest.definition_base import Origin, Part, Place

StopPolicy = Literal["empty", "short", "total", "flag"]


class Total(Origin):
    """How many records or pages the partition has."""

    of: Literal["records", "pages"] = "records"


class Flag(Origin):
    """A field that tells whether there is another page."""

    stop_when: bool = False


class NoPaging(Part):
    """One page."""

    type: Literal["none"]


class _Sized(Part):
    page_size: int | str | None = None
    size_as: Place | None = None

    @model_validator(mode="after")
    def _size_to_send(self) -> _Sized:
        if self.size_as is not None and self.page_size is None:
            raise ValueError("size_as sends page_size, which is missing")
        return self


class _Stopping(_Sized):
    stop: StopPolicy | None = None
    total: Total | None = None
    flag: Flag | None = None

    @property
    def stop_policy(self) -> StopPolicy:
        """What was declared; else what the other fields make possible."""
        if self.stop is not None:
            return self.stop
        return "total" if self.total else "flag" if self.flag else "empty"

    @model_validator(mode="after")
    def _policy_has_its_field(self) -> _Stopping:
        policy = self.stop_policy
        if policy == "total" and self.total is None:
            raise ValueError("stop: total needs the field total")
        if policy == "flag" and self.flag is None:
            raise ValueError("stop: flag needs the field flag")
        if policy == "short" and self.page_size is None:
            raise ValueError("stop: short needs page_size: what is short is told by it")
        if self.total is not None and self.total.of == "records" and self.page_size is None:
            raise ValueError("total of records needs page_size, to tell how many pages that is")
        return self


class PageNumber(_Stopping):
    """Pages have numbers."""

    type: Literal["page_number"]
    start: int = 1
    send_as: Place = Field(default_factory=lambda: Place(query="page"))
    send_first: bool = True


class Offset(_Stopping):
    """Pages begin at the number of records before them."""

    type: Literal["offset"]
    start: int = 0
    send_as: Place = Field(default_factory=lambda: Place(query="offset"))
    send_first: bool = True
    advance: Literal["records", "page_size"] = "records"

    @model_validator(mode="after")
    def _step_is_known(self) -> Offset:
        if self.advance == "page_size" and self.page_size is None:
            raise ValueError("advance: page_size needs page_size")
        return self


class Keyset(_Stopping):
    """The next page begins after the last record."""

    type: Literal["keyset"]
    field: str
    send_as: Place

    @model_validator(mode="after")
    def _no_total(self) -> Keyset:
        if self.total is not None:
            raise ValueError("a keyset's pages can't be counted; use stop: empty, short or flag")
        return self


class CursorOrigin(Part):
    """Where the next cursor is found: a path of the body, a header, or an expression."""

    path: str | list[str] | None = None
    header: str | None = None
    expression: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> CursorOrigin:
        if sum(item is not None for item in (self.path, self.header, self.expression)) != 1:
            raise ValueError("name exactly one origin: path, header or expression")
        return self


class Cursor(_Sized):
    """Each answer has the token of the next page."""

    type: Literal["cursor"]
    cursor: CursorOrigin
    send_as: Place = Field(default_factory=lambda: Place(query="cursor"))
    stop_when: str | None = None
    on_missing: Literal["end", "fail"] = "end"


class NextUrl(_Sized):
    """Each answer has the address of the next page."""

    type: Literal["next_url"]
    url: Origin
    stop_when: str | None = None
    keep_query: bool = False


class LinkHeader(_Sized):
    """The address of the next page is in the header Link (RFC 8288)."""

    type: Literal["link_header"]
    rel: str = "next"
    header: str = "Link"
    keep_query: bool = False


Paginator = Annotated[
    NoPaging | PageNumber | Offset | Cursor | NextUrl | LinkHeader | Keyset, Field(discriminator="type")
]
