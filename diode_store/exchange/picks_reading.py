"""Read a picks file strictly: an error names its place, and a file with an error is not used.

A person may have edited the file, so the reader checks everything.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from diode_store.candidates.names import kernel_config
from diode_store.errors import PicksError, RecordError
from diode_store.exchange.jsonl_checks import problem_of, typed, unstorable
from diode_store.exchange.picks import DEVICE_FIELDS, ENVIRONMENT_FIELDS, FORMAT, VERSION, Pick, Picks
from diode_store.ops import find_op
from diode_store.ops.fused import check_fused, is_fused
from diode_store.records import Environment, Hardware, KernelConfig, Problem, TensorSpec
from diode_store.system.files import read_bounded
from diode_store.values import checks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

_AGAIN = "write it again with `diode lock`"
_LONGEST_NAME = 100
_HEAD = ("format", "version", "device", "allow_changed_template", "environments", "picks")
_ENTRY = ("problem", "op", "inputs", "environment", "regime", "runtime_us", "pick", "ties")


def read_picks(path: Path) -> Picks:
    """Read a picks file.

    Raises:
        PicksError: the file is missing, torn, of another format or version, or has a wrong entry; the message names it.
    """
    try:
        content = read_bounded(path)
    except OSError as error:
        raise PicksError(f"{path}: cannot read the picks ({error.strerror or error}); {_AGAIN}") from None
    try:
        plain = json.loads(content, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
        found = _picks(plain)
        return replace(found, sha256=hashlib.sha256(content).hexdigest(), file=str(path))
    except json.JSONDecodeError as error:
        raise PicksError(f"{path}, line {error.lineno}: not whole JSON ({error.msg}); {_AGAIN}") from None
    except (ValueError, RecursionError):  # not Unicode, too deep, or a number with thousands of digits
        raise PicksError(f"{path}: not a picks file; {_AGAIN}") from None
    except RecordError as error:
        raise PicksError(f"{path}: {error}; mend it, or {_AGAIN}") from None


def _picks(plain: object) -> Picks:
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise RecordError(f'not a picks file: it does not begin with "format": "{FORMAT}"')
    if type(plain.get("version")) is not int or plain["version"] != VERSION:
        raise RecordError(f"picks of version {checks.shown(plain.get('version'))}, where {VERSION} is expected")
    if (what := unstorable(plain)) is not None:
        raise RecordError(what)
    _exactly("the file", plain, _HEAD)
    device = _device(plain["device"])
    environments = {
        number: _environment(f"environment {number}", content)
        for number, content in typed(plain["environments"], dict, "environments", "an object").items()
    }
    found: dict[bytes, Pick] = {}
    places: dict[bytes, int] = {}
    for place, entry in enumerate(typed(plain["picks"], list, "picks", "a list"), 1):
        try:
            pick = _pick(entry, environments)
        except RecordError as error:
            raise RecordError(f"entry {place}{_called(entry)}: {error}") from None
        first = places.setdefault(pick.problem.key, place)
        if first != place:
            raise RecordError(f"entry {place}{_called(entry)}: the same problem as entry {first}; keep one of them")
        found[pick.problem.key] = pick
    return Picks(device, found, checks.flag("allow_changed_template", plain["allow_changed_template"]))


def _called(entry: object) -> str:
    name = entry.get("problem") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        return ""
    return f" ({name if name.isprintable() and len(name) <= _LONGEST_NAME else checks.shown(name)})"


def _device(content: object) -> Hardware:
    fields = typed(content, dict, "device", "an object")
    _exactly("device", fields, DEVICE_FIELDS)
    *words, multiprocessors = (fields[name] for name in DEVICE_FIELDS)
    vendor, name, arch = (checks.text(f"device.{f}", word) for f, word in zip(DEVICE_FIELDS, words, strict=False))
    return Hardware(vendor, name, arch, checks.integer("device.multiprocessors", multiprocessors, least=1))


def _environment(where: str, content: object) -> Environment:
    fields = typed(content, dict, where, "an object")
    _exactly(where, fields, ("template_hashes",), optional=ENVIRONMENT_FIELDS)
    hashes = typed(fields["template_hashes"], dict, f"{where}: template_hashes", "an object")
    known = {uid: checks.text(f"{where}: the hash of {uid}", sha) for uid, sha in hashes.items()}
    said: dict[str, Any] = {
        name: checks.text(f"{where}: {name}", fields[name]) for name in ENVIRONMENT_FIELDS if name in fields
    }
    return Environment(**said, template_hashes=known)


def _pick(content: object, environments: Mapping[str, Environment]) -> Pick:
    fields = typed(content, dict, "it", "an object")
    _exactly("it", fields, _ENTRY, optional=("scalars",))
    problem = _problem(fields)
    number = str(checks.integer("environment", fields["environment"]))
    if number not in environments:
        raise RecordError(f"there is no environment {number}; the file has {', '.join(environments) or 'none'}")
    runtime_us, regime = fields["runtime_us"], fields["regime"]
    ties = typed(fields["ties"], list, "ties", "a list")
    configs = [_config("pick", fields["pick"]), *(_config(f"tie {i}", tie) for i, tie in enumerate(ties, 1))]
    if len(set(configs)) != len(configs):
        raise RecordError("pick and ties name a kernel twice; keep it once")
    pick = Pick(
        problem,
        tuple(configs),
        environments[number],
        None if runtime_us is None else checks.microseconds("runtime_us", runtime_us),
        None if regime is None else checks.text("regime", regime),
    )
    if fields["problem"] != pick.name:
        raise RecordError(f"its inputs make it {pick.name}")
    return pick


def _problem(fields: Mapping[str, Any]) -> Problem:
    wire = problem_of({name: fields.get(name) for name in ("op", "inputs", "scalars")})
    if not is_fused(wire["op"]):
        find_op(wire["op"])
    inputs = tuple(TensorSpec(dtype, tuple(size), tuple(stride)) for dtype, size, stride in wire["inputs"])
    scalars = {name: checks.scalar(f"scalars.{name}", value) for name, value in wire["scalars"]}
    problem = Problem.create(wire["op"], inputs, scalars)
    if (problem.op, problem.inputs) != (wire["op"], inputs):
        raise RecordError(f"{wire['op']}: the inputs differ from the hook's view; broadcast a bias to the output")
    if is_fused(problem.op):
        check_fused(problem)
    return problem


def _config(where: str, content: object) -> KernelConfig:
    fields = typed(content, dict, where, "an object")
    if "template" not in fields:
        raise RecordError(f"{where} has no template")
    template = checks.text(f"{where}: template", fields["template"])
    try:
        return kernel_config(template, {name: value for name, value in fields.items() if name != "template"})
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from None


def _exactly(where: str, fields: Mapping[str, Any], names: Collection[str], optional: Collection[str] = ()) -> None:
    """Check that ``fields`` has all ``names``, and no others but ``optional`` ones."""
    checks.require(where, fields, names)
    unknown = [name for name in fields if name not in names and name not in optional]
    if unknown:
        raise RecordError(f"{where} has {checks.shown(unknown[0])}, which is an unknown field")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse a name that occurs twice after an edit."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RecordError(f"an object has {checks.shown(name)} twice; keep one")
        found[name] = value
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise RecordError(f"{text} is no number for a pick")
