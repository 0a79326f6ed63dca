"""Mapped refreshes: checks of the arguments of ``expand`` and ``expand_kwargs`` while the DAG is parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.dag_arguments import file_folders, is_pending
from airflow_provider_rfr.hooks.webhooks import check_triggers
from airflow_provider_rfr.operators._checkpoints import check_store
from airflow_provider_rfr.operators.arguments import MAPPED, check_reading, check_source

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import MappedOperator

_READING: Final = ("source", "streams", "target", "options")
_UNKNOWN: Final = {**dict.fromkeys(_READING, MAPPED), "options": None}
_CHECKED: Final = (*_READING, "checkpoint_store", "deliver_after")

_Tasks = Iterable[tuple[str, Mapping[str, Any]]]
"""The mapped arguments of each task, with their place in the DAG."""


class MappedRefresh(OperatorPartial):
    """A refresh that is still to be mapped. Results of other tasks are checked in the mapped task."""

    __slots__ = ()

    def expand(self, **mapped: Any) -> MappedOperator:
        """Check each combination of values and map the task over them.

        :raises ConfigurationError: field, problem, remedy and place of the first mistake
        """
        self._check(_combinations(mapped))
        return super().expand(**mapped)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """Check each set of arguments and map the task over them.

        :raises ConfigurationError: field, problem, remedy and place of the first mistake
        """
        if isinstance(kwargs, Sequence):
            self._check((f"expand_kwargs[{n}]", item) for n, item in enumerate(kwargs) if isinstance(item, Mapping))
        return super().expand_kwargs(kwargs, strict=strict)

    def _check(self, tasks: _Tasks) -> None:
        """Check the arguments that are written out, and a source that several tasks have only once."""
        # After a mistake, Airflow is not to warn that nothing was mapped.
        self._expand_called = True
        # A mapped task is made by Airflow, so it looks next to the DAG's file alone.
        folder = file_folders()[:1]
        streams_of = dict[int, list[str] | None]()
        for place, arguments in tasks:
            source, *reading = ({**_UNKNOWN, **self.kwargs, **arguments}[name] for name in _READING)
            try:
                if id(source) not in streams_of:
                    streams_of[id(source)] = check_source(source, folder)
                check_reading(streams_of[id(source)], *reading)
                if not is_pending(store := arguments.get("checkpoint_store", MAPPED)):
                    check_store(store)
                triggers = arguments.get("deliver_after")
                if triggers is not None and not hasattr(triggers, "resolve"):
                    check_triggers(triggers, folder)
            except ConfigurationError as error:
                raise error.inside(place) from error


def _combinations(mapped: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the arguments of each task, with their places in the lists to map over."""
    lists = {name: mapped[name] for name in _CHECKED if isinstance(mapped.get(name), (list, tuple))}
    for chosen in product(*(enumerate(values) for values in lists.values())) if lists else ():
        place = ", ".join(f"{name}[{number}]" for name, (number, _) in zip(lists, chosen, strict=True))
        yield f"expand {place}", {name: value for name, (_, value) in zip(lists, chosen, strict=True)}
