"""An error names the option whose value it shows, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diode_store.command_line.option_values import _name_option
from diode_store.errors import DiodeError


@pytest.mark.parametrize(
    ("message", "typed", "named"),
    [
        ("no model 'nope'; available: v4_model", {"--model": "nope"}, "--model: "),
        ("no model 'nvidia-h200'; available: v4_model", {"--model": "nvidia-h200", "--hardware": "h200"}, "--model: "),
        ("x/y.pt: no such file", {"--model": Path("x/y.pt")}, "--model "),
        ("cannot read x/y.pt", {"--model": Path("x/y.pt")}, "--model: "),
        ("no device is known by the name 'mm'", {"--hardware": "mm", "--op": "mm"}, ""),
        ("1 bad line; correct the files", {"--b": 1, "--m": 1}, ""),
        ("1 bad line; correct the files", {"--dataset": "bad", "--licence": "line"}, ""),
        ("mm cannot be ranked", {"--op": "mm"}, ""),
        ("environment 123456789 is none", {"--environment-id": 123456789}, "--environment-id: "),
        ("environment 7 is none", {"--environment-id": 7}, ""),
        ("--top is too large for 'x'", {"--top": 5, "--model": "x"}, ""),
        ("x/y.pt.json: no such file", {"--model": Path("x/y.pt")}, ""),
    ],
)
def test_the_option_whose_value_is_shown(message: str, typed: dict[str, Any], named: str) -> None:
    """In quotes or as a path; a bare word or number of the message is nobody's."""
    error = DiodeError(message)
    _name_option(error, list(typed.items()))
    assert str(error) == f"{named}{message}"
