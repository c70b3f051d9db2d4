"""Content keys: the same digest for the same content, on any machine."""

from __future__ import annotations

import hashlib
import json

KEY_BYTES = 16
"""Length of a content key (BLAKE2b with a 128-bit digest) and of a measurement's uid, in bytes."""

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def content_key(kind: str, version: int, content: object) -> bytes:
    """Return the 16-byte key of ``content``.

    Args:
        kind: the kind of record; equal contents of two kinds have different keys.
        version: version of the canonical encoding; raise it when the content's layout changes.
        content: nested lists, strings, numbers, booleans and None; mappings are sorted by key.
    """
    text = _canonical([f"diode/{kind}/{version}", content])
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()
