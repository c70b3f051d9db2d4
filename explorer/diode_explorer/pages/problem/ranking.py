"""What a model says of a problem's configs, beside the times that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_explorer.judging.models import Load, model_asked, model_named, names_sql
from diode_explorer.pages.page import NotThereError, Parameter
from diode_explorer.pages.parts import Fact, Facts, Note
from diode_explorer.pages.problem.picture import config_text
from diode_explorer.pages.questions import Answer, Extended
from diode_store.columns import INT_COLUMNS, ConfigColumns
from diode_store.render import counted
from diode_trainer.judging.metrics import KS, regrets
from diode_trainer.uncertainty import FEWEST_MEMBERS, Outlook

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from diode_explorer.judging.models import KnownModel, LoadedModel
    from diode_explorer.pages.page import Asked
    from diode_explorer.pages.questions import Question
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.scoring import Prediction, Scorer

_NONE = "(none)"
MODEL = Parameter("model", "model", options=lambda _filters: names_sql(_NONE), unset="the hook's")
COLUMNS = ("predicted_us", "model_place")
"""What a ranking adds to the columns of a problem's times."""


@dataclass(frozen=True)
class Ranking:
    """A model that is asked about one problem."""

    model: KnownModel
    loaded: LoadedModel
    scorer: Scorer
    shape: ProblemShape
    hardware: Hardware

    def predict(self, times: Answer) -> Prediction:
        """Return what is predicted for measured configs."""
        columns = ConfigColumns.from_rows(
            [
                (row["template"], *(row[name] or 0 for name in INT_COLUMNS), bool(row["allow_tf32"]))
                for row in times.dicts()
            ]
        )
        return self.scorer.predict(self.shape, self.hardware, columns, exact=True)

    def beside(self, question: Question, times: Answer, prediction: Prediction) -> Extended:
        """Return a query with what is predicted for the configs that it finds, which is known of those in ``times``."""
        return Extended(
            question, lambda found: _with_columns(found, prediction if found is times else self.predict(found))
        )

    def facts(self, asked: Asked, times: Answer, prediction: Prediction) -> Facts | Note:
        """Return what the model says of the configs that were measured, and what following it costs."""
        rows, name, predicted = times.dicts(), self.model.name, prediction.runtime_us
        if not np.isfinite(predicted).any():
            return Note(f"{name} knows none of the kernels that were measured.")
        measured = np.array([row["runtime_us"] for row in rows])
        lost = dict(zip(KS, regrets(measured, prediction.turns(np.arange(len(measured)))), strict=True))
        first = int(predicted.argmin())
        values = {"model": name, "device": self.hardware.name}
        how = "chosen above" if "model" in asked.filters else "the hook asks it"
        facts = [
            Fact("model", name, how, asked.address("model", values)),
            Fact("its first pick", config_text(rows[first]), _times_text(predicted[first], measured[first])),
            Fact("lost by it", _lost_text(lost[1]), f"regret@1 {lost[1]:.4f}"),
            Fact("lost by the best of 5", _lost_text(lost[5]), f"regret@5 {lost[5]:.4f}, tried together"),
            self._best(predicted, measured),
        ]
        facts += self._vendor(rows, predicted, measured)
        facts += self._certainty(prediction, rows)
        return Facts("ranking", "What the model says", tuple(facts))

    def _best(self, predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Fact:
        best = int(measured.argmin())
        place = int((predicted < predicted[best]).sum()) + 1
        text = f"{place:,}" if np.isfinite(predicted[best]) else "never chosen"
        return Fact("place of the best", text, f"of {counted(len(measured), 'config')}")

    def _vendor(
        self, rows: Sequence[dict[str, Any]], predicted: NDArray[np.float64], measured: NDArray[np.float64]
    ) -> list[Fact]:
        vendors = [place for place, row in enumerate(rows) if row["is_vendor"] and np.isfinite(predicted[place])]
        if not vendors:
            return []
        best = min(vendors, key=lambda place: predicted[place])
        return [Fact("vendor's kernel", f"{predicted[best]:,.2f} us predicted", f"{measured[best]:,.2f} us measured")]

    def _certainty(self, prediction: Prediction, rows: Sequence[dict[str, Any]]) -> list[Fact]:
        distinct = prediction.without_repeats()
        calibration, logs = self.loaded.calibration, distinct.member_logs
        if calibration is None or len(logs) < FEWEST_MEMBERS:
            return []
        is_vendor = np.array([rows[place]["is_vendor"] for place in distinct.finalists], dtype=bool)
        likely = Outlook(logs, is_vendor, calibration).p_within_2pct
        return [Fact("within 2%", f"{100 * likely:.0f}% likely", "as it says itself")]


def _with_columns(times: Answer, prediction: Prediction) -> Answer:
    """Return measured configs with what is predicted for each, and its place by that."""
    predicted = prediction.runtime_us
    places = np.empty(len(predicted), dtype=int)
    places[np.argsort(predicted, kind="stable")] = np.arange(1, len(predicted) + 1)
    said = [
        (float(us), int(place)) if np.isfinite(us) else (None, None)
        for us, place in zip(predicted, places, strict=True)
    ]
    rows = tuple((*row, *more) for row, more in zip(times.rows, said, strict=True))
    return Answer((*times.names, *COLUMNS), rows, times.is_cut)


def ranking_of(asked: Asked, shape: ProblemShape, hardware: Hardware) -> Ranking | Note | None:
    """Return the model that ranks a problem's configs: that of the address, else that which the hook would ask.

    A note says why there is none. Without both none is wanted.

    Raises:
        NotThereError: there is no model of that name.
    """
    name = asked.filters.get(MODEL.name)
    if name == _NONE:
        return None
    model = model_asked(shape, hardware) if name is None else model_named(name)
    if model is None and name is not None:
        raise NotThereError(f"there is no model {name!r}; `diode models list` shows which there are")
    if model is None:
        return Note("No model knows this problem on this device, so none ranks its configs; one can be chosen above.")
    if model.card is None:
        return Note(f"{model.name} cannot be asked: {model.error}", is_alarm=True)
    progress = asked.work_out(Load(model.path, model.card.sha256))
    if progress.result is None:
        return _without(model, is_loading=progress.is_under_way, error=progress.error)
    if progress.result.scorer is None:
        return Note(f"{model.name} is of another kind than ours: its page judges it, and here it cannot be asked.")
    return Ranking(model, progress.result, progress.result.scorer, shape, hardware)


def cautions(ranking: Ranking) -> Iterator[Note]:
    """Yield what a reader must know of a ranking."""
    card = ranking.model.card
    misses = [] if card is None else [miss.detail for miss in card.domain.misses(ranking.shape, ranking.hardware)]
    if misses:
        yield Note(f"This is outside what {ranking.model.name} was trained on: {'; '.join(misses)}.")
    elif ranking.loaded.has_learned_from(ranking.shape):
        yield Note(f"{ranking.model.name} has learned from this very problem, which flatters what it says of it.")


def _without(model: KnownModel, *, is_loading: bool, error: str) -> Note | None:
    if is_loading:
        return Note(f"{model.name} is being loaded; what it says appears here by itself.", is_passing=True)
    return Note(f"{model.name} cannot be asked: {error}", is_alarm=True) if error else None


def _times_text(predicted_us: float, measured_us: float) -> str:
    return f"{predicted_us:,.2f} us predicted, {measured_us:,.2f} us measured"


def _lost_text(regret: float) -> str:
    return f"{100 * (regret - 1):,.1f}%"
