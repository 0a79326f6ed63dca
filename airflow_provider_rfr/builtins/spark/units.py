"""Work on a table's data files cut into units: as much as a killed run may lose of what it has begun."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_rfr.builtins.spark.tasks import Unit
from airflow_provider_rfr.lake.input_files import InputFile
from airflow_provider_rfr.lake.work_files import FinishedUnit

MAX_BYTES = 128 * 1024 * 1024
_SHARES = 64


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left to do of a piece of work, and what earlier runs of it have done."""

    finished: tuple[FinishedUnit, ...]
    units: tuple[Unit, ...]


def remaining(inputs: Sequence[InputFile], noted: Iterable[FinishedUnit]) -> Remaining:
    """Keep the finished units whose inputs are all still there, each input once; cut the rest anew."""
    left = {each.identity: each for each in inputs}
    kept = []
    for unit in noted:
        if unit.inputs and all(each in left for each in unit.inputs):
            kept.append(unit)
            for each in unit.inputs:
                del left[each]
    return Remaining(tuple(kept), cut(tuple(left.values()), sum(each.size for each in inputs)))


def cut(inputs: Sequence[InputFile], whole: int) -> tuple[Unit, ...]:
    """Units in the inputs' order: of one file, or of small ones that together are a small share of the whole.

    :param whole: bytes of all inputs, finished ones too
    """
    limit = min(MAX_BYTES, whole // _SHARES)
    found: list[list[InputFile]] = []
    size = 0
    for each in inputs:
        if not found or size + each.size > limit:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.size
    return tuple(Unit(_name(each), tuple(each)) for each in found)


def _name(inputs: Iterable[InputFile]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for each in inputs:
        digest.update(each.identity.encode())
        digest.update(b"\0")
    return digest.hexdigest()
