"""The options of `diode-train`; its recipe's defaults are in ``diode_trainer.commands.recipes``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from diode_trainer.data.held_out import Split

MOST_LEARNING_RATE = 1.0
MOST_WEIGHT_DECAY = 100.0


class ModelType(StrEnum):
    """What can be trained."""

    DEEP = "deep"
    BASE = "base"


FoldsOption = Annotated[
    int,
    typer.Option(
        "--folds", min=0, max=50, help="5: evaluate on five folds; 1: on one that is held out; 0: not at all."
    ),
]
SplitOption = Annotated[
    Split,
    typer.Option(
        "--split",
        help="What folds hold out: problems, or families of them; as many folds as families hold out one at a time.",
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="The model's name.", show_default="the output file's, else the hardware's"),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "--model", "-o", help="File (.pt) or folder to write; else your models folder."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a model that is there.")]
WarmStartOption = Annotated[
    str,
    typer.Option(
        "--warm-start",
        metavar="MODEL",
        help="Begin with this model of other devices, and learn again some of what it knows; none: begin with nothing; "
        "auto: with the shipped model, for a device of its vendor that it does not know, unless the network is given a "
        "size (--hidden-dim, --num-layers, --members).",
    ),
]
ModelTypeOption = Annotated[ModelType, typer.Option("--model-type", help="What to train.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Equal seeds give equal models.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with the fits of a run of this command that was interrupted.")
]
TensorboardOption = Annotated[
    Path | None,
    typer.Option("--tensorboard", "--log-dir", help="Folder for TensorBoard's event files; needs its package."),
]
HistoryPictureOption = Annotated[
    Path | None,
    typer.Option("--history-picture", metavar="FILE", help="Draw the losses of each fit: .png or .svg."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")]


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Changes to a recipe; None leaves its default."""

    epochs: Annotated[int | None, typer.Option("--num-epochs", min=1, max=100_000, help="Most epochs.")] = None
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, max=100_000, help="Problems a step.")] = None
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", min=0, max=MOST_LEARNING_RATE, help="Peak.")
    ] = None
    weight_decay: Annotated[
        float | None, typer.Option("--weight-decay", min=0, max=MOST_WEIGHT_DECAY, help="Of AdamW.")
    ] = None
    patience: Annotated[
        int | None, typer.Option("--patience", min=0, max=100_000, help="Epochs without improvement; 0: never stop.")
    ] = None
    hidden_dim: Annotated[int | None, typer.Option("--hidden-dim", min=1, max=1024, help="Width of a layer.")] = None
    num_layers: Annotated[int | None, typer.Option("--num-layers", min=1, max=16, help="Hidden layers.")] = None
    members: Annotated[
        int | None,
        typer.Option("--members", min=1, max=64, help="Networks that a deep model averages, 6 unless given."),
    ] = None

    @property
    def gives_dimensions(self) -> bool:
        """Whether the network is given a size, which one that a fit begins with has already."""
        return any(given is not None for given in (self.hidden_dim, self.num_layers, self.members))


_WHERE = frozenset(
    {
        "database",
        "output",
        "force",
        "device",
        "resume",
        "tensorboard",
        "history_picture",
        "report",
        "report_pictures",
        "as_json",
    }
)
"""Options that say where a model is fitted or stored, not what it is."""


def what_was_asked(context: typer.Context) -> dict[str, object]:
    """Return the options that determine the model, for the command line that makes it again."""
    options = (parameter for parameter in context.command.params if parameter.name not in _WHERE)
    return {option.opts[0]: context.params[option.name] for option in options if option.name in context.params}
