"""Catalogs, tables, schemas and files: the only package that uses PyIceberg.

Modules are imported one by one: a task of a round needs only :mod:`.files`, without PyIceberg's second of imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The address and the settings of a lake's catalog. It is here because hooks make it without PyIceberg.

    :ivar name: the catalog's name; Spark has to use the same one for the same catalog
    :ivar properties: PyIceberg's catalog properties (``type``, ``uri``, ``warehouse``, credentials);
        they may hold secrets, so they are left out of ``repr``
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
