"""Families of problems: the layers of public models, for many numbers of tokens."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from diode_collectors.problems.family_data import FAMILIES as FIRST_FAMILIES
from diode_collectors.problems.family_data_language import LANGUAGE_FAMILIES
from diode_collectors.problems.family_data_other import OTHER_FAMILIES
from diode_collectors.problems.problem import SweepProblem
from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_collectors.problems.family_layers import Family

FAMILIES = (*FIRST_FAMILIES, *LANGUAGE_FAMILIES, *OTHER_FAMILIES)
_BY_NAME = {family.name: family for family in FAMILIES}


def families() -> tuple[Family, ...]:
    """Return all families."""
    return FAMILIES


def find_family(name: str) -> Family:
    """Return the family of that name.

    Raises:
        SettingsError: it is unknown; the message lists the known ones.
    """
    family = _BY_NAME.get(name.strip().lower())
    if family is None:
        close = difflib.get_close_matches(name.strip().lower(), _BY_NAME, n=1)
        meant = f" did you mean {close[0]}?" if close else ""
        raise SettingsError(f"unknown family {name!r};{meant} known families: {', '.join(_BY_NAME)}")
    return family


def family_problems(name: str, dtypes: Sequence[tuple[str, bool]] = (("bfloat16", False),)) -> list[SweepProblem]:
    """Return the different problems of a family, layer by layer.

    Args:
        name: the family's name.
        dtypes: as ``parse_dtype`` returns them.

    Raises:
        SettingsError: there is no such family.
    """
    family = find_family(name)
    found = [
        SweepProblem(layer.op, m, layer.n, layer.k, layer.b, dtype, layer.layout, tf32, f"{family.name}/{layer.name}")
        for dtype, tf32 in dtypes
        for layer in family.layers
        for m in layer.m or family.m
    ]
    return list(dict.fromkeys(found))
