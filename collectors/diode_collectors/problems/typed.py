"""Words that people type behind a problem's sizes, such as ``nt``, ``e4m3``, ``row``, ``fast`` or ``skew1``.

Slashes separate the words, so a pair for A and B has a plus between: ``1x128+128x128``, ``e5m2+e4m3``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diode_store.candidates.names import DTYPES, SHORT_DTYPES
from diode_store.errors import SettingsError
from diode_store.ops.grouping import BATCH, FORMS, MOST_SKEW, ROWS, mean_size
from diode_store.ops.scaling import BOTH, PAIRS, ROW, paired

if TYPE_CHECKING:
    from diode_store.ops import Op
    from diode_store.records import Scalar

Sizes = tuple[int, int, int]
"""M, N and K."""
FLOAT32, TF32 = "float32", "tf32"
DTYPE_NAMES = ("bf16", "fp16", "fp32", TF32)
"""Names that ``parse_dtype`` takes besides torch's; ``tf32`` is fp32 that may be computed in TF32."""
AND = "+"
"""Separator of a word for A and one for B."""
FAST, BIAS, OUTPUT, SKEW = "fast", "bias", "out=", "skew"
OUTPUTS = ("bfloat16", "float16", "float32")
"""Dtypes of a scaled product."""
SCALINGS = {paired(*pair).replace(BOTH, AND): paired(*pair) for pair in PAIRS}
"""Words for the scales of A and B, with the recipes that they name."""
_SHORT = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "int8": "int8"}
_SHORT_NAMES = SHORT_DTYPES | {name: short for short, name in _SHORT.items()}
_SKEW = re.compile(rf"{SKEW}(\d+(?:\.\d+)?)")
_DIGITS = 2


def parse_dtype(name: str) -> tuple[str, bool]:
    """Return torch's name of a dtype, and whether TF32 is allowed.

    Raises:
        SettingsError: a sweep cannot use the dtype.
    """
    if name == TF32:
        return FLOAT32, True
    known = {short: DTYPES[short] for short in DTYPE_NAMES if short != TF32}
    if name in known.values():
        return name, False
    if name not in known:
        raise SettingsError(f"unknown dtype {name!r}; known dtypes: {', '.join(DTYPE_NAMES)}")
    return known[name], False


def dtype_word(dtype: str, other: str | None = None) -> str:
    """Return a dtype as people type it, with the one of B if it is another."""
    words = [_SHORT_NAMES.get(each, each) for each in (dtype, other) if each]
    return AND.join(words)


def dtype_names(entry: Op) -> tuple[str, ...]:
    """Return the words for the dtypes of an op."""
    return DTYPE_NAMES if entry.is_plain else tuple(map(dtype_word, entry.dtypes))


def dimension_words(entry: Op) -> tuple[str, ...]:
    """Return the words for the dimensions of an op, besides layouts and dtypes."""
    scaled = (*SCALINGS, BIAS, FAST, *(f"{OUTPUT}{SHORT_DTYPES[name]}" for name in OUTPUTS))
    grouped = (*FORMS, f"{SKEW}N")
    if entry.is_grouped:
        return (FAST, *grouped) if entry.is_scaled else grouped
    return scaled if entry.is_scaled else ()


def words_of(entry: Op, dimensions: dict[str, Scalar]) -> list[str]:
    """Return the words for a problem's dimensions, in one order, without those that every problem of the op has."""
    found = []
    if "scaling" in dimensions and not entry.is_grouped:
        found.append(str(dimensions["scaling"]).replace(BOTH, AND))
    found += [word for name, word in (("bias", BIAS), ("fast_accum", FAST)) if dimensions.get(name)]
    if dimensions.get("out_dtype", OUTPUTS[0]) != OUTPUTS[0]:
        found.append(f"{OUTPUT}{dtype_word(str(dimensions['out_dtype']))}")
    if "form" in dimensions:
        found.append(str(dimensions["form"]))
    if dimensions.get("skew"):
        found.append(f"{SKEW}{dimensions['skew']:g}")
    return found


def dimension_of(word: str, entry: Op) -> dict[str, Scalar]:
    """Return the dimension that a word means for an op.

    Raises:
        SettingsError: the word means none.
    """
    if word in SCALINGS and entry.is_scaled and not entry.is_grouped:
        return {"scaling": SCALINGS[word]}
    if word in FORMS and entry.is_grouped:
        return {"form": word}
    if word == BIAS and entry.is_scaled and not entry.is_grouped:
        return {"bias": True}
    if word == FAST and entry.is_scaled:
        return {"fast_accum": True}
    output = DTYPES.get(word.removeprefix(OUTPUT))
    if word.startswith(OUTPUT) and output in OUTPUTS and entry.is_scaled and not entry.is_grouped:
        return {"out_dtype": output}
    skew = _SKEW.fullmatch(word)
    if skew is not None and entry.is_grouped:
        return {"skew": checked_skew(float(skew.group(1)))}
    raise SettingsError(f"{entry.name} takes no {word!r}")


def dtypes_of(word: str, entry: Op) -> dict[str, str]:
    """Return the dtype of A, and of B if it is another, that a word such as ``e5m2+e4m3`` means for an op.

    Raises:
        SettingsError: the op has no such dtype.
    """
    first, _, second = word.partition(AND)
    found = [_SHORT.get(each, DTYPES.get(each, each)) for each in (first, second or first)]
    if not set(found) <= set(entry.dtypes) or (second and not entry.is_scaled):
        raise SettingsError(f"{entry.name} takes no dtype {word!r}")
    return {"dtype": found[0]} | ({"b_dtype": found[1]} if found[1] != found[0] else {})


def checked_skew(skew: float) -> float:
    """Return a skew.

    Raises:
        SettingsError: the skew is out of bounds, or has too many digits.
    """
    if not 0 <= skew <= MOST_SKEW or round(skew, _DIGITS) != skew:
        raise SettingsError(f"a skew is from 0 to {MOST_SKEW:g} with up to {_DIGITS} decimals, not {skew}")
    return skew


def with_defaults(entry: Op, dimensions: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return the dimensions of a problem with those that were not named."""
    usual: dict[str, Scalar] = {}
    if entry.is_scaled:
        usual |= {"scaling": ROW, "out_dtype": OUTPUTS[0]}
    if entry.is_grouped:
        usual["form"] = ROWS
    found = usual | dimensions
    return {name: value for name, value in found.items() if value}


def grouped_sizes(sizes: Sizes, groups: int, form: str) -> tuple[Sizes, dict[str, Scalar]]:
    """Return M, N and K of a grouped problem, the grouped one as its mean, and the dimension ``total``.

    Args:
        sizes: M, N and K, the grouped one as its total.
        groups: number of groups.
        form: one of ``FORMS``.

    Raises:
        SettingsError: a size is 0.
    """
    if min(*sizes, groups) < 1:
        raise SettingsError(f"sizes must be positive, not {'x'.join(map(str, sizes))} of {groups} groups")
    if form == BATCH:
        return sizes, {}
    place = FORMS.index(form)
    m, n, k = (mean_size(size, groups) if i == place else size for i, size in enumerate(sizes))
    return (m, n, k), {"total": sizes[place]}


def typed_sizes(sizes: Sizes, dimensions: dict[str, Scalar]) -> Sizes:
    """Return M, N and K as people type them: the grouped one as its total."""
    total = dimensions.get("total")
    if not total:
        return sizes
    place = FORMS.index(str(dimensions["form"]))
    m, n, k = (int(total) if i == place else size for i, size in enumerate(sizes))
    return m, n, k
