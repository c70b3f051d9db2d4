"""Hold the prose of the project to its budget: headless docstrings and long sentences may only become fewer.

Without an argument the script fails above or below the budget in pyproject.toml. With files, it prints every place
that breaks a rule.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADLESS = frozenset(
    {"As", "By", "For", "From", "How", "In", "Of", "That", "To", "What", "Where", "Whether", "Which", "Whose", "With"}
)
"""Words that no docstring begins with: a docstring begins with a verb or a noun."""
MOST_WORDS = 25
_SENTENCE_END = re.compile(r"(?<=[.;!?])\s+")
_CODE_BLOCK = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
_NO_PROSE = ("|", "#", "[", "!", "<")
"""Beginnings of Markdown lines that are no sentences: tables, headings, links, pictures, HTML."""


class Place(NamedTuple):
    """A docstring or sentence to edit."""

    line: int
    is_headless: bool
    text: str


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the one-line text of each docstring, up to its arguments."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else []:
            match item:
                case ast.Expr(ast.Constant(str(text))):
                    yield item.lineno, " ".join(text.split("Args:")[0].split())


def paragraphs(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the one-line text of each paragraph outside code blocks."""
    text = _CODE_BLOCK.sub(lambda block: "\n" * block.group().count("\n"), markdown)
    first, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip() and not line.lstrip().startswith(_NO_PROSE):
            first = first if lines else number
            lines.append(line.strip())
        elif lines:
            yield first, " ".join(lines)
            lines = []


def places(path: Path) -> Iterator[Place]:
    """Yield each place of a Python or Markdown file that breaks a rule."""
    text = path.read_text(encoding="utf-8")
    is_python = path.suffix == ".py"
    for line, prose in docstrings(text) if is_python else paragraphs(text):
        if is_python and prose.split(" ", 1)[0] in HEADLESS:
            yield Place(line, is_headless=True, text=prose)
        for sentence in _SENTENCE_END.split(prose):
            if len(sentence.split()) > MOST_WORDS:
                yield Place(line, is_headless=False, text=sentence)


def main() -> int:
    """Print the places of the named files, or compare the project's counts with the budget."""
    if names := sys.argv[1:]:
        for name in names:
            for place in places(Path(name)):
                print(f"{name}:{place.line}: {'headless' if place.is_headless else 'long'}: {place.text[:100]}")
        return 0
    budget = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["prose"]
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], capture_output=True, text=True, check=True)  # noqa: S607
    paths = [Path(name) for name in listed.stdout.split() if not name.startswith("tests/")]
    found = [place for path in paths for place in places(path)]
    counts = {"headless": sum(place.is_headless for place in found)}
    counts["long"] = len(found) - counts["headless"]
    if counts == budget:
        return 0
    for kind, count in counts.items():
        if count > budget[kind]:
            print(f"{count} {kind} where {budget[kind]} are allowed; `python .ci/prose.py FILE...` names them")
        elif count < budget[kind]:
            print(f"{count} {kind}, not {budget[kind]}: set {kind} = {count} in pyproject.toml, [tool.prose]")
    return 1


if __name__ == "__main__":
    sys.exit(main())
