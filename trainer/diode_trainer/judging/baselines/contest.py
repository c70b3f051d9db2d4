"""Test problems for rankings, with the problems that they may learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from diode_store.errors import DiodeError
from diode_trainer.judging.judgement import noise_limit_us
from diode_trainer.judging.metrics import KS, eligible, judgeable, regrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.data.splits import Fold

    Floats = NDArray[np.float64]
    ConfigKey = tuple[Any, ...]


_NO_ANSWER = np.full(len(KS), np.nan)


class LeftOutError(DiodeError):
    """Raised if a baseline cannot be judged here; the message says why, in one line."""


class Ranking(Protocol):
    """A baseline that orders configs, and may learn from the training problems of a fold."""

    def __call__(
        self, train: Sequence[Examples], test: Sequence[Examples], /, *, vendor: bool
    ) -> Iterable[Floats | None]:
        """Yield the scores of each test problem's configs, shape (n,), smallest first; None without an answer.

        Raises:
            LeftOutError: the baseline cannot be judged here.
        """


@dataclass(frozen=True)
class Contest:
    """Test problems of folds, with or without vendor kernels."""

    dataset: ExampleSet
    folds: Sequence[Fold]
    vendor: bool = True

    def tested(self) -> list[Examples]:
        """Return the m test problems, in the order of the folds."""
        return [example for fold in self.folds for example in self._test(fold)]

    def ties(self) -> Floats:
        """Return the largest regret within noise of the best for each test problem, shape (m,)."""
        tested = self.tested()
        best = [float(self.runtimes(example).min()) for example in tested]
        return np.array([noise_limit_us(example, us) / us for example, us in zip(tested, best, strict=True)])

    def counted(self, example: Examples) -> NDArray[np.bool_]:
        """Return a mask of a problem's configs that count, shape (n,)."""
        return eligible(example, vendor=self.vendor)

    def runtimes(self, example: Examples) -> Floats:
        """Return the times of the configs that count."""
        return example.runtime_us[self.counted(example)]

    def judge(self, ranking: Ranking, on_fold: Callable[[], None] = lambda: None) -> Floats:
        """Return regret@k of every test problem, shape (m, len(KS)); NaN if the ranking has no answer.

        Raises:
            LeftOutError: the ranking cannot be judged here.
        """
        return np.array([*self._rows(ranking, on_fold)]).reshape(-1, len(KS))

    def _rows(self, ranking: Ranking, on_fold: Callable[[], None]) -> Iterator[Floats]:
        for fold in self.folds:
            # A problem without a choice teaches no ranking.
            known = (self.dataset.examples[i] for i in fold.train)
            train, test = [example for example in known if judgeable(example)], self._test(fold)
            for example, score in zip(test, ranking(train, test, vendor=self.vendor), strict=True):
                yield _NO_ANSWER if score is None else regrets(self.runtimes(example), score[self.counted(example)])
            on_fold()

    def _test(self, fold: Fold) -> list[Examples]:
        test = (self.dataset.examples[i] for i in fold.test)
        return [example for example in test if judgeable(example, vendor=self.vendor)]


def needs_training(train: Sequence[Examples]) -> None:
    """Check that there are training problems.

    Raises:
        LeftOutError: there are none.
    """
    if not train:
        raise LeftOutError("there are no other problems to learn from")


def config_keys(example: Examples) -> list[ConfigKey]:
    """Return keys that identify each config's kernel across problems: template, numbers, TF32 and other blocks."""
    columns = example.columns
    numbers = (columns.block_m, columns.block_n, columns.block_k, columns.num_stages, columns.num_warps)
    templates = [columns.templates[i] for i in columns.template_index]
    rest: list[list[Any]] = [columns.group_m.tolist(), columns.allow_tf32.tolist()]
    rest += [] if columns.gradient_blocks is None else columns.gradient_blocks.T.tolist()
    return list(zip(templates, *(number.tolist() for number in numbers), zip(*rest, strict=True), strict=True))
