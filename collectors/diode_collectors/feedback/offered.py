"""Remembers which choices Inductor was to choose from.

A choice that does not compile is dropped before any feedback saver is called: it is neither among the timings nor
among the choices of the event. Inductor's preprocessing functions see the whole list before, for every op. Ours
changes nothing. A list may wait for its event until the scheduler runs, behind any number of others, so it is found
again by the choices themselves, and held only as long as Inductor holds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class ChoiceList:
    """One list of choices that Inductor offered, and what became of it: ``fate``, which its owner sets."""

    def __init__(self, choices: Sequence[Any]) -> None:
        """Hold ``choices`` without keeping them alive."""
        self._choices = [ref(choice) for choice in choices]
        self.fate: Any = None

    def lost(self, seen: Iterable[Any]) -> list[Any]:
        """Return the choices that Inductor marked as failed and that are not among ``seen``.

        Where Inductor compiles for several sizes of one symbol, each size has choices and an event of its own.
        """
        known = set(map(id, seen))
        alive = [choice for held in self._choices if (choice := held()) is not None]
        sizes = {_hint_override(c) for c in alive if id(c) in known and hasattr(c, "hint_override")}
        return [
            choice
            for choice in alive
            if getattr(choice, "failed", False) is True
            and id(choice) not in known
            and (not sizes or _hint_override(choice) in sizes)
        ]


class OfferedChoices:
    """Every list of choices that Inductor's autotuner is given, while it is registered."""

    def __init__(self, on_offer: Callable[[Sequence[Any], ChoiceList], None]) -> None:
        """Call ``on_offer`` with each list; it must not raise."""
        self._on_offer = on_offer
        self._offers: WeakKeyDictionary[Any, ChoiceList] = WeakKeyDictionary()
        self._preprocess = self._remember  # one bound method: removing goes by identity

    def register(self) -> None:
        """Begin to remember."""
        from torch._inductor.select_algorithm import add_preprocessing_fn

        add_preprocessing_fn(self._preprocess)

    def unregister(self) -> None:
        """Remember no more; Inductor's own preprocessing and that of others stays."""
        from torch._inductor.select_algorithm import get_algorithm_selector_cache

        cache = get_algorithm_selector_cache()
        # A new list: a compile may be running over the old one.
        cache.preprocessing_fns = [known for known in cache.preprocessing_fns if known is not self._preprocess]
        self._offers.clear()

    def __len__(self) -> int:
        """Return how many choices are remembered."""
        return len(self._offers)

    def of(self, choices: Iterable[Any]) -> ChoiceList | None:
        """Return the list that the first known one of ``choices`` was in."""
        for choice in choices:
            try:
                offer = self._offers.get(choice)
            except TypeError:  # what cannot be a key was never remembered
                continue
            if offer is not None:
                return offer
        return None

    def _remember(self, choices: Any) -> Any:
        """Take note of a list of choices and return it unchanged."""
        try:
            offer = ChoiceList(choices)
            for choice in choices:
                self._offers[choice] = offer
            self._on_offer(choices, offer)
        except Exception:  # noqa: BLE001, S110 - in the user's compile: these choices stay unknown, nothing worse
            pass
        return choices


def _hint_override(choice: Any) -> Any:
    return getattr(choice, "hint_override", None)
