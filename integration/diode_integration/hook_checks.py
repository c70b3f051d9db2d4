"""Checks of `diode doctor`: the soundness of the models, and the effect of `import torch_diode` on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from diode_store.command_line.diagnosis import Finding, ok, problem, problem_of, warning
from diode_store.command_line.render import counted
from diode_store.devices.known import describe
from diode_store.errors import DiodeError
from diode_trainer.covered import nearest_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from diode_integration.settings import HookSettings
    from diode_store.command_line.diagnosis import Setup
    from diode_store.records import Hardware
    from diode_trainer.card import Card


def check_models(_setup: Setup) -> Iterator[Finding]:
    """Yield a finding for each model: whether the model is sound, and whether it knows this machine's GPU."""
    from diode_trainer.catalogue import list_models
    from diode_trainer.judging.verify import verify

    gpu, models = _gpu(), list_models()
    for path in models:
        wrong = verify(path)
        yield problem_of("model", wrong) if wrong is not None else ok("model", f"{path.stem}: {_covers(path, gpu)}")
    if not models:
        yield problem("model", "there are none", "reinstall torch-diode, or train one with `diode-train`")


def check_hook(_setup: Setup) -> Iterator[Finding]:
    """Yield findings on `import torch_diode`: whether it would install the hook, and who would choose here."""
    from diode_integration.inductor.process import missing_capability
    from diode_integration.settings import HookSettings

    wrong = missing_capability()
    if wrong is not None:
        yield problem_of("hook", wrong)
        return
    if os.environ.get("DIODE_DISABLE") == "1":
        yield warning("hook", "DIODE_DISABLE=1: `import torch_diode` does nothing", "unset it")
    gpu = _gpu()
    settings = HookSettings.of()
    yield from _model_in_use(settings, gpu)
    yield from _settings_in_use(settings)
    yield from _picks_in_use(settings, gpu)


def check_seams(_setup: Setup) -> Iterator[Finding]:
    """Yield who chooses kernels at each seam of Inductor while the hook is installed."""
    from diode_integration.inductor.process import missing_capability

    if missing_capability() is not None:
        return
    from diode_integration.choices import DiodeInductorChoices
    from diode_integration.inductor.seams import OURS, custom_ops, seams
    from diode_integration.install import install
    from diode_integration.settings import HookSettings

    with install(DiodeInductorChoices(settings=HookSettings())):
        found = seams()
    for owner in dict.fromkeys(seam.owner for seam in found if not seam.is_foreign):
        names = ", ".join(seam.name for seam in found if seam.owner == owner)
        yield ok("seams", f"{owner}: {names}")
    for seam in found:
        if seam.is_foreign:
            text = f"{seam.name}: {seam.owner} decides, and {OURS} does not"
            yield warning("seams", text, "remove that package or table to have torch-diode decide")
    if ops := custom_ops():
        text = f"{counted(len(ops), 'custom op')} with autotuning of their own: {', '.join(ops)}"
        yield warning("seams", text, "their kernels are not covered: Inductor times them at each compile")


def hook_finding(cards: Sequence[Card], gpu: Hardware | None) -> Finding:
    """Return a finding on the hook's work with or without a GPU, by models in the order in which they are asked."""
    names = ", ".join(dict.fromkeys(card.name for card in cards))
    known = ", ".join(dict.fromkeys(device.name for card in cards for device in card.hardware))
    device = gpu or _cpu_of(cards)
    if device is None:
        return ok("hook", f"can be installed; without a GPU stock Inductor chooses ({names}: {known})")
    standings = [(card.domain.standing(device), card) for card in cards]
    remedy = "measure and train one with `diode tune`"
    for standing, card in standings:
        if standing.is_known:
            return ok("hook", f"{card.name} chooses the kernels of {_known_to(card, device)}")
    if near := nearest_first(standings):
        standing, card = near[0]
        how = f"{card.name} ranks the kernels of {device.name} with a wider margin (zero mode keeps the vendor kernel)"
        return warning("hook", f"{how}: {standing.reason}", remedy)
    text = f"would abstain: the models are for {known}, not for {describe([device])} ({names}); stock Inductor chooses"
    return warning("hook", text, remedy)


def _known_to(card: Card, device: Hardware) -> str:
    """Return the ops and dtypes that a model knows on a device, and those that it is near to knowing."""
    standings = {op: card.domain.standing(device, op) for op in card.ops}
    known = [op for op, standing in standings.items() if standing.is_known]
    near = [op for op, standing in standings.items() if standing.is_near]
    dtypes = sorted({dtype for op in known for dtype in card.domain.dtypes_of(op)})
    wider = f"; it ranks those of {', '.join(near)} with a wider margin" if near else ""
    return f"{', '.join(known)} in {', '.join(dtypes)} on {device.name}{wider}"


def _model_in_use(settings: HookSettings, gpu: Hardware | None) -> Iterator[Finding]:
    from diode_integration.decide.models import ModelSet

    try:
        cards = [model.card for model in ModelSet(settings.known_models(gpu)).known]
    except DiodeError as error:
        remedy = "correct DIODE_MODEL, or unset it for the models that are known"
        yield problem("hook", f"no usable model: {error}", remedy)
        return
    yield hook_finding(cards, gpu)
    for card in cards:
        if card.narrow_note is not None:
            what, _, remedy = card.narrow_note.partition("; ")
            yield warning("hook", f"{card.name}: {what}", remedy)


def _settings_in_use(settings: HookSettings) -> Iterator[Finding]:
    try:
        settings.unknown_for(settings.policy_for(None).mode)
        settings.clock_in_use()
    except DiodeError as error:
        yield problem("hook", f"{error}", "correct the variable, or unset it")


def _picks_in_use(settings: HookSettings, gpu: Hardware | None) -> Iterator[Finding]:
    variable = "DIODE_PICKS"
    try:
        found = settings.read_picks(None)
    except DiodeError as error:
        yield problem_of("picks", error, "make one with `diode lock`, or unset the variable")
        return
    if found is None:
        return
    text = f"{found.file}: {counted(len(found.picks), 'pick')} for {found.device.name}"
    if gpu is not None and gpu.key != found.device.key:
        yield warning("picks", f"{text}; none is used on {gpu.name}", f"unset {variable}, or name a file of this GPU")
    else:
        yield ok("picks", text)


def _covers(path: Path, gpu: Hardware | None) -> str:
    card = _card(path)
    known = ", ".join(device.name for device in card.hardware) or "any hardware"
    if gpu is None:
        return f"sound, for {known}"
    standing = card.domain.standing(gpu)
    why = f" ({standing.reason})" if standing.is_near else ""
    return f"sound, for {known}; this {gpu.name} is {standing.familiarity}{why}"


def _card(path: Path) -> Card:
    from diode_trainer.card import card_path, read_card

    return read_card(card_path(path))


def _cpu_of(cards: Sequence[Card]) -> Hardware | None:
    """Return this machine's CPU if a model knows it, or is near to it."""
    from diode_collectors.inductor.device import detect_hardware

    cpu = detect_hardware("cpu")
    knows = cpu is not None and any(card.hardware and card.domain.standing(cpu).nearest for card in cards)
    return cpu if knows else None


def _gpu() -> Hardware | None:
    from diode_collectors.inductor.device import detect_hardware

    return detect_hardware("cuda")
