"""Which kernels of each problem a guided search space begins with: a JSON file that a model's owner writes.

It maps the key of a problem (hexadecimal) to templates, and these to lists of BLOCK_M, BLOCK_N, BLOCK_K, num_stages and
num_warps, the most wanted first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from diode_collectors.problems.search_space import GUIDED
from diode_store.errors import SettingsError, first_line
from diode_store.files import write_durably
from diode_store.inductor_default import GemmConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from diode_collectors.problems.search_space import SearchSpace

    Guide = Mapping[bytes, Mapping[str, Sequence[GemmConfig]]]


def check_guide(space: SearchSpace, path: Path | None) -> None:
    """Check that a search space has a guide exactly if it needs one, and that it can be read.

    Raises:
        SettingsError: one of these is not so.
    """
    if (space.kind == GUIDED) != (path is not None):
        raise SettingsError("--search-space GUIDED:N and --guide FILE go together")
    if path is not None:
        read_guide(path)


def read_guide(path: Path) -> Guide:
    """Return what a file says.

    Raises:
        SettingsError: it cannot be read, or is no guide.
    """
    try:
        content = json.loads(path.read_text())
        return {
            bytes.fromhex(key): {
                template: [GemmConfig(*map(int, config)) for config in configs] for template, configs in of.items()
            }
            for key, of in content.items()
        }
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the guide ({error.strerror or error})") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path}: is no guide ({first_line(error)}); `diode tune` writes such files") from None


def write_guide(path: Path, guide: Guide) -> None:
    """Write a guide; readers see the old one or the new one.

    Raises:
        OSError: it cannot be written.
    """
    plain = {
        key.hex(): {name: [list(config) for config in of] for name, of in wanted.items()}
        for key, wanted in guide.items()
    }
    write_durably({path: json.dumps(plain).encode()})
