"""Checks of `diode doctor`: whether the models are sound, and what `import torch_diode` would do here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from diode_integration.uncovered import asks_similar_models
from diode_store.diagnosis import Finding, ok, problem, problem_of, warning
from diode_store.errors import DiodeError
from diode_store.render import counted
from diode_trainer.card import similar_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_store.diagnosis import Setup
    from diode_store.records import Hardware
    from diode_trainer.card import Card


def check_models(_setup: Setup) -> Iterator[Finding]:
    """Yield for each model whether it is sound, and whether it knows this machine's GPU."""
    from diode_trainer.catalogue import list_models
    from diode_trainer.verify import verify

    gpu, models = _gpu(), list_models()
    for path in models:
        wrong = verify(path)
        yield problem_of("model", wrong) if wrong is not None else ok("model", f"{path.stem}: {_covers(path, gpu)}")
    if not models:
        yield problem("model", "there are none", "reinstall torch-diode, or train one with `diode-train`")


def check_hook(_setup: Setup) -> Iterator[Finding]:
    """Yield whether `import torch_diode` would install the hook, and who would choose here, as the environment says."""
    from diode_integration import install

    wrong = install.missing_capability()
    if wrong is not None:
        yield problem_of("hook", wrong)
        return
    if os.environ.get("DIODE_DISABLE") == "1":
        yield warning("hook", "DIODE_DISABLE=1: `import torch_diode` does nothing", "unset it")
    gpu = _gpu()
    yield from _model_in_use(gpu)
    yield from _settings_in_use()
    yield from _picks_in_use(gpu)


def hook_finding(cards: Sequence[Card], gpu: Hardware | None) -> Finding:
    """Return what the hook would do on a GPU, or without one, with models in the order in which they are asked."""
    names = ", ".join(dict.fromkeys(card.name for card in cards))
    known = ", ".join(dict.fromkeys(device.name for card in cards for device in card.hardware))
    device = gpu or _cpu_of(cards)
    if device is None:
        return ok("hook", f"can be installed; without a GPU stock Inductor chooses ({names}: {known})")
    asked = next((card for card in cards if card.domain.covers(device)), None)
    if asked is not None:
        what = f"{', '.join(asked.ops)} in {', '.join(asked.dtypes)} on {device.name}"
        return ok("hook", f"{asked.name} chooses the kernels of {what}")
    similar = similar_device(cards, device)
    if similar and asks_similar_models():
        return ok("hook", f"models of {similar} rank for {device.name}, and benchmarks decide (DIODE_SIMILAR)")
    remedy = "measure and train one: `diode tune` (docs/your-gpu.md)"
    if similar:
        remedy += f"; or set DIODE_SIMILAR=top_k, so that models of {similar} rank and benchmarks decide"
    text = f"would abstain: the models are for {known}, not for {device.name} ({names}); stock Inductor chooses"
    return warning("hook", text, remedy)


def _model_in_use(gpu: Hardware | None) -> Iterator[Finding]:
    from diode_integration.model_set import ModelSet
    from diode_integration.options import MODEL, models_asked_for

    try:
        cards = [model.card for model in ModelSet(models_asked_for(None, None, gpu)).known]
    except DiodeError as error:
        remedy = f"correct {MODEL}, or unset it for the models that are known"
        yield problem("hook", f"no usable model: {error}", remedy)
        return
    yield hook_finding(cards, gpu)
    for card in cards:
        if card.narrow_note is not None:
            what, _, remedy = card.narrow_note.partition("; ")
            yield warning("hook", f"{card.name}: {what}", remedy)


def _settings_in_use() -> Iterator[Finding]:
    from diode_integration.options import asks_similar, policy_for, unknown_for

    try:
        mode = policy_for(None, None, None, None, None).mode
        unknown_for(None, mode)
        asks_similar(None, mode)
    except DiodeError as error:
        yield problem("hook", f"{error}", "correct the variable, or unset it; docs/hook.md lists what it may be")


def _picks_in_use(gpu: Hardware | None) -> Iterator[Finding]:
    from diode_integration.picked import VARIABLE, picks_named, read_for

    named = picks_named(None)
    if not named:
        return
    try:
        found = read_for(named, None)
    except DiodeError as error:
        yield problem_of("picks", f"{VARIABLE}: {error}", "make one with `diode lock`, or unset the variable")
        return
    text = f"{named}: {counted(len(found.picks), 'pick')} for {found.device.name}"
    if gpu is not None and gpu.key != found.device.key:
        yield warning("picks", f"{text}; none is used on {gpu.name}", f"unset {VARIABLE}, or name a file of this GPU")
    else:
        yield ok("picks", text)


def _covers(path: Path, gpu: Hardware | None) -> str:
    card = _card(path)
    known = ", ".join(device.name for device in card.hardware) or "any hardware"
    if gpu is None:
        return f"sound, for {known}"
    return f"sound, for {known}: {'fits' if card.domain.covers(gpu) else 'does not fit'} this {gpu.name}"


def _card(path: Path) -> Card:
    from diode_trainer.card import card_path, read_card

    return read_card(card_path(path))


def _cpu_of(cards: Sequence[Card]) -> Hardware | None:
    """Return this machine's CPU if a model knows it."""
    from diode_collectors.inductor.device import detect_hardware

    cpu = detect_hardware("cpu")
    knows = cpu is not None and any(card.hardware and card.domain.covers(cpu) for card in cards)
    return cpu if knows else None


def _gpu() -> Hardware | None:
    from diode_collectors.inductor.device import detect_hardware

    return detect_hardware("cuda")
