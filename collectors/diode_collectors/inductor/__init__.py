"""Inductor's objects as records; the hook imports this room, and no other of the collectors."""
