"""A report as one HTML page that needs nothing but itself.

Everything is inside: style, pictures' data, and the script that draws them, so the page opens from a file. A
content security policy in its head forbids the browser to load anything or to run any script but these, so a page
that comes from elsewhere cannot do more either. Whatever comes from data is escaped by the template or, in the
pictures' JSON, by ``_json``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from diode_trainer.report import theme
from diode_trainer.report.rendering import scripts

if TYPE_CHECKING:
    from diode_trainer.report.content import Content

BEGINNING = (
    b'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy"'
)
"""What every page begins with."""
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def as_page(content: Content) -> str:
    """Return the page; equal contents give equal pages."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    own = [scripts(), _file("page.js")]
    return environment.from_string(_file("page.html")).render(
        content=content,
        policy=_policy(own),
        style=Markup(_style()),  # noqa: S704 - our own file
        scripts=[Markup(script) for script in own],  # noqa: S704 - likewise, and vl-convert's
        pictures=Markup(_json(_pictures(content))),  # noqa: S704 - escaped
    )


def _pictures(content: Content) -> dict[str, Any]:
    """Return what the script draws: titles and directions are in the page's own text."""
    drawn = {picture.name: {k: v for k, v in picture.spec.items() if k != "title"} for picture in content.pictures}
    configs = {"light": theme.vega_config(theme.LIGHT), "dark": theme.vega_config(theme.DARK)}
    return {"specs": drawn, "configs": configs}


def _style() -> str:
    light, dark = theme.css_variables(theme.LIGHT), theme.css_variables(theme.DARK)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{_file('page.css')}"


def _policy(own: list[str]) -> str:
    """Return the content security policy: these scripts by their hashes, styles of the page, nothing from elsewhere."""
    digests = (hashlib.sha256(script.encode()).digest() for script in own)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none';"
        " form-action 'none'"
    )


def _json(value: object) -> str:
    """Return JSON that may stand in a script element: no character of it can end the element."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).translate(_ESCAPES)


def _file(name: str) -> str:
    return files("diode_trainer.report").joinpath(name).read_text(encoding="utf-8")
