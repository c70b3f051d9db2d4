"""Guides of guided search spaces: JSON files with the kernels to begin with for each problem.

A guide maps the hexadecimal key of a problem to templates. Each template has lists of BLOCK_M, BLOCK_N, BLOCK_K,
num_stages and num_warps, the most wanted first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from diode_collectors.problems.search_space import GUIDED
from diode_store.candidates.default_space import GemmConfig
from diode_store.errors import SettingsError, first_line
from diode_store.system.files import read_bounded, write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from diode_collectors.problems.search_space import SearchSpace

    Guide = Mapping[bytes, Mapping[str, Sequence[GemmConfig]]]


def check_guide(space: SearchSpace, path: Path | None) -> None:
    """Check that a search space has a guide exactly if it needs one, and that the guide can be read.

    Raises:
        SettingsError: the guide is missing, unused or unreadable.
    """
    if (space.kind == GUIDED) != (path is not None):
        raise SettingsError("--search-space GUIDED:N and --guide FILE go together")
    if path is not None:
        read_guide(path)


def read_guide(path: Path) -> Guide:
    """Return the guide in a file.

    Raises:
        SettingsError: the file cannot be read, or is not a guide.
    """
    try:
        content = json.loads(read_bounded(path))
        return {
            bytes.fromhex(key): {
                template: [GemmConfig(*map(int, config)) for config in configs] for template, configs in of.items()
            }
            for key, of in content.items()
        }
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the guide ({error.strerror or error})") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path}: is no guide ({first_line(error)}); `diode tune` writes such files") from None


def write_guide(path: Path, guide: Guide) -> None:
    """Write a guide; readers see the old one or the new one.

    Raises:
        OSError: the file cannot be written.
    """
    plain = {
        key.hex(): {name: [list(config) for config in of] for name, of in wanted.items()}
        for key, wanted in guide.items()
    }
    write_durably({path: json.dumps(plain).encode()})
