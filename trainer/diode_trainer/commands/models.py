"""List, show and check models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.console import JsonOption, make_app, print_json, print_note, print_pairs, print_rows

if TYPE_CHECKING:
    from diode_trainer.card import Card

app = make_app(__doc__)

_COLUMNS = ("name", "purpose", "type", "hardware", "problems", "regret@1", "created", "path")
_KEPT = ("fit", "epoch", "training_loss", "validation_loss")
_PictureOption = Annotated[Path | None, typer.Option("--picture", help="Draw all of them: .png or .svg.")]
_ERROR = "error"
"""A column for scripts; for people the errors are printed below the table."""


@app.command("list")
def list_(*, as_json: JsonOption = False) -> None:
    """Show every model: your own first, then those that ship with torch-diode.

    Example: diode models list --json
    """
    from diode_trainer.catalogue import list_models

    rows = [_row(path) for path in list_models()]
    if as_json:
        print_rows((*_COLUMNS, _ERROR), rows, as_json=True)
    elif not rows:
        print_note("no models yet; train one with `diode-train`")
    else:
        print_rows(_COLUMNS, [cells for *cells, _ in rows], title="Models")
        for *_, error in rows:
            if error is not None:
                print_note(f"error: {error}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A checkpoint, NAME or PURPOSE/NAME.")], *, as_json: JsonOption = False
) -> None:
    """Show a model's card.

    Example: diode models show v2_model
    """
    from dataclasses import asdict

    from diode_trainer.artifact import card_of
    from diode_trainer.catalogue import find_model
    from diode_trainer.commands.tables import card_pairs

    path = find_model(name)
    card = card_of(path)
    if as_json:
        print_json({**asdict(card), "path": str(path)})
    else:
        print_pairs({name: value for name, value in {**card_pairs(card), "path": str(path)}.items() if value})


@app.command()
def history(
    name: Annotated[str, typer.Argument(help="A checkpoint, NAME or PURPOSE/NAME.")],
    picture: _PictureOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show how the fits of a model went: its losses after the epoch that was kept, all of them with --json.

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
    name: Annotated[str | None, typer.Argument(help="A checkpoint, NAME or PURPOSE/NAME; else all.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check that models are intact, match their cards and predict finite times; exit with 1 if one does not.

    Example: diode models verify
    """
    from diode_trainer.catalogue import find_model, list_models
    from diode_trainer.verify import verify as check

    paths = [find_model(name)] if name is not None else list_models()
    problems = [(path, check(path)) for path in paths]
    rows = [(path.stem, "ok" if problem is None else problem, str(path)) for path, problem in problems]
    if not rows and not as_json:
        print_note("no models yet; train one with `diode-train`")
    else:
        print_rows(("name", "result", "path"), rows, as_json=as_json)
    if any(problem is not None for _, problem in problems):
        raise typer.Exit(1)


def _card_inside(path: Path) -> Card:
    """Return the card of a checkpoint that lies alone; reading it takes torch, so it is left to those."""
    from diode_trainer.artifact import card_of

    return card_of(path)


def _row(path: Path) -> tuple[object, ...]:
    """Return the cells of ``_COLUMNS``, then what is wrong with the model's card, or None."""
    from diode_store.errors import ModelError
    from diode_trainer.card import card_path, read_card

    beside = card_path(path)
    try:
        card = read_card(beside) if beside.exists() else _card_inside(path)
    except ModelError as error:
        return path.stem, path.parent.name, None, None, None, None, None, str(path), str(error)
    hardware = ", ".join(device.name for device in card.hardware)
    known = (hardware, card.data.get("problems"), card.regret_at_1, card.created_at)
    # By its file, as on the command line.
    return path.stem, card.purpose, card.model_type, *known, str(path), None
