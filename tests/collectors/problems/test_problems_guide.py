"""The file that says which kernels of each problem a guided search space begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_collectors.problems.guide import check_guide, read_guide, write_guide
from diode_collectors.problems.search_space import SearchSpace
from diode_store.candidates.default_space import GemmConfig
from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

GUIDED = SearchSpace("GUIDED", 24)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """By problem and template, in its order."""
    guide = {b"\0\xff": {"triton::mm": [GemmConfig(64, 32, 16, 3, 4), GemmConfig(16, 16, 16, 1, 2)], "tma": []}}
    write_guide(tmp_path / "guide.json", guide)
    assert read_guide(tmp_path / "guide.json") == guide
    check_guide(GUIDED, tmp_path / "guide.json")
    check_guide(SearchSpace("SAMPLE", 24), None)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"zz": {}}', '{"00": []}', '{"00": {"mm": [[1, 2]]}}', '{"00": {"mm": 1}}']
)
def test_what_is_no_guide(tmp_path: Path, text: str) -> None:
    """The message names the file."""
    path = tmp_path / "guide.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"guide.json: is no guide \(.+\); `diode tune` writes such files"):
        read_guide(path)


def test_a_guide_and_its_search_space_go_together(tmp_path: Path) -> None:
    """One without the other is refused, and so is a file that is not there."""
    path = tmp_path / "guide.json"
    write_guide(path, {})
    for space, given in ((GUIDED, None), (SearchSpace("SAMPLE", 24), path), (SearchSpace("EXHAUSTIVE"), path)):
        with pytest.raises(SettingsError, match="--search-space GUIDED:N and --guide FILE go together"):
            check_guide(space, given)
    with pytest.raises(SettingsError, match=r"absent.json: cannot read the guide \(No such file"):
        check_guide(GUIDED, tmp_path / "absent.json")
