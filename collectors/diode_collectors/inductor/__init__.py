"""Inductor's objects as records; the only package of the collectors that the hook imports."""
