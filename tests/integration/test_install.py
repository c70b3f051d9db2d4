"""Installing a handler for the whole process: threads, cache keys, and everything back as it was."""

from __future__ import annotations

import pickle
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.compiler.config as compiler_config
from hooked import OPS, hooked
from torch._dynamo.utils import counters
from torch._inductor import choices as inductor_choices
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.select_algorithm import get_algorithm_selector_cache
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

from diode_integration.inductor import entry, process
from diode_integration.inductor.process import missing_capability, process_choices
from diode_integration.install import install, installed, uninstall
from diode_store.errors import DiodeError
from inductor_harness import quiet_torch
from stand_ins import TileModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_integration.choices import DiodeInductorChoices


@pytest.fixture(autouse=True)
def _leave_nothing_installed() -> Iterator[None]:
    yield
    uninstall()


class UsersChoices(InductorChoices):
    """A handler of the user's own."""

    def uuid(self) -> str:
        """Take part in cache keys."""
        return "users"


def users_choices() -> UsersChoices:
    """Return the user's handler; a module-level function, as cache keys need it."""
    return UsersChoices()


def in_thread(function: Any) -> Any:
    """Return what ``function`` returns in a new thread."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def uuid_of_this_thread() -> str:
    """Return what the handler of the thread that asks says of itself."""
    return str(V.choices.uuid())


def process_state() -> tuple[Any, ...]:
    """Return everything an installation touches."""
    registered = getattr(inductor_choices, "registered_inductor_choices", tuple)()
    return (
        type(V.choices),
        in_thread(lambda: type(V.choices)),
        inductor_config.inductor_choices_class,
        in_thread(lambda: inductor_config.inductor_choices_class),
        compiler_config.cache_key_tag,
        in_thread(lambda: compiler_config.cache_key_tag),
        registered,
        hasattr(InductorChoices._finalize_template_configs, "__wrapped__"),
        [
            function
            for function in get_algorithm_selector_cache().preprocessing_fns
            if function is entry.final_selection
        ],
    )


@contextmanager
def cached_compiles() -> Iterator[None]:
    """Use an empty FX graph cache that lasts as long as the block."""
    with quiet_torch(), fresh_cache(), inductor_config.patch(fx_graph_cache=True):
        yield


def train_step(handler: DiodeInductorChoices | None) -> dict[str, int]:
    """Compile forward here and backward in another thread; return the hook's calls and the cache's hits."""
    before = handler.get_stats()["total_calls"] if handler else 0
    torch._dynamo.reset()
    counters.clear()
    a = torch.randn(16, 32, requires_grad=True)
    b = torch.randn(32, 8, requires_grad=True)
    loss = torch.compile(lambda a, b: (a @ b).relu().sum())(a, b)
    in_thread(loss.backward)
    expected = torch.autograd.grad((a @ b).relu().sum(), (a, b))
    torch.testing.assert_close((a.grad, b.grad), expected)
    found = counters["inductor"]
    calls = int(handler.get_stats()["total_calls"] - before) if handler else 0
    return {"calls": calls, "misses": found["fxgraph_cache_miss"], "hits": found["fxgraph_cache_hit"]}


COLD = {"calls": 3, "misses": 2, "hits": 0}
"""One mm forward, two backward, in two graphs."""
WARM = {"calls": 0, "misses": 0, "hits": 2}


def test_handler_holds_in_this_thread_and_new_ones() -> None:
    """After the install every thread that asks gets the installed handler."""
    handler = hooked()
    install(handler)
    assert installed() is handler
    assert V.choices.uuid() == handler.uuid()
    assert in_thread(uuid_of_this_thread) == handler.uuid()


@pytest.mark.long
def test_backward_in_another_thread_is_hooked() -> None:
    """Backward graphs, which are compiled in the thread that runs them, are hooked like forward ones."""
    with cached_compiles():
        handler = hooked()
        install(handler)
        assert train_step(handler) == COLD


@pytest.mark.long
def test_same_policy_finds_its_graphs() -> None:
    """A second compile, also with another handler of the same model and policy, comes from the cache."""
    with cached_compiles():
        handler = hooked()
        with install(handler):
            train_step(handler)
            assert train_step(handler) == WARM
        again = hooked()
        with install(again):
            assert train_step(again) == WARM


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "other", [{"model": TileModel(sha256="b" * 64)}, {"mode": "zero"}, {"top_k_configs": 1}], ids=str
)
def test_another_model_or_policy_compiles_anew(other: dict[str, Any]) -> None:
    """No graph that another model or policy chose is served."""
    with cached_compiles():
        with install(hooked()) as first:
            train_step(first)
        with install(hooked(**other)) as second:
            assert train_step(second) == COLD


@pytest.mark.long
def test_uninstall_finds_the_old_graphs() -> None:
    """Graphs that stock Inductor cached before the install are neither served while it lasts nor lost after it."""
    with cached_compiles():
        stock = train_step(None)
        assert (stock["misses"], stock["hits"]) == (2, 0)
        with install(hooked()) as handler:
            assert train_step(handler) == COLD
        assert train_step(None) == WARM


def test_uninstall_restores_everything() -> None:
    """Install changes the process's state and uninstall brings all of it back."""
    before = process_state()
    install(hooked())
    entry.ensure_registered()
    assert process_state() != before
    uninstall()
    assert process_state() == before
    assert installed() is None


def test_uninstall_is_harmless_without_an_install() -> None:
    """Uninstalling nothing, or twice, changes nothing."""
    before = process_state()
    uninstall()
    install(hooked())
    uninstall()
    uninstall()
    assert process_state() == before


def test_reinstall_replaces() -> None:
    """A second install replaces the first, and one uninstall is enough."""
    before = process_state()
    first, second = hooked(), hooked(mode="zero")
    install(first)
    install(second)
    assert installed() is second
    assert in_thread(uuid_of_this_thread) == second.uuid()
    uninstall()
    assert process_state() == before


def test_same_install_twice_is_one() -> None:
    """Installing the installed handler again changes nothing."""
    handler = hooked()
    install(handler)
    once = process_state()
    install(handler)
    assert process_state() == once


def test_running_thread_follows() -> None:
    """A thread that keeps its handler follows a later install and uninstall."""
    handlers = [hooked(), hooked(mode="zero")]
    steps, answers = threading.Barrier(2), []

    def ask() -> None:
        for _ in range(3):
            steps.wait()
            answers.append(V.choices.uuid() if hasattr(V.choices, "uuid") else None)
            steps.wait()

    install(handlers[0])
    thread = threading.Thread(target=ask)
    thread.start()
    for change in (None, lambda: install(handlers[1]), uninstall):
        if change is not None:
            change()
        steps.wait()
        steps.wait()
    thread.join()
    assert answers == [handlers[0].uuid(), handlers[1].uuid(), "torch-diode/none"]


def test_a_thread_that_compiled_before_the_install_is_reached() -> None:
    """A stock handler that a thread keeps asks the installed one, and is stock again after the uninstall."""
    stock, state = V.choices, process_state()
    assert type(stock) is InductorChoices
    handler = hooked()

    def calls(of: InductorChoices = stock) -> int:
        before = handler.get_stats()["total_calls"]
        assert of._finalize_template_configs({}, None, [], "mm") == []
        return int(handler.get_stats()["total_calls"] - before)

    assert calls() == 0
    with install(handler):
        assert calls() == 1
        assert in_thread(calls) == 1
        assert calls(UsersChoices()) == 0
    assert calls() == 0
    assert process_state() == state


def test_threads_that_keep_their_handler_compile_as_stock_after_uninstall() -> None:
    """What a thread still holds after the uninstall leaves every choice to stock Inductor."""
    function, shapes = OPS["mm"]
    inputs = [torch.randn(shape) for shape in shapes]
    with quiet_torch(), fresh_cache():
        handler = hooked()
        install(handler)
        kept = V.choices
        uninstall()
        with V.set_choices_handler(kept), inductor_config.patch(fx_graph_cache=False), torch.no_grad():
            torch._dynamo.reset()
            result = torch.compile(function)(*inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-4, atol=1e-3)
    assert handler.get_stats()["total_calls"] == 0


def test_concurrent_compiles_share_one_handler() -> None:
    """Threads that compile at the same time are all counted by the one handler."""
    handler = hooked()

    def compile_in_thread(size: int) -> None:
        a = torch.randn(size, 32)
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(lambda a: a @ a.T)(a), a @ a.T, rtol=1e-4, atol=1e-3)

    with quiet_torch(), fresh_cache(), install(handler):
        torch._dynamo.reset()
        threads = [threading.Thread(target=compile_in_thread, args=(16 + i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert handler.get_stats()["total_calls"] == handler.get_stats()["passed_through"] >= 1


def test_context_manager_uninstalls_on_an_error() -> None:
    """Leaving the block by an exception uninstalls too."""
    with pytest.raises(KeyError, match="in the block"), install(hooked()):
        raise KeyError("in the block")
    assert installed() is None


def test_closing_a_replaced_installation_leaves_the_new_one() -> None:
    """The end of an old installation does not uninstall what replaced it."""
    old = install(hooked())
    new = hooked(mode="zero")
    install(new)
    old.close()
    assert installed() is new


@pytest.mark.skipif(hasattr(inductor_choices, "register_inductor_choices"), reason="torch composes handlers itself")
def test_users_own_class_comes_back() -> None:
    """A handler class that the user configured is replaced while installed and comes back afterwards."""
    with inductor_config.patch(inductor_choices_class=users_choices):
        install(hooked())
        assert in_thread(lambda: type(V.choices).__name__) == "ProcessChoices"
        uninstall()
        assert inductor_config.inductor_choices_class is users_choices


def test_users_own_handler_comes_back() -> None:
    """A handler that the user set for this thread comes back after the uninstall."""
    users = UsersChoices()
    with V.set_choices_handler(users):
        install(hooked())
        assert type(V.choices).__name__ == "ProcessChoices"
        uninstall()
        assert V.choices is users


def test_users_class_set_later_is_kept() -> None:
    """A handler class that the user configures after the install survives the uninstall."""
    install(hooked())
    inductor_config.inductor_choices_class = users_choices
    try:
        uninstall()
        assert inductor_config.inductor_choices_class is users_choices
    finally:
        inductor_config.inductor_choices_class = None


def test_users_cache_tag_is_kept() -> None:
    """A cache key tag, set before or after the install, survives the uninstall."""
    with compiler_config.patch(cache_key_tag="mine"):
        install(hooked())
        assert compiler_config.cache_key_tag.startswith("mine")
        compiler_config.cache_key_tag += "+more"
        uninstall()
        assert compiler_config.cache_key_tag == "mine+more"


def test_factory_pickles_by_name() -> None:
    """The factory can be pickled, as the cache keys of torch 2.10 and 2.11 need it, whatever is installed."""
    install(hooked())
    assert pickle.loads(pickle.dumps(process_choices)) is process_choices  # noqa: S301 - made here


def test_failed_install_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An install that fails half-way is undone."""
    before = process_state()

    def fail(*_arguments: Any) -> None:
        raise RuntimeError("half-way")

    registers = hasattr(inductor_choices, "register_inductor_choices")
    with monkeypatch.context() as patched:
        if registers:
            patched.setattr(inductor_choices, "register_inductor_choices", fail)
        else:
            patched.setattr(process, "_set_for_all_threads", fail)
        with pytest.raises(RuntimeError, match="half-way"):
            install(hooked())
    assert installed() is None
    assert process_state() == before


@pytest.mark.parametrize("lacking", ["hook", "installation"])
def test_torch_without_the_capability_is_refused(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a torch without the hook, installing is an error of one line, outside of any compile."""
    if lacking == "hook":
        monkeypatch.setattr(process, "InductorChoices", object)
        message = f"torch {torch.__version__} has no hook for kernel choices; torch-diode needs torch 2.10 or later"
    else:
        monkeypatch.setattr(process, "inductor_config", object())
        monkeypatch.setattr(process, "inductor_choices", object())
        message = f"torch {torch.__version__} takes no process-wide choices handler; use torch 2.10 to 2.15"
    with pytest.raises(DiodeError) as refused:
        install(hooked())
    assert str(refused.value) == message


def test_this_torch_has_the_capability() -> None:
    """Every supported torch can install a handler."""
    assert missing_capability() is None
