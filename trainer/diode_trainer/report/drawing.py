"""Vega-Lite specifications as PNG and SVG images.

vl-convert draws them. It brings Vega with it and downloads nothing. It is large, and so an optional extra.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from diode_store.errors import ReportError
from diode_trainer.report.theme import LABEL_LIMIT_PX, LIGHT, Palette, vega_config

if TYPE_CHECKING:
    from types import ModuleType

MISSING = "a report needs packages that are not installed; run `pip install 'torch-diode[report]'`"
BEGINNING = (
    b'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="torch-diode">'
)
"""First bytes of every page that is a file of its own."""
IMAGE_WIDTH = 760
"""Width in pixels, before scaling."""
_IMAGE_SCALE = 2
_WIDER_FONT_PX = math.ceil(0.15 * LABEL_LIMIT_PX)
"""Room for labels: some readers' fonts are 15% wider than the font that vl-convert measures with."""
_NUMBERED = re.compile(r'(?:(?<=url\(#)|(?<=id="))(?:gradient_|clip)\d+(?=[)"])')


def check_installed() -> None:
    """Check that the packages that draw pictures and pages are installed.

    Raises:
        ReportError: packages of the extra ``report`` are missing.
    """
    _vl_convert()
    try:
        import jinja2  # noqa: F401 - only whether it is there
    except ImportError:
        raise ReportError(MISSING) from None


def as_image(spec: dict[str, Any], palette: Palette = LIGHT) -> bytes:
    """Return a specification as PNG, at twice its size in pixels."""
    whole = {**spec, "width": IMAGE_WIDTH}
    return bytes(
        _vl_convert().vegalite_to_png(whole, config=vega_config(palette), scale=_IMAGE_SCALE, allowed_base_urls=[])
    )


def as_vector(spec: dict[str, Any], palette: Palette = LIGHT) -> bytes:
    """Return a specification as SVG; equal specifications give equal bytes."""
    whole = {**spec, "width": IMAGE_WIDTH}
    config = vega_config(palette)
    config["padding"]["left"] += _WIDER_FONT_PX
    svg = str(_vl_convert().vegalite_to_svg(whole, config=config, allowed_base_urls=[]))
    # Vega numbers the gradients and clips of all pictures of a process in one sequence.
    found = dict.fromkeys(_NUMBERED.findall(svg))
    names = {name: f"{name.rstrip('0123456789')}{place}" for place, name in enumerate(found)}
    return _NUMBERED.sub(lambda each: names[each[0]], svg).encode()


def _vl_convert() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise ReportError(MISSING) from None
    return vl_convert
