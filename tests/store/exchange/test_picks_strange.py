"""A picks file may be named that nobody expects to be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_store.errors import PicksError
from diode_store.exchange.picks_reading import read_picks
from strange import everything_in, strange_entries

if TYPE_CHECKING:
    from pathlib import Path


def test_each_is_refused_in_a_line(tmp_path: Path) -> None:
    """No entry is waited for, taken into memory whole, or changed, and the error names it."""
    folder, outside = tmp_path / "picks", tmp_path / "outside"
    folder.mkdir()
    names = strange_entries(folder, outside, ".json")
    before = everything_in(folder)
    for name in names:
        with pytest.raises(PicksError) as caught:
            read_picks(folder / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value).replace(name, "")
    assert everything_in(folder) == before
