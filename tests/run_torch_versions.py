"""Runs the tests of what runs inside torch.compile against several versions of PyTorch and prints what passed.

    python tests/run_torch_versions.py [--version 2.11=python3.12 ...] [--environment 2.13=/path/to/venv ...]

These are the collectors' tests and the hook's. Each version gets a virtual environment below ``--folder``, which later
runs use again, with that torch and what the tests need besides, and no more: torch-diode itself runs from this
checkout. At least one version should run on Python 3.12 or later: on 3.11.8 and below Inductor compiles no choice
before it times them.
"""

# ruff: noqa: T201 - a script that prints
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
VERSIONS = {
    "2.10": "python3.13",
    "2.11": "python3.12",
    "2.12": "python3.12",
    "2.13": "python3",
    "2.14": "python3.13",
    "2.15": "python3",
}
TRITON = {"2.10": "3.6.0", "2.11": "3.6.0", "2.12": "3.7.1"}
"""The Triton that goes with a torch, whose CPU build brings none. Later ones go with the newest."""
NEWEST_TRITON = "3.9.0"
PACKAGES = ("numpy", "msgpack", "pytest", "hypothesis")
IMPORT_FROM = (".", "collectors", "trainer", "integration", "tests", "tests/collectors", "tests/integration")
TESTS = (
    "collectors/inductor/test_inductor_canary.py",
    "collectors/inductor/test_inductor_adapter.py",
    "collectors/feedback/test_inductor_records.py",
    "collectors/feedback/test_every_op.py",
    "collectors/feedback/test_feedback.py",
    "collectors/feedback/test_fused.py",
    "collectors/inductor/test_fused_source.py",
    "collectors/inductor/test_attention_masks.py",
    "collectors/inductor/test_lookup_table.py",
    "collectors/feedback/test_lost_choices.py",
    "collectors/feedback/test_coverage.py",
    "collectors/feedback/test_matmul.py",
    "collectors/sweep/test_sweep_outcomes.py",
    "collectors/sweep/test_sweep_sampling.py",
    "collectors/sweep/test_sweep_attention.py",
    "collectors/sweep/test_sweep_convolutions.py",
    "collectors/sweep/test_sweep_triton.py",
    "collectors/sweep/test_sweep_measuring.py",
    "collectors/problems/test_problems_of_other_ops.py",
    "integration",
)
MARKERS = "long: a campaign\nquick: N examples\nxdist_group: not beside others\ngpu: needs one"
COUNTED = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Result:
    """The result of the tests under one version."""

    torch: str
    python: str
    triton: str
    counts: dict[str, int]
    seconds: float
    exit_code: int


def main() -> int:
    """Run what the command line asks for; the exit code is 1 if anything failed."""
    options = _options()
    versions = dict(pair.split("=", 1) for pair in options.version) or VERSIONS
    environments = dict(pair.split("=", 1) for pair in options.environment)
    asked = list(dict.fromkeys([*environments, *(versions if options.version or not environments else ())]))
    results = []
    for version in asked:
        python = _python_of(version, versions.get(version, sys.executable), environments.get(version), options)
        results.append(run_tests(python, options.tests or TESTS))
    print_table(results)
    return int(any(result.exit_code for result in results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="append", default=[], metavar="TORCH=PYTHON", help="which to run")
    parser.add_argument(
        "--environment", action="append", default=[], metavar="TORCH=FOLDER", help="use this virtual environment"
    )
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".venv-torch", help="where new environments go")
    parser.add_argument("--index-url", help="where torch comes from, such as https://download.pytorch.org/whl/cpu")
    parser.add_argument("tests", nargs="*", help="below tests, such as integration/test_choices.py")
    return parser.parse_args()


def _python_of(version: str, python: str, environment: str | None, options: argparse.Namespace) -> Path:
    """Return the interpreter of a virtual environment with this torch, which is made if there is none."""
    folder = Path(environment) if environment else options.folder / version
    found = folder / "bin" / "python"
    if not found.exists():
        print(f"== torch {version}: making {folder} with {python}", flush=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        index = ["--index-url", options.index_url] if options.index_url else []
        subprocess.run([*pip, *index, f"torch=={version}.*"], check=True)
        has_triton = subprocess.run([found, "-c", "import triton"], capture_output=True, check=False).returncode == 0
        triton = [] if has_triton else [f"triton=={TRITON.get(version, NEWEST_TRITON)}"]
        subprocess.run([*pip, *triton, *PACKAGES], check=True)
    return found


def run_tests(python: Path, files: tuple[str, ...] | list[str]) -> Result:
    """Run test files with this interpreter, warnings being errors, and show what pytest says."""
    torch, triton, version = _versions(python)
    print(f"== torch {torch}, triton {triton}, Python {version}", flush=True)
    # Not our pytest settings, which name plug-ins that are not there.
    pytest = ["-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-c", os.devnull]
    pytest += ["-o", f"markers={MARKERS}", "-m", "not gpu"]
    tests = [f"tests/{name}" for name in files]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(CHECKOUT / folder) for folder in IMPORT_FROM),
    }
    command = [str(python), *pytest, "--rootdir", str(CHECKOUT), "--show-capture=no", *tests]
    started = time.monotonic()
    finished = subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(finished.stdout, flush=True)
    counts = counts_of(finished.stdout)
    return Result(torch, version, triton, counts, time.monotonic() - started, finished.returncode)


def _versions(python: Path) -> list[str]:
    code = "import platform, torch, triton; print(torch.__version__, triton.__version__, platform.python_version())"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def counts_of(output: str) -> dict[str, int]:
    """Return the numbers in pytest's last line; errors count as failures."""
    last = output.strip().splitlines()[-1] if output.strip() else ""
    found = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    found["failed"] = found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)
    return {word: found.get(word, 0) for word in COUNTED}


def print_table(results: list[Result]) -> None:
    """Print one line a version."""
    print(f"{'torch':14} {'triton':8} {'Python':8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for result in results:
        counts = " ".join(f"{result.counts[word]:>{len(word) + 1}}" for word in COUNTED)
        print(f"{result.torch:14} {result.triton:8} {result.python:8} {counts} {result.seconds:>8.0f}")


if __name__ == "__main__":
    sys.exit(main())
