"""Remember the choices that Inductor offered.

Inductor drops a choice that does not compile before it calls any feedback saver. Such a choice is missing from the
timings and from the event's choices. Inductor's preprocessing functions see the whole list of every op earlier, so we
register one that changes nothing. An event may follow its list much later, so the list is found again by its choices.
A list is held only as long as Inductor holds the choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class ChoiceList:
    """One list of choices that Inductor offered, with the ``fate`` that its owner sets."""

    def __init__(self, choices: Sequence[Any]) -> None:
        """Hold ``choices`` without keeping them alive."""
        self._choices = [ref(choice) for choice in choices]
        self.fate: Any = None

    def lost(self, seen: Iterable[Any]) -> list[Any]:
        """Return the choices that Inductor marked as failed and that are not among ``seen``.

        If Inductor compiles for several sizes of one symbol, each size has its own choices and event.
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
    """Remembers every list of choices that Inductor's autotuner gets while this is registered."""

    def __init__(self, on_offer: Callable[[Sequence[Any], ChoiceList], None]) -> None:
        """Call ``on_offer``, which must not raise, with each list."""
        self._on_offer = on_offer
        self._offers: WeakKeyDictionary[Any, ChoiceList] = WeakKeyDictionary()
        self._preprocess = self._remember  # one bound method: removing goes by identity

    def register(self) -> None:
        """Start to remember."""
        from torch._inductor.select_algorithm import add_preprocessing_fn

        add_preprocessing_fn(self._preprocess)

    def unregister(self) -> None:
        """Stop remembering; all other preprocessing functions stay."""
        from torch._inductor.select_algorithm import get_algorithm_selector_cache

        cache = get_algorithm_selector_cache()
        # A new list: a compile may be iterating over the old one.
        cache.preprocessing_fns = [known for known in cache.preprocessing_fns if known is not self._preprocess]
        self._offers.clear()

    def __len__(self) -> int:
        """Return the number of remembered choices."""
        return len(self._offers)

    def of(self, choices: Iterable[Any]) -> ChoiceList | None:
        """Return the list that held the first known one of ``choices``."""
        for choice in choices:
            try:
                offer = self._offers.get(choice)
            except TypeError:  # what cannot be a key was never remembered
                continue
            if offer is not None:
                return offer
        return None

    def _remember(self, choices: Any) -> Any:
        """Note a list of choices and return it unchanged."""
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
