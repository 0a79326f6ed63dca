"""The operator of an incremental sync: the application of a refresh reads the changes since the last sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
from airflow_provider_rfr.streams.incremental import CursorWindow

if TYPE_CHECKING:
    from airflow_provider_rfr.lake import LakeSettings

_WRITES = ("merge", "append")
_NO_WINDOW = frozenset({"none", ""})
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no", "none", ""})


class IncrementalSyncOperator(ResumableFullRefreshOperator):
    """Sync tables with the records of an API that changed since the last sync; an attempt that dies is resumed.

    The first sync of a table reads everything and replaces the table, as a full refresh does. Later syncs read from the
    state on. The table's own commits carry the state, so a table that is rolled back is synced again from there. The
    streams declare ``incremental``, or in a manifest of Airbyte a ``DatetimeBasedCursor``. Takes every argument of
    :class:`ResumableFullRefreshOperator`; the options ``mode`` and ``replace_where`` are not for it.

    :param write: ``merge``, the default: a record replaces the row with its primary key; or ``append``: each version of
        a record is a row of its own
    :param full_refresh: read everything and replace the table, e.g. from the form of a run; default false (templated)
    :param window: ``start/end``, e.g. ``{{ data_interval_start }}/{{ data_interval_end }}``: read the records whose
        cursor value is in this window, start included and end excluded, and leave the state as it is; times of ISO
        8601, or whole numbers. None, the default, or an empty text: read the changes since the last sync (templated)
    :raises ConfigurationError: field, problem and remedy, while the DAG is parsed
    """

    template_fields: Sequence[str] = (*ResumableFullRefreshOperator.template_fields, "full_refresh", "window")

    def __init__(
        self,
        *,
        write: Literal["merge", "append"] = "merge",
        full_refresh: bool | str = False,
        window: str | None = None,
        name: str = "rfr-incremental-sync",
        **kwargs: Any,
    ) -> None:
        if isinstance(options := kwargs.get("options"), Mapping):
            for option, remedy in (("mode", "use write"), ("replace_where", "use a full refresh of that part")):
                if option in options:
                    raise ConfigurationError(f"options.{option}", "is not for an incremental sync", remedy)
        super().__init__(name=name, **kwargs)
        self.write = write
        self.full_refresh = full_refresh
        if write not in _WRITES:
            raise ConfigurationError("write", f"{write!r} is no way to write", f"choose one of {', '.join(_WRITES)}")
        self.window = window
        if not is_pending(full_refresh):
            _truth_of(full_refresh)
        if not is_pending(window):
            self._check_window()

    def document_without_run(self, lake: LakeSettings) -> dict[str, Any]:
        document, window = super().document_without_run(lake), self._check_window()
        if _truth_of(self.full_refresh):
            return document
        whole = {**document, "sync": "incremental", "options": {**document["options"], "mode": self.write}}
        return whole if window is None else {**whole, "window": window}

    def _check_window(self) -> str | None:
        """Check the window, and return it; None if there is none.

        :raises ConfigurationError: it is no window, or ``full_refresh`` is true as well
        """
        window = _window_of(self.window)
        if window is not None and not is_pending(self.full_refresh) and _truth_of(self.full_refresh):
            raise ConfigurationError("window", "goes with an incremental sync", "leave out the window, or full_refresh")
        return window


def _truth_of(value: Any) -> bool:
    """Return the value of ``full_refresh``, which a template may have rendered as text.

    :raises ConfigurationError: it is neither true nor false
    """
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError("full_refresh", f"{value!r} is neither true nor false", "write True or False")
    return text in _TRUE


def _window_of(value: Any) -> str | None:
    """Return the rendered window; None if there is none.

    :raises ConfigurationError: it is no window
    """
    text = "" if value is None else str(value).strip()
    if text.lower() in _NO_WINDOW:
        return None
    try:
        CursorWindow.parse(text)
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
    else:
        return text
    raise ConfigurationError("window", problem, remedy)
