"""What whoever deploys has decided beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from uuid import UUID

from airflow_provider_rfr.exceptions import ConfigurationError

USER_VIEWS: Final = ("rebind", "fail", "warn")
DRIFT: Final = ("fail", "adopt", "repair")
SINKS: Final = ("hold", "resume_from_new", "resend")
FORCE: Final = ("evolve", "rewrite")
_ALL: Final = frozenset({"*", "all", "any", "true", "yes", "everything"})


def _none() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Policies:
    """Decisions for one deploy.

    :ivar user_views: what to do with users' views over a changed column: ``rebind``, ``fail``, ``warn``
    :ivar drift: what to do about changes made by hand: ``fail``, ``adopt`` (the catalog is right), ``repair`` (the
        declaration is right)
    :ivar accept_data_loss: names or ids of the objects that may be emptied; there is no word for all of them
    :ivar adopt: names of live objects without our marker that may become ours if they are what is declared
    :ivar sinks: by name of a sink, what to do when its source is emptied: ``hold``, ``resume_from_new``, ``resend``
    :ivar force: for tests: migrate everything that is not protected, by ``evolve`` or ``rewrite``
    :ivar replace_views: the catalog has CREATE OR REPLACE VIEW; without it, views are dropped and created
    :ivar allow_downgrade: an older version of the code may put its views and settings back
    :ivar keep_days: how long garbage is kept, for display
    """

    user_views: str = "rebind"
    drift: str = "fail"
    accept_data_loss: frozenset[str] = frozenset()
    adopt: frozenset[str] = frozenset()
    sinks: Mapping[str, str] = field(default_factory=_none)
    force: str | None = None
    replace_views: bool = True
    allow_downgrade: bool = False
    keep_days: int = 7

    def __post_init__(self) -> None:
        _one_of("user_views", self.user_views, USER_VIEWS)
        _one_of("drift", self.drift, DRIFT)
        _one_of("force", self.force, (None, *FORCE))
        for name, choice in self.sinks.items():
            _one_of(f"sinks.{name}", choice, SINKS)
        for name in ("accept_data_loss", "adopt"):
            names = getattr(self, name)
            if isinstance(names, str):
                raise ConfigurationError(name, "is one text", "give a list of names")
            folded = frozenset(str(each).casefold() for each in names)
            if folded & _ALL:
                raise ConfigurationError(name, "must name each object", "there is no word for all of them")
            object.__setattr__(self, name, folded)
        object.__setattr__(self, "sinks", {key.casefold(): value for key, value in self.sinks.items()})

    def accepts_loss(self, name: str, identity: UUID) -> bool:
        """Whether this object may be emptied."""
        return name.casefold() in self.accept_data_loss or str(identity) in self.accept_data_loss


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(str(each) for each in allowed if each is not None)
        raise ConfigurationError(name, f"{value!r} is unknown", f"one of {choices}")
