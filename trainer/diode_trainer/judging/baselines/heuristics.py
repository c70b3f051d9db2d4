"""Baseline of NVIDIA's nvMatmulHeuristics: its list of Triton kernels for a problem, by its own model of the device.

The package needs neither a GPU nor measurements. It describes kernels by tiles, warps, stages and split K. Inductor's
templates have no split K, so kernels with it are passed over. Each other kernel stands for the nearest measured config,
by BLOCK_M and BLOCK_N first and then by BLOCK_K, warps and stages. The package likes up to eight stages; Inductor's
lists have up to five.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.errors import first_line
from diode_store.ops import OPS
from diode_store.ops.table import FLOAT8S
from diode_trainer.judging.baselines.contest import LeftOutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diode_trainer.data.dataset import Examples
    from diode_trainer.judging.baselines.contest import Floats

_DEVICES = {
    "NVIDIA B200": "B200",
    "NVIDIA H200": "H200_SXM",
    "NVIDIA H100 80GB HBM3": "H100_SXM",
    "NVIDIA H100 NVL": "H100_NVL",
    "NVIDIA H100 PCIe": "H100_PCIE",
    "NVIDIA H20": "H20_SXM",
    "NVIDIA A100-SXM4-80GB": "A100_SXM_80GB",
    "NVIDIA A100 80GB PCIe": "A100_PCIE_80GB",
    "NVIDIA L40S": "L40S",
    "NVIDIA L4": "L4",
    "NVIDIA GeForce RTX 4090": "RTX_4090",
    "NVIDIA GeForce RTX 3090": "RTX_3090",
}
"""The package's names of devices by ours."""
_PRECISIONS = {
    "bfloat16": "TST",
    "float16": "HSH",
    "tf32": "SFS",
    "float32": "SSS",
    "float8_e4m3fn": "QST",
    "float8_e5m2": "RST",
    "int8": "BII",
}
"""Types of the operands, the accumulator and the result, a letter each, by arithmetic."""
_LAYOUTS = {"nn": "NN_ROW_MAJOR", "nt": "NT_ROW_MAJOR", "tn": "TN_ROW_MAJOR", "tt": "TT_ROW_MAJOR"}
_KERNELS = 64
"""Number of kernels to request; the package returns a dozen or fewer."""
_WEIGHTS = np.array([1.0, 1.0, 0.5, 0.3, 0.1])
"""Distance of a factor of two in BLOCK_M, BLOCK_N, BLOCK_K, warps and stages."""


def nv_matmul_heuristics(
    _train: Sequence[Examples], test: Sequence[Examples], /, *, vendor: bool
) -> Iterable[Floats | None]:
    """Rank Triton configs by the package's list; vendor kernels and configs outside the list are never tried.

    Yields None for a problem that the package cannot describe.

    Raises:
        LeftOutError: the package is not installed, or does not work here.
    """
    del vendor  # the package lists only Triton kernels
    try:
        import nvMatmulHeuristics
    except ImportError:
        raise LeftOutError("it is not installed; `pip install 'torch-diode[heuristics]'` (Linux)") from None
    lists = _Lists(nvMatmulHeuristics)
    return (_scores(example, lists.kernels(example)) for example in test)


class _Lists:
    """Lists of the package, with an interface for each device."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._interfaces: dict[tuple[str, str], Any] = {}

    def kernels(self, example: Examples) -> Floats | None:
        """Return BLOCK_M, BLOCK_N, BLOCK_K, warps and stages of each listed kernel, shape (r, 5), best first."""
        shape, name = example.shape, _DEVICES.get(example.hardware.name)
        precision, layout = _PRECISIONS.get(shape.arithmetic), _LAYOUTS.get(shape.layout)
        entry = OPS[shape.op]
        if name is None or precision is None or layout is None or entry.is_grouped or entry.products > 1:
            return None
        # The package knows the tensor cores for float8 for CUTLASS 3 alone; for Triton it times float8 like float32.
        interface = self._interface(name, "CUTLASS3" if shape.arithmetic in FLOAT8S else "TRITON")
        layouts = self._library.NvMatmulHeuristicsMatmulLayout
        problem = interface.makeNvMatmulHeuristicsProblem(shape.m, shape.n, shape.k, layouts[layout], shape.b)
        listed = [found["kernel"] for found in interface.get(problem, _KERNELS, precision=precision)]
        return np.array([_parameters(kernel) for kernel in listed if kernel.split_k == 1]).reshape(-1, len(_WEIGHTS))

    def _interface(self, name: str, target: str) -> Any:
        if (name, target) not in self._interfaces:
            library = self._library
            try:
                # The package loads its calibration for a device, precision and layout, if it has one, with the first
                # question.
                self._interfaces[name, target] = library.NvMatmulHeuristicsInterfaceEx(
                    backend=library.NvMatmulHeuristicsTarget[target],
                    flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
                    load_discovery_implicitly=True,
                    gpu=library.NvMatmulHeuristicsNvidiaGpu[name],
                )
            except (OSError, RuntimeError, KeyError) as error:
                raise LeftOutError(f"it cannot be used ({first_line(error)})") from None
        return self._interfaces[name, target]


def _parameters(kernel: Any) -> tuple[float, ...]:
    tile = (kernel.cta_tile_m, kernel.cta_tile_n)
    warps = np.prod(tile) / (kernel.warp_tile_m * kernel.warp_tile_n)
    return (*tile, kernel.cta_tile_k, float(warps), kernel.stages)


def _scores(example: Examples, kernels: Floats | None) -> Floats | None:
    """Return the rank of the first listed kernel that each config stands for; inf without one."""
    columns = example.columns
    own = np.flatnonzero(example.ran & ~example.is_vendor)
    if kernels is None or not len(kernels) or not len(own):
        return None
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
    configs = np.stack([getattr(columns, name)[own] for name in names], axis=1)
    apart = np.abs(np.log2(np.maximum(configs, 1))[:, None] - np.log2(np.maximum(kernels, 1)))  # (configs, kernels, 5)
    nearest = own[(apart @ _WEIGHTS).argmin(0)]
    scores = np.full(len(example), np.inf)
    np.minimum.at(scores, nearest, np.arange(len(kernels), dtype=np.float64))
    return scores
