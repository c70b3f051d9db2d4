"""An evaluation as one HTML file that needs no other.

The file holds its style, the pictures' data and the scripts that draw them. Its content security policy forbids the
browser to load anything else or to run any other script.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diode_trainer.report.evaluation.content import Content

_POLICY = (
    "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)
_SCRIPTS = ("vega/vega.js", "draw.js")


def as_page(content: Content) -> str:
    """Return the page; equal contents give equal pages."""
    from markupsafe import Markup

    from diode_trainer.report.html import STATIC, environment, shown, style

    scripts = [(STATIC / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return (
        environment()
        .get_template("page.html")
        .render(
            title=content.heading,
            text=content.summary,
            menu=[(f"#{section.name}", section.title, False) for section in content.sections],
            shown=list(shown(content.parts)),
            style=style(),
            policy=_POLICY.format(hashes=" ".join(f"'sha256-{digest}'" for digest in digests)),
            scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own files
            formats=(),
        )
    )
