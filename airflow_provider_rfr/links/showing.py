"""A button that works before its task has ended: Airflow itself asks for a link's address only then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

log = logging.getLogger(__name__)


def show_link(context: Context, link: BaseOperatorLink, url: str | None) -> None:
    """Store the address where Airflow's UI looks for it; none is no news. A button is never worth a task."""
    if not url:
        return
    try:
        context["ti"].xcom_push(key=link.xcom_key, value=url)
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("the link %s can't be shown (%s)", link.name, type(error).__name__)
