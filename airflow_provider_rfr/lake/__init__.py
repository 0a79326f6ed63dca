"""Catalogs, tables, schemas and files: the only package that uses PyIceberg.

Import its modules one by one: a task of a round needs only :mod:`.files`, and PyIceberg takes a second to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The address and the settings of a lake's catalog. The class is here so that hooks need no PyIceberg to create it.

    :ivar name: the catalog's name; Spark has to use the same one for the same catalog
    :ivar properties: PyIceberg's catalog properties (``type``, ``uri``, ``warehouse``, credentials);
        they may hold secrets, so they are left out of ``repr``
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
