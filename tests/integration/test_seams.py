"""Who chooses kernels at each seam of Inductor, and ops that no seam reaches."""

from __future__ import annotations

import pytest
import torch
from hooked import hooked
from torch._inductor import config as inductor_config
from torch._inductor import lowering
from torch._inductor.choices import InductorChoices
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

from diode_integration.inductor.seams import NOWHERE, OURS, STOCK, custom_ops, seams
from diode_integration.install import install
from inductor_harness import compile_and_run, quiet_torch


def owners() -> dict[str, str]:
    """Return the owner of each seam."""
    return {seam.name: seam.owner for seam in seams()}


def test_without_the_hook_all_is_stock() -> None:
    """Before an install and after it, nothing is ours."""
    assert set(owners().values()) <= {STOCK, NOWHERE}
    with install(hooked()):
        assert OURS in owners().values()
    assert set(owners().values()) <= {STOCK, NOWHERE}


def test_the_hook_owns_what_it_decides() -> None:
    """Products, grouped ones, convolutions, attention and fused kernels; a handler may list attention's configs."""
    with install(hooked()):
        found = owners()
    ours = {name for name, owner in found.items() if owner == OURS}
    assert ours == {
        "matrix products",
        "fused kernels",
        "grouped configs",
        "lowering of convolution",
        "lowering of flex_attention",
        "lowering of flex_attention_backward",
        "lowering of grouped_mm",
        "lowering of scaled_grouped_mm",
    }
    assert found["flex decoding"] == STOCK


class Theirs(InductorChoices):  # type: ignore[misc]  # Inductor is not typed
    """Handler of another package."""

    def get_conv_configs(self, device_type: str | None = "cuda") -> object:
        """Return no config of its own."""
        return super().get_conv_configs(device_type)


def test_another_package_is_named() -> None:
    """A handler that overrides one method owns that one, and a table belongs to whoever filled it."""
    table = {"a key": [{"template_id": "aten::mm"}]}
    with V.set_choices_handler(Theirs()), inductor_config.patch({"lookup_table.table": table}):
        found = [seam for seam in seams() if seam.is_foreign]
    assert [(seam.name, seam.owner) for seam in found] == [
        ("convolution configs", __name__),
        ("lookup table", "a table of 1 entries"),
    ]


@torch.library.custom_op("diode_test::twice_the_product", mutates_args=())
def twice_the_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return 2 a b."""
    return 2 * (a @ b)


@twice_the_product.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return 2 a b, one way."""
    return a @ b + a @ b


def doubled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return 2 a b, another way."""
    return (a + a) @ b


@pytest.mark.skipif(not hasattr(lowering, "user_lowerings"), reason="this torch keeps such ops among its own")
def test_a_custom_op_with_its_own_autotuning_is_counted() -> None:
    """Its choices pass every handler by; the hook counts the op as uncovered, and doctor lists it."""
    op = torch.ops.diode_test.twice_the_product.default
    register_custom_op_autotuning(twice_the_product, configs=[CustomOpConfig(added), CustomOpConfig(doubled)])
    try:
        assert custom_ops() == [str(op)]
        handler = hooked(mode="zero")
        inputs = torch.randn(64, 32), torch.randn(32, 48)
        with quiet_torch(), fresh_cache(), install(handler):
            result = compile_and_run(op, *inputs)
        torch.testing.assert_close(result, twice_the_product(*inputs), rtol=1e-4, atol=1e-4)
        assert handler.get_stats()["uncovered"] == 1
    finally:
        lowering.user_lowerings.pop(op, None)
    assert custom_ops() == []
