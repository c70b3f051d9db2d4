"""List, show, check and remove models, and choose which the hook asks first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import JsonOption, make_app, print_json, print_note, print_pairs, print_rows
from diode_store.system.files import real_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.card import Card
    from diode_trainer.covered import CoveredHardware

app = make_app(__doc__)

_COLUMNS = ("name", "purpose", "type", "hardware", "problems", "regret@1", "created", "default", "path")
_KEPT = ("fit", "epoch", "training_loss", "validation_loss")
_PictureOption = Annotated[Path | None, typer.Option("--picture", help="Draw the loss curves: .png or .svg.")]
_HardwareOption = Annotated[
    str | None, typer.Option("--hardware", metavar="NAME", help="Also show how well the model knows this device.")
]
_KNOWS = "knows it"
_ERROR = "error"
"""Column for scripts; people see the errors below the table."""


@app.command("list")
def list_(hardware: _HardwareOption = None, *, as_json: JsonOption = False) -> None:
    """Show every model, in the order in which the hook asks them.

    The hook asks the first model that knows the device and the product. Defaults (`diode models default`) come first.
    If two models were evaluated on the same unseen problems, the one with lower regret@1 there comes first. Otherwise
    the lowest own regret@1 comes first. Unusable models come last. With --hardware a column tells how well each model
    knows a device. The hook asks a model that is near to the device if no other knows it, and then benchmarks more.

    Example: diode models list --hardware h200
    """
    from diode_trainer.catalogue import asked_first, known_defaults

    defaults = known_defaults()
    rows = [_row(path, defaults) for path in asked_first(defaults)]
    columns: tuple[str, ...] = _COLUMNS
    if hardware is not None:
        cards = [_card_or_none(Path(str(row[-2]))) for row in rows]
        device = device_named(hardware, [card for card in cards if card is not None])
        columns = (*_COLUMNS, _KNOWS)
        knows = [None if card is None else card.domain.standing(device).familiarity for card in cards]
        rows = [(*row[:-1], known, row[-1]) for row, known in zip(rows, knows, strict=True)]
    if as_json:
        print_rows((*columns, _ERROR), rows, as_json=True)
    elif not rows:
        print_note("no models yet; train one with `diode-train`")
    else:
        print_rows(columns, [cells for *cells, _ in rows], title="Models")
        for *_, error in rows:
            if error is not None:
                print_note(f"error: {error}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Checkpoint, NAME or PURPOSE/NAME.")],
    hardware: _HardwareOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show a model's card. With --hardware, also show how well the model knows a device, and why.

    Example: diode models show v4_model --hardware h200
    """
    from dataclasses import asdict

    from diode_trainer.artifact import card_of
    from diode_trainer.catalogue import find_model
    from diode_trainer.commands.tables import card_pairs

    path = find_model(name)
    card = card_of(path)
    if hardware is not None:
        device = device_named(hardware, [card])
        standing = card.domain.standing(device)
        of_ops = {op: found for op in card.domain.of_ops if (found := card.domain.standing(device, op)) != standing}
        if as_json:
            told = {"device": device.name, **asdict(standing), "of_ops": {op: asdict(of) for op, of in of_ops.items()}}
            print_json({**asdict(card), "path": str(path), "standing": told})
            return
        if len(card.hardware) > 1:
            print_note(f"{card.name} is a model of {len(card.hardware)} devices; its figures cover all of them")
        named = {f"on {device.name}": standing, **{f"{op} on {device.name}": of for op, of in of_ops.items()}}
        print_pairs({name: f"{of.familiarity}: {of.reason}" for name, of in named.items()})
    if as_json:
        print_json({**asdict(card), "path": str(path)})
    else:
        print_pairs({name: value for name, value in {**card_pairs(card), "path": str(path)}.items() if value})


@app.command()
def history(
    name: Annotated[str, typer.Argument(help="Checkpoint, NAME or PURPOSE/NAME.")],
    picture: _PictureOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show the losses of a model's fits in the epochs that were kept; --json shows all epochs.

    Example: diode models history my_model --picture losses.svg
    """
    from diode_trainer.catalogue import find_model
    from diode_trainer.commands import reporting
    from diode_trainer.training.history import curves, read_history

    found = read_history(find_model(name))
    if picture is not None:
        reporting.draw_history(found, picture)
    if as_json:
        print_json([point._asdict() for point in curves(found, members=True)])
        return
    kept = {(fit.fit, fit.epochs_kept) for fit in found}
    points = [point for point in curves(found) if (point.fit, point.epoch) in kept]
    print_rows(_KEPT, [[getattr(point, column) for column in _KEPT] for point in points])


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="Checkpoint, NAME or PURPOSE/NAME; all models by default.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check that models are intact, match their cards and predict finite times; exit with 1 if one does not.

    Example: diode models verify
    """
    from diode_trainer.catalogue import find_model, list_models
    from diode_trainer.judging.verify import verify as check

    paths = [find_model(name)] if name is not None else list_models()
    problems = [(path, check(path)) for path in paths]
    rows = [(path.stem, "ok" if problem is None else problem, str(path)) for path, problem in problems]
    if not rows and not as_json:
        print_note("no models yet; train one with `diode-train`")
    else:
        print_rows(("name", "result", "path"), rows, as_json=as_json)
    if any(problem is not None for _, problem in problems):
        raise typer.Exit(1)


@app.command()
def default(
    name: Annotated[str | None, typer.Argument(help="NAME or PURPOSE/NAME; without it, show the defaults.")] = None,
    *,
    unset: Annotated[
        bool, typer.Option("--unset", help="Remove this default; without a name, remove all defaults.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Let the hook ask a model before all others that know the same device, or show these defaults.

    The latest default comes first. DIODE_MODEL, or a model named in code, takes precedence.

    Example: diode models default nvidia-h100
    """
    from diode_trainer import catalogue
    from diode_trainer.catalogue import known_defaults, write_defaults

    defaults = () if unset and name is None else known_defaults()
    if name is not None:
        wanted = _default_name(name, () if not unset else defaults)
        others = tuple(each for each in defaults if each != wanted)
        defaults = others if unset else (wanted, *others)
    if name is not None or unset:
        write_defaults(catalogue.user_models_dir(), defaults)
    if as_json:
        print_json(list(defaults))
    elif defaults:
        print_rows(("asked first",), [(each,) for each in defaults])
    else:
        print_note("no default model; `diode models list` shows the order in which the hook asks models")


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="NAME or PURPOSE/NAME of your own models.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
) -> None:
    """Remove your own models, with their cards and histories. Shipped models stay.

    Example: diode models rm my_model --dry-run
    """
    from diode_trainer import catalogue
    from diode_trainer.catalogue import known_defaults, write_defaults

    found = {name: catalogue.find_own_model(name) for name in names}
    defaults = known_defaults()
    for path in dict.fromkeys(found.values()):
        files = catalogue.files_of(path)
        if not dry_run:
            catalogue.remove(path)
        print_note(f"{'would remove' if dry_run else 'removed'} {path.stem}: {', '.join(map(str, files))}")
    if not dry_run:
        gone = {catalogue.long_name(path) for path in found.values()}
        if gone & set(defaults):
            write_defaults(catalogue.user_models_dir(), [name for name in defaults if name not in gone])


def _default_name(name: str, defaults: Sequence[str]) -> str:
    """Return PURPOSE/NAME of a known model, or of one among ``defaults``."""
    from diode_store.errors import ModelError
    from diode_trainer.card import PURPOSES
    from diode_trainer.catalogue import find_model, known_models, long_name

    gone = next((each for each in defaults if name in {each, each.rpartition("/")[2]}), None)
    if gone is not None:
        return gone
    path = find_model(name)
    known = [model for purpose in PURPOSES for model in known_models(purpose)]
    if real_path(path) not in {real_path(model.path) for model in known}:
        raise ModelError(f"{path}: only a model with a card in `diode models list` can be a default")
    return long_name(path)


def device_named(name: str, cards: Sequence[Card]) -> CoveredHardware:
    """Return the device for a name: one that a model was trained on, else a known device.

    Raises:
        HardwareError: no device has that name, or several have it and no model tells them apart.
    """
    from diode_store.devices.known import ambiguous, known_devices, match_hardware, narrowed, unknown
    from diode_store.errors import NoHardwareError
    from diode_store.exchange.bundled import bundled_devices
    from diode_trainer.covered import CoveredHardware

    trained = list(dict.fromkeys(device for card in cards for device in card.hardware))
    try:
        found = match_hardware(trained, name, all_matches=True)
    except NoHardwareError:
        found = [CoveredHardware.of(device) for device in narrowed(known_devices(name), bundled_devices())]
    if len({device.identity for device in found}) > 1:
        raise ambiguous(name, found)
    if not found:
        raise unknown(name, trained)
    return found[0]


def _card_or_none(path: Path) -> Card | None:
    """Return the card of a checkpoint; None if it cannot be read."""
    from diode_store.errors import ModelError
    from diode_trainer.card import card_path, read_card

    beside = card_path(path)
    try:
        return read_card(beside) if os.path.lexists(beside) else _card_inside(path)
    except ModelError:
        return None


def _card_inside(path: Path) -> Card:
    """Return the card inside a checkpoint that has none beside it; only this needs torch."""
    from diode_trainer.artifact import card_of

    return card_of(path)


def _row(path: Path, defaults: Sequence[str]) -> tuple[object, ...]:
    """Return the cells of ``_COLUMNS``, and an error in the model's card or None."""
    from diode_store.errors import ModelError
    from diode_trainer.card import card_path, read_card
    from diode_trainer.catalogue import long_name

    beside, is_default = card_path(path), "yes" if long_name(path) in defaults else None
    try:
        card = read_card(beside) if os.path.lexists(beside) else _card_inside(path)
    except ModelError as error:
        return path.stem, path.parent.name, None, None, None, None, None, is_default, str(path), str(error)
    hardware = ", ".join(device.name for device in card.hardware)
    known = (hardware, card.data.get("problems"), card.regret_at_1, card.created_at)
    # By the name of its file, as on the command line.
    return path.stem, card.purpose, card.model_type, *known, is_default, str(path), None
