"""Which of Inductor's choices a sweep lists, in real compiles with real Triton choices on this CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from diode_collectors.feedback.records import measurement_from_feedback
from diode_collectors.inductor.adapter import config_of_ktc
from diode_collectors.problems.choices import exhaustive_configs
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.lane.sampling import SweepChoices
from diode_store.candidates.default_space import GemmConfig
from diode_store.candidates.pipelining import kernel_of
from diode_store.devices.known import NVIDIA
from diode_store.records import STOCK_POLICY, is_vendor_template
from inductor_events import A, B, saver
from inductor_harness import compile_and_run, cuda_choices, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from diode_collectors.problems.guide import Guide
    from diode_store.records import KernelConfig

TMA = "triton::mm_persistent_tma"
PLAIN = ("triton::mm", "triton::bmm")


class Listing(SweepChoices):
    """Remembers what is listed, by template, and may be offered more than Inductor has for a CPU."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        more: Callable[..., dict[str, list[Any]]],
        guide: Guide | None = None,
        *,
        shares_kernels: bool = False,
    ) -> None:
        """Offer what ``more`` returns for a call as well."""
        super().__init__(space, seed, guide, shares_kernels=shares_kernels)
        self.more = more
        self.listed: dict[str, list[KernelConfig]] = {}

    def _finalize_template_configs(
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, kwarg_overrides: Any = None
    ) -> list[Any]:
        for uid, choices in self.more(kernel_inputs, op_name).items():
            if uid not in template_choices:
                templates = [*templates, SimpleNamespace(uid=uid)]
            template_choices = {**template_choices, uid: iter(choices)}
        found = super()._finalize_template_configs(template_choices, kernel_inputs, templates, op_name, kwarg_overrides)
        return few_of(found, self.listed)

    def _default(self, kernel_inputs: Any, template: Any, op_name: str, overrides: dict[str, Any]) -> list[Any]:
        if isinstance(template, SimpleNamespace):
            return []
        return super()._default(kernel_inputs, template, op_name, overrides)


class Stock(InductorChoices):
    """Remembers what Inductor lists by itself."""

    def __init__(self) -> None:
        """Have seen nothing."""
        super().__init__()
        self.listed: dict[str, list[KernelConfig]] = {}

    def _finalize_template_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        return few_of(super()._finalize_template_configs(*arguments, **named), self.listed)


def few_of(found: list[Any], listed: dict[str, list[KernelConfig]]) -> list[Any]:
    """Add what was found to ``listed``, and return few of it: generating the code of one takes 10 ms."""
    for ktc in found:
        listed.setdefault(ktc.template.uid, []).append(config_of_ktc(ktc))
    vendor = [ktc for ktc in found if is_vendor_template(ktc.template.uid)]
    return [*vendor, *[ktc for ktc in found if ktc.template.uid in PLAIN][:3]]


def listed(
    space: str, *inputs: torch.Tensor, seed: int = 0, excluded: Iterable[KernelConfig] = (), **options: Any
) -> tuple[dict[str, list[KernelConfig]], list[Any]]:
    """Compile an mm, or what the options say, and return what was listed by template, and the records."""
    parsed = SearchSpace.parse(space)
    shares = bool(options.get("shares_kernels"))
    handler = Listing(parsed, seed, options.get("more", lambda *_: {}), options.get("guide"), shares_kernels=shares)
    handler.excluded = frozenset(excluded)
    records = compiled_with(handler, parsed.listed, options.get("function", torch.mm), *(inputs or (A, B)))
    return handler.listed, records


def compiled_with(handler: Any, space: str, function: Any, *inputs: torch.Tensor) -> list[Any]:
    """Compile ``function`` and return the records that come of it."""
    records: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        records.append(measurement_from_feedback(timings, name, nodes, choices))

    with triton_choices_on_cpu(search_space=space), saver(keep), V.set_choices_handler(handler):
        compile_and_run(function, *inputs)
    return records


def triton_configs(space: str, **options: Any) -> list[KernelConfig]:
    """Return the configs of the plain Triton template that are listed."""
    found, _ = listed(space, **options)
    return found["triton::mm"]


@pytest.mark.parametrize("space", ["DEFAULT", "EXHAUSTIVE"])
def test_default_and_exhaustive_are_inductors_lists(space: str) -> None:
    """In its order, the vendor's kernel with them."""
    stock = Stock()
    compiled_with(stock, space, torch.mm, A, B)
    found, _ = listed(space)
    assert found == stock.listed
    assert set(found) == {"aten::mm", "triton::mm"}
    assert len(found["triton::mm"]) > 10


@pytest.mark.parametrize(("function", "inputs"), [(torch.mm, (A, B)), (torch.addmm, (torch.zeros(B.size(1)), A, B))])
def test_the_vendors_kernels_alone(function: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """No template takes part, and Inductor benchmarks also what is one choice only."""
    found, records = listed("VENDOR", *inputs, function=function)
    assert found
    assert all(name.startswith("aten::") for name in found)
    (record,) = records
    assert {timing.config.template for timing in record.timings} == set(found)
    assert all(timing.runtime_us > 0 for timing in record.timings)


def test_a_sample_holds_the_default_list_and_random_others() -> None:
    """So many of the template in all, each once, and the vendor's kernel beside them."""
    default, everything = triton_configs("DEFAULT"), triton_configs("EXHAUSTIVE")
    found, _ = listed("SAMPLE:40")
    sample = found["triton::mm"]
    assert len(sample) == len(set(sample)) == 40
    assert set(default) < set(sample)
    assert set(sample) - set(default) < set(everything)
    assert len(found["aten::mm"]) == 1


@pytest.mark.parametrize("size", [1, 5])
def test_a_small_sample_is_the_default_list(size: int) -> None:
    """It is never less than what a user's compile would try."""
    assert triton_configs(f"SAMPLE:{size}") == triton_configs("DEFAULT")


def test_a_sample_larger_than_the_list_is_the_list() -> None:
    """With those of the default list that are not in it."""
    default, everything = triton_configs("DEFAULT"), triton_configs("EXHAUSTIVE")
    sample = triton_configs("SAMPLE:100000")
    assert len(sample) == len(set(sample))
    assert set(sample) == {*default, *everything}


def test_a_sample_is_drawn_by_seed_and_problem() -> None:
    """The same ones wherever and whenever; another seed or another problem has others."""
    first = triton_configs("SAMPLE:40", seed=1)
    assert triton_configs("SAMPLE:40", seed=1) == first
    default = set(triton_configs("DEFAULT"))
    others = set(first) - default
    assert set(triton_configs("SAMPLE:40", seed=2)) - default != others
    wider, _ = listed("SAMPLE:40", A, torch.zeros(512, 512), seed=1)
    wider_default, _ = listed("DEFAULT", A, torch.zeros(512, 512))
    assert set(wider["triton::mm"]) - set(wider_default["triton::mm"]) != others


def test_a_larger_sample_of_the_same_seed_is_another_draw_of_the_same_list() -> None:
    """Whatever it draws, the default list is in both."""
    default = set(triton_configs("DEFAULT"))
    small, large = (set(triton_configs(f"SAMPLE:{size}", seed=1)) for size in (40, 80))
    assert default < small & large
    assert (len(small), len(large)) == (40, 80)


def test_a_persistent_tma_template_gets_its_share() -> None:
    """A quarter of what the plain one gets: it has fewer to choose from."""

    def more(kernel_inputs: Any, op_name: str) -> dict[str, list[Any]]:
        return {TMA: cuda_choices(kernel_inputs, TMA, op_name)}

    found, _ = listed("SAMPLE:72", more=more)
    assert (len(found["triton::mm"]), len(found[TMA])) == (72, 18)
    found, _ = listed("EXHAUSTIVE", more=more)
    assert len(found[TMA]) > 500


def test_a_guided_one_begins_with_the_guide() -> None:
    """Up to half are those that the guide has for this problem and template, in its order; the others are drawn."""
    everything = triton_configs("EXHAUSTIVE")
    wanted = [GemmConfig.of(config) for config in everything[-30:]]
    absent = GemmConfig(16, 16, 8, 9, 64)
    problem = SweepProblem("mm", A.shape[0], B.shape[1], A.shape[1], dtype="float32").problem()
    guide = {problem.key: {"triton::mm": [absent, *wanted], TMA: []}}
    found = triton_configs("GUIDED:40", guide=guide)
    assert [GemmConfig.of(config) for config in found[:20]] == wanted[:20]
    assert len(set(found)) == len(found) == 40
    assert set(found) <= set(everything)
    assert len(triton_configs("GUIDED:100", guide=guide)) == 100
    drawn = triton_configs("GUIDED:40")
    assert len(drawn) == 40
    assert not set(triton_configs("DEFAULT")) <= set(drawn)
    assert triton_configs("GUIDED:40", guide={b"another": guide[problem.key]}) == drawn


def test_of_the_same_kernel_one_is_timed() -> None:
    """Where K is one block, whatever the guide has; a sample has all of DEFAULT, and no other kernel twice."""
    inputs = torch.zeros(128, 32), torch.zeros(32, 256)
    everything, _ = listed("EXHAUSTIVE", *inputs)
    problem = SweepProblem("mm", 128, 256, 32, dtype="float32").problem()

    def kernels(configs: Iterable[KernelConfig]) -> list[KernelConfig]:
        return [kernel_of(config, problem.shape, NVIDIA) for config in configs]

    guide = {problem.key: {"triton::mm": [GemmConfig.of(config) for config in everything["triton::mm"]]}}
    guided, _ = listed("GUIDED:40", *inputs, guide=guide)
    assert len(set(kernels(guided["triton::mm"]))) == len(guided["triton::mm"]) == 40
    assert guided["triton::mm"][0] == everything["triton::mm"][0]
    assert len({config.num_stages for config in guided["triton::mm"][20:]}) > 2
    default, _ = listed("DEFAULT", *inputs)
    sample, _ = listed("SAMPLE:100", *inputs)
    few, drawn = default["triton::mm"], set(sample["triton::mm"]) - set(default["triton::mm"])
    assert set(few) < set(sample["triton::mm"])
    assert len(set(kernels(drawn))) == len(drawn) == 100 - len(few)
    assert not {*kernels(drawn)} & {*kernels(few)}


@pytest.fixture
def tf32_as_it_was() -> Iterator[None]:
    """Restore whether TF32 is allowed."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.quick(1)
@pytest.mark.parametrize("op", ["addmm", "bmm", "baddbmm", "tf32"])
def test_a_guide_is_found_for_every_op(op: str, tf32_as_it_was: None) -> None:
    """By the key that a sweep's problem has before anything is compiled."""
    left, right = torch.zeros(2, 32, 64), torch.zeros(2, 64, 48)
    inputs = {
        "addmm": (torch.zeros(256), A, B), "bmm": (left, right), "baddbmm": (torch.zeros(2, 32, 48), left, right),
        "tf32": (A, B),
    }[op]  # fmt: skip
    torch.backends.cuda.matmul.allow_tf32 = op == "tf32"
    name = "mm" if op == "tf32" else op
    batch, m, k, n = (2, 32, 64, 48) if name in {"bmm", "baddbmm"} else (1, 128, 512, 256)
    problem = SweepProblem(name, m, n, k, batch, "float32", allow_tf32=op == "tf32")
    template = "triton::bmm" if batch > 1 else "triton::mm"
    everything, _ = listed("EXHAUSTIVE", *inputs, function=getattr(torch, name))
    wanted = [config for config in map(GemmConfig.of, everything[template]) if config.num_stages == 1][-5:]
    guide = {problem.problem().key: {template: wanted}}
    found, _ = listed("GUIDED:40", *inputs, function=getattr(torch, name), guide=guide)
    assert [GemmConfig.of(config) for config in found[template][:5]] == wanted


@pytest.mark.long
def test_problems_of_a_kind_are_timed_by_few() -> None:
    """Where they share kernels those of all are drawn from few, by seed; of rows that are not whole from all."""
    sizes = (300, 256), (4000, 256), (300, 264), (520, 1032), (777, 2048), (304, 128), (9000, 512), (1500, 640)
    inputs = [(torch.zeros(m, 512), torch.zeros(512, n)) for m, n in sizes]
    odd = torch.zeros(300, 511), torch.zeros(511, 256)

    def drawn(*inputs: torch.Tensor, seed: int = 0, shares_kernels: bool = True) -> set[KernelConfig]:
        found, _ = listed("GUIDED:20", *inputs, seed=seed, shares_kernels=shares_kernels)
        return set(found["triton::mm"])

    for shares, most in ((True, 32), (False, 160)):
        of_each = [drawn(*each, shares_kernels=shares) for each in inputs]
        assert {len(each) for each in of_each} == {20}
        assert of_each[0] == drawn(*inputs[0], shares_kernels=shares) != of_each[1]
        assert 0.7 * most < len(set().union(*of_each)) <= most
    assert len(drawn(*inputs[0]) & drawn(*inputs[0], seed=1)) < 10
    assert drawn(*odd) == drawn(*odd, shares_kernels=False)


def test_the_exhaustive_list_is_known_without_inductor() -> None:
    """What Inductor lists are configs that a guide may name, but for a few."""
    problem = SweepProblem("mm", A.shape[0], B.shape[1], A.shape[1], dtype="float32")
    ours = {*exhaustive_configs(problem, shared_memory_bytes=None, tma=False)}
    theirs = {GemmConfig.of(config) for config in triton_configs("EXHAUSTIVE")}
    assert len(theirs) > 100
    assert len(ours & theirs) > 0.9 * len(theirs)


@pytest.mark.parametrize("space", ["DEFAULT", "EXHAUSTIVE", "SAMPLE:40"])
def test_subgraph_templates_take_no_part(space: str) -> None:
    """Each of their choices compiles a graph of its own; their lists are not even read."""

    def unread() -> Any:
        raise AssertionError
        yield

    def more(_kernel_inputs: Any, _op_name: str) -> dict[str, Any]:
        return {"decompose_k": unread(), "contiguous_mm": unread()}

    found, _ = listed(space, more=more)
    assert set(found) == {"aten::mm", "triton::mm"}


@pytest.mark.parametrize("space", ["DEFAULT", "EXHAUSTIVE", "SAMPLE:40"])
def test_what_is_excluded_is_left_out(space: str) -> None:
    """Nothing else changes: a sample does not draw others for it, so that it stays the sample of its seed."""
    before = triton_configs(space)
    bad = {before[0], before[-1]}
    assert triton_configs(space, excluded=bad) == [config for config in before if config not in bad]


@pytest.mark.quick(3)
@pytest.mark.parametrize("op", ["mm", "addmm", "bmm"])
@pytest.mark.parametrize("space", ["DEFAULT", "SAMPLE:1", "SAMPLE:40"])
def test_no_op_is_left_without_choices(op: str, space: str) -> None:
    """Every product has the vendor's kernel and Triton's, in as many calls as this version makes."""
    inputs = {
        "mm": (A, B), "addmm": (torch.zeros(256), A, B), "bmm": (torch.zeros(2, 32, 64), torch.zeros(2, 64, 48)),
    }[op]  # fmt: skip
    found, records = listed(space, *inputs, function=getattr(torch, op))
    uids = {("aten" if is_vendor_template(uid) else "triton") for uid in found}
    assert uids == {"aten", "triton"}
    assert len(records) == 1


def test_the_records_say_that_nobody_chose() -> None:
    """A sample is drawn by chance, not by a model: training on it is not biased."""
    _, records = listed("SAMPLE:40")
    assert [record.choice_policy for record in records] == [STOCK_POLICY]
    assert len(records[0].timings) == 4
