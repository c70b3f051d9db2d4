"""What SQLite's errors mean and what to do about them; light, for readers that do without SQLAlchemy."""

from __future__ import annotations

_REMEDIES = {
    "unable to open database file": "it cannot be opened; check that its folder exists and is yours to write",
    "file is not a database": "it is not an SQLite database; name another file",
    "database disk image is malformed": "it is damaged; restore it from a backup",
    "readonly database": "it is not writable by this user; check the owner and mode of the file and its folder",
    "is locked": "another process holds it locked; try again when that one is done",
    "disk is full": "its disk is full; make room and try again",
}


def reason(error: BaseException) -> str:
    """Return on one line what a database driver's error means, with the remedy if it is a known one."""
    text = " ".join(str(error).split())
    return next((remedy for said, remedy in _REMEDIES.items() if said in text), text or type(error).__name__)
