"""The options of `diode evaluate` that say what is judged and what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class JudgingOptions:
    """What is judged, and what is shown of it."""

    family: Annotated[
        list[str] | None,
        typer.Option(help="Judge by the problems of this family alone (repeatable); baselines learn from the others."),
    ] = None
    unseen: Annotated[bool, typer.Option("--unseen", help="Leave out problems that the model was trained on.")] = False
    no_vendor: Annotated[bool, typer.Option("--no-vendor", help="Count Triton choices only.")] = False
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="SLICE", help="Show parts (repeatable), such as op, alignment, time or family."),
    ] = None
    top_n_worst: Annotated[int, typer.Option(min=0, help="List this many of the costliest choices.")] = 0
