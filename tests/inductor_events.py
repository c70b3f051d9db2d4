"""Real compiles on this CPU, seen from a choices hook and from a feedback saver."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.choices import InductorChoices
from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache
from torch._inductor.virtualized import V

from diode_collectors.feedback.records import measurement_from_feedback
from diode_collectors.inductor.adapter import problem_of_inputs
from inductor_harness import compile_and_run, cuda_choices, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

A = torch.zeros(128, 512)
B = torch.zeros(512, 256)


class Observer(InductorChoices):
    """A choices handler that lists what stock Inductor lists, and lets a test look at each call."""

    def __init__(self, look: Callable[[Any, str, list[Any]], object]) -> None:
        """Call ``look(kernel_inputs, op_name, listed)``."""
        super().__init__()
        self.look = look

    def _finalize_template_configs(
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        listed = super()._finalize_template_configs(
            template_choices, kernel_inputs, templates, op_name, *args, **kwargs
        )
        self.look(kernel_inputs, op_name, listed)
        return listed


@contextmanager
def saver(function: Callable[..., None]) -> Iterator[None]:
    """Have Inductor call ``function`` after each autotuning."""
    add_feedback_saver(function)
    try:
        yield
    finally:
        cache = get_algorithm_selector_cache()
        cache.feedback_saver_fns = [known for known in cache.feedback_saver_fns if known is not function]


def events(function: Callable[..., Any], *inputs: torch.Tensor, look: Any = None, **options: Any) -> list[Any]:
    """Compile ``function`` with fake Triton choices and return a measurement of each autotuning event."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        found.append(measurement_from_feedback(timings, name, nodes, choices))

    dynamic = options.pop("dynamic", None)
    with triton_choices_on_cpu(**options), saver(keep), V.set_choices_handler(Observer(look or (lambda *_: None))):
        compile_and_run(function, *inputs, dynamic=dynamic)
    return found


def asked(function: Callable[..., Any], *inputs: torch.Tensor, look: Callable[..., Any], **options: Any) -> list[Any]:
    """Compile ``function`` and return what ``look(kernel_inputs, op_name, listed)`` gave for each hook call."""
    seen: list[Any] = []
    events(function, *inputs, look=lambda *call: seen.append(look(*call)), **options)
    return seen


def problems(kernel_inputs: Any, op_name: str, _: Any) -> Any:
    """Return the problem of a hook call."""
    return problem_of_inputs(kernel_inputs, op_name)


def with_cuda_list(uid: str) -> Callable[..., list[Any]]:
    """Return a look at a hook call that gives its list and behind it CUDA's EXHAUSTIVE list of a template."""
    return lambda kernel_inputs, name, listed: [*listed, *cuda_choices(kernel_inputs, uid, name)]


def remembered_ktc(uid: str, params: dict[str, Any], dtype: torch.dtype, **extra: Any) -> SimpleNamespace:
    """Return what the adapter reads of a KernelTemplateChoice."""
    return SimpleNamespace(
        template=SimpleNamespace(uid=uid),
        params=SimpleNamespace(to_kwargs=lambda: dict(params)),
        extra_kwargs=extra,
        inputs=SimpleNamespace(nodes=lambda: [SimpleNamespace(get_dtype=lambda: dtype)]),
    )


class PlainChoice(SimpleNamespace):
    """A choice that carries no KernelTemplateChoice."""

    __hash__ = object.__hash__  # callers are compared by identity


def plain_choice(name: str, description: str = "", /, **info: Any) -> PlainChoice:
    """Return a choice that says this of itself."""
    node = SimpleNamespace(get_dtype=lambda: torch.bfloat16)
    return PlainChoice(name=name, description=description, info_dict=lambda: info, input_nodes=[node])
