"""`import torch_diode`: models in by importing, and never an import that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from diode_integration import install
from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import process
from diode_store.errors import DiodeError, SpoolError
from diode_store.system.resources import trained_models_dir
from lanes import long

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from conftest import SaveModel

SHIPPED = any(trained_models_dir().rglob("*.pt"))


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


COMPILE = """
import sys, torch, torch_diode
print("torch._inductor" in sys.modules, "diode_integration.install" in sys.modules, torch_diode.get_stats())
print(*torch_diode.get_integration_status().values())
from torch._dynamo.utils import counters
torch.compile(lambda a, b: a @ b)(torch.randn(16, 32), torch.randn(32, 8))
print(counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
print(torch_diode.get_stats().get("total_calls"), *torch_diode.get_integration_status().values())
torch_diode.uninstall()
from torch._inductor.virtualized import V
print(type(V.choices).__name__, torch_diode.get_stats())
"""


@pytest.mark.long
@pytest.mark.skipif(not SHIPPED, reason="no model is shipped yet")
def test_first_compile_installs_the_shipped_model(tmp_path: Path) -> None:
    """The import loads neither Inductor nor the model; the first compile does, before it looks into its cache."""
    cache = str(tmp_path / "cache")
    stock = run(COMPILE, DIODE_DISABLE="1", TORCHINDUCTOR_CACHE_DIR=cache).stdout.splitlines()
    assert stock[2:4] == ["1 0", "None"]
    hooked = run(COMPILE, TORCHINDUCTOR_CACHE_DIR=cache).stdout.splitlines()
    assert hooked[:2] == ["False False {}", "waiting for the first torch.compile"]
    assert hooked[2] == "1 0", "a graph that stock Inductor had cached was served"
    assert hooked[3].startswith("1 engaged ")
    assert hooked[4] == "InductorChoices {}"


@long
def test_a_report_is_printed_at_the_end_where_it_is_asked_for() -> None:
    """To stderr, once something was compiled; a program that compiles nothing has nothing to report."""
    code = "import torch, torch_diode; torch.compile(lambda a: a @ a)(torch.eye(16)); print('done')"
    result = run(code, DIODE_REPORT="1")
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert "torch-diode: 0 ops decided" in result.stderr  # outside max-autotune nothing is
    assert " s of compiling, of that:" in result.stderr
    for program, report in ((code, "0"), ("import torch_diode", "1")):
        result = run(program, DIODE_REPORT=report)
        assert result.returncode == 0
        assert "ops decided" not in result.stderr


@pytest.mark.long
def test_a_handler_of_ones_own_beside_the_import() -> None:
    """As the documentation has it: what the import waits for and what the installation waits for do not collide."""
    code = (
        "import torch, torch_diode\n"
        "from diode_integration.inductor_integration import install_diode_choices\n"
        "choices = install_diode_choices(mode='zero')\n"
        "a = torch.ones(8, 8)\n"
        "print(torch.compile(lambda a: a @ a)(a)[0, 0].item(), torch_diode.get_stats() == choices.get_stats())"
    )
    finished = run(code)
    assert (finished.stdout.split(), finished.returncode) == (["8.0", "True"], 0), finished.stderr


def test_disabled_import_does_nothing() -> None:
    """With DIODE_DISABLE=1 the import installs nothing and does not even load Inductor."""
    code = "import sys, torch_diode; print('torch' in sys.modules, 'diode_integration' in sys.modules)"
    finished = run(code, DIODE_DISABLE="1")
    assert (finished.stdout, finished.stderr) == ("False False\n", "")


def test_only_one_disables() -> None:
    """Any other value of DIODE_DISABLE leaves the import its effect."""
    finished = run("import torch_diode; print(torch_diode.get_integration_status() != {})", DIODE_DISABLE="0")
    assert finished.stdout == "True\n"


@pytest.mark.long
def test_an_import_of_inductor_survives_what_the_hook_cannot_use() -> None:
    """When the hook cannot be loaded, one line says so, even with warnings as errors, and Inductor works."""
    finished = run(
        "import sys, torch_diode, torch\n"
        "sys.modules['diode_integration.install'] = None\n"
        "import torch._inductor.compile_fx\n"
        "print(torch._inductor.compile_fx.compile_fx.__name__, torch_diode.get_stats())\n",
        PYTHONWARNINGS="error::UserWarning",
    )
    assert (finished.returncode, finished.stdout) == (0, "compile_fx {}\n"), finished.stderr
    assert finished.stderr.count("torch-diode chooses no kernels: ") == 1


def test_a_handler_of_the_users_own_stays(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """What was installed before the first compile is not replaced by the shipped model."""
    mine = DiodeInductorChoices(save_model("v1"), mode="zero")
    with install.install(mine):
        assert torch_diode._install_unless_installed() is True
        assert install.installed() is mine


def test_a_hook_that_is_being_imported_is_not_used(
    torch_diode: ModuleType, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing the hook imports Inductor; the shipped model is installed later then."""
    save_model("v1")
    monkeypatch.setattr(install.__spec__, "_initializing", True, raising=False)
    assert torch_diode._install_unless_installed() is False
    assert install.installed() is None


def test_install_takes_the_shipped_model(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """What the import does installs the handler and says that a model chooses now."""
    save_model("v1")
    assert torch_diode.install() is True
    handler = install.installed()
    assert handler is not None
    assert handler.model is not None
    assert handler.model.card.name == "v1"
    assert torch_diode.get_stats()["total_calls"] == 0


def test_stats_can_be_reset(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """The counters of the installed hook begin anew; without one there is nothing to reset."""
    torch_diode.reset_stats()
    save_model("v1")
    torch_diode.install()
    handler = install.installed()
    assert handler is not None
    handler._stats.count("total_calls")
    assert torch_diode.get_stats()["total_calls"] == 1
    torch_diode.reset_stats()
    assert torch_diode.get_stats()["total_calls"] == 0


def test_install_takes_options(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """Those of the handler, and a model by name; without any it is the default again."""
    save_model("best", created_at="2026-02-01")
    save_model("other", created_at="2026-01-01")
    assert torch_diode.install(model="other", mode="zero", unknown="stock")
    choices = install.installed()
    assert choices is not None
    assert choices.model is not None
    assert (choices.model.card.name, choices.policy.mode, choices.unknown) == ("other", "zero", "stock")
    assert torch_diode.get_integration_status()["matmul_kernel_runtime_prediction"] == "engaged other.pt"
    assert torch_diode.install()
    again = install.installed()
    assert again is not None
    assert again.model is not None
    assert (again.model.card.name, again.unknown) == ("best", "auto")


def test_an_option_that_cannot_be_used_changes_nothing(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """What was installed before still chooses, and a later install without options is as ever."""
    save_model("best")
    assert torch_diode.install(mode="zero")
    before, status = install.installed(), torch_diode.get_integration_status()
    for wrong in ({"mode": "fast"}, {"unknown": "maybe"}, {"model": "none-of-these"}, {"speed": 3}):
        with pytest.raises(DiodeError):
            torch_diode.install(**wrong)
        assert install.installed() is before
        assert torch_diode.get_integration_status() == status
    assert torch_diode.install()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "mode must be one of"),
        ({"unknown": "fast"}, "unknown must be one of"),
        ({"model": "missing"}, "no model 'missing'"),
        ({"model_path": "missing"}, "no model 'missing'"),
        ({"top_k": 3}, "has no option top_k; did you mean top_k_configs"),
        ({"volume": 3}, "has no option volume; the options are clock, corrections, "),
    ],
)
def test_install_refuses_options_that_cannot_be_used(
    options: dict[str, str], message: str, torch_diode: ModuleType, save_model: SaveModel
) -> None:
    """What is given in code is refused there."""
    save_model()
    with pytest.raises(DiodeError, match=message):
        torch_diode.install(**options)


def test_install_logs_what_the_environment_cannot_mean(
    torch_diode: ModuleType, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A variable that cannot be used stops no program: one line says so."""
    save_model()
    monkeypatch.setenv("DIODE_MODE", "fast")
    assert not torch_diode.install()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith(("torch_diode", "diode"))]
    assert len(lines) == 1
    assert "DIODE_MODE: mode must be one of top_k, zero, adaptive, not 'fast'" in lines[0]


def test_install_twice_is_harmless(torch_diode: ModuleType, save_model: SaveModel) -> None:
    """Installing again leaves one handler, which one uninstall removes."""
    save_model("v1")
    assert [torch_diode.install(), torch_diode.install()] == [True, True]
    torch_diode.uninstall()
    assert install.installed() is None
    assert torch_diode.get_stats() == {}


def test_install_takes_a_spool(torch_diode: ModuleType, save_model: SaveModel, tmp_path: Path) -> None:
    """An option like the others: decisions are recorded there, and one that cannot be used raises."""
    save_model("v1")
    assert torch_diode.install(spool=tmp_path / "spool")
    assert (tmp_path / "spool").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="cannot create the spool folder"):
        torch_diode.install(spool=tmp_path / "file" / "spool")


def test_install_without_a_model_says_so(torch_diode: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """Without a model there is one line with the reason, and nothing is installed."""
    assert torch_diode.install() is False
    (line,) = (record.getMessage() for record in caplog.records if record.name == "torch_diode")
    assert line.startswith("torch-diode chooses no kernels: matmul_kernel_runtime_prediction: not engaged: there is no")
    assert install.installed() is None


def test_install_without_the_hook_says_so(
    torch_diode: ModuleType,
    save_model: SaveModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a torch without the hook there is a line that says which torch it takes."""
    save_model("v1")
    monkeypatch.setattr(process, "InductorChoices", object)
    assert torch_diode.install() is False
    assert "needs torch 2.10 or later" in caplog.text
