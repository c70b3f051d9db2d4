from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from diode_store.errors import CodecError, RecordError, UnknownVersionError
from diode_store.records import DeviceState, Outcome, Timing, TimingMethod
from diode_store.wire import codec, unpacking
from record_strategies import MEASUREMENTS
from wire_rows import with_rows, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.records import Measurement

PAYLOAD = codec.encode(samples.measurement())
NESTED = 200


def content() -> dict[str, Any]:
    """Return a record's map, to be spoiled, with rows that are easy to reach."""
    return with_rows(samples.measurement())


def decode_changed(change: Callable[[dict[str, Any]], object]) -> Measurement:
    """Decode a good record after ``change``."""
    record = content()
    change(record)
    return codec.decode(written(record))


@given(MEASUREMENTS)
def test_round_trip(measurement: Measurement) -> None:
    """Whatever a collector may hand over comes back equal, with the same keys and the same extra values."""
    decoded = codec.decode(codec.encode(measurement))
    assert decoded == measurement
    assert decoded.problem.key == measurement.problem.key
    assert decoded.environment.key == measurement.environment.key
    assert [t.config.key for t in decoded.timings] == [t.config.key for t in measurement.timings]


def test_a_sample_seed_of_zero_is_a_seed() -> None:
    """Zero is a value, not an absence."""
    assert codec.decode(codec.encode(samples.measurement(sample_seed=0))).sample_seed == 0


def test_a_regime_that_is_not_known_yet_survives() -> None:
    """How kernels are timed may be named anew by a later release: the name is kept as it is."""
    method = TimingMethod("median", flush_l2=True, launch_hidden=True, regime="cold_replay_2")
    written = samples.measurement(timing_method=method, family="some-model")
    read = codec.decode(codec.encode(written))
    assert (read.timing_method, read.family, read.extra) == (method, "some-model", {})


def test_an_older_writers_record_has_neither_regime_nor_family() -> None:
    """A record without the keys is read as one of which nobody knows."""
    read = decode_changed(lambda record: record.update(timing_method={"statistic": "median", "flush_l2": True}))
    assert (read.timing_method, read.family) == (TimingMethod("median", flush_l2=True), None)


def test_configs_are_interned() -> None:
    """Records that repeat a config share one object, so that its key is computed once."""
    first, second = (codec.decode(PAYLOAD).timings[1].config for _ in range(2))
    assert first is second


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(payload: bytes) -> None:
    """Bytes that are no record only ever raise CodecError."""
    with pytest.raises(CodecError):
        codec.decode(payload)


def test_truncated_record_is_refused() -> None:
    """Every prefix of a record raises CodecError."""
    for length in range(len(PAYLOAD)):
        with pytest.raises(CodecError):
            codec.decode(PAYLOAD[:length])


@given(st.lists(st.tuples(st.integers(0, len(PAYLOAD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_never_crash(changes: list[tuple[int, int]]) -> None:
    """A record with changed bytes is another valid record or raises CodecError, in one line."""
    spoiled = bytearray(PAYLOAD)
    for position, value in changes:
        spoiled[position] = value
    try:
        decoded = codec.decode(bytes(spoiled))
    except CodecError as error:
        assert str(error).isprintable()  # noqa: PT017 - either outcome is right
    else:
        assert codec.decode(codec.encode(decoded)) == decoded


@given(st.data())
def test_any_value_in_any_field_never_crashes(data: st.DataObject) -> None:
    """A well-formed map with nonsense in one field raises CodecError or is read."""
    leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
    nonsense = st.recursive(leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3))
    record = content()
    field = data.draw(st.sampled_from(sorted(record)))
    value = data.draw(nonsense)
    place = record[field]
    if isinstance(place, (dict, list)) and data.draw(st.booleans()):
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        place[data.draw(st.sampled_from(keys))] = value
    else:
        record[field] = value
    try:
        codec.decode(written(record))
    except CodecError as error:
        assert len(str(error)) < 300  # noqa: PT017 - either outcome is right


def test_deep_nesting_is_refused() -> None:
    """A value nested deeper than Python's recursion allows is refused wherever it stands, in a short message."""
    deep: list[Any] = []
    for _ in range(NESTED):
        deep = [deep]
    for field in ("v", "uid", "hardware", "problem", "timings", "source", "flags", "extra", "a_new_field"):
        record = content()
        record[field] = deep
        with pytest.raises(CodecError) as refused:
            codec.decode(written(record))
        assert len(str(refused.value)) < 300


def test_memory_is_not_reserved_for_what_is_not_there() -> None:
    """Array headers that announce millions of elements are refused without allocating them."""
    with pytest.raises(CodecError, match="exceeds max_array_len"):
        codec.decode(b"\xdd\x00\x0f\x42\x40" * 500)


def test_oversized_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload over the limit is refused before it is decoded, and not written either."""
    monkeypatch.setattr(unpacking, "MAX_RECORD_BYTES", 100)
    with pytest.raises(CodecError, match=r"a record of .* bytes is over the limit of 100"):
        codec.decode(PAYLOAD)
    with pytest.raises(RecordError, match="over the limit"):
        codec.encode(samples.measurement())


@pytest.mark.parametrize("version", [3, 17])
def test_newer_version_is_refused_by_name(version: int) -> None:
    """A newer writer's record says which version it has and what to do."""
    with pytest.raises(UnknownVersionError, match=f"record version {version} is newer than 2.*upgrade"):
        decode_changed(lambda record: record.update(v=version))


@pytest.mark.parametrize("version", [0, 1, -1, None, True, "1", 1.0])
def test_impossible_version_is_refused(version: object) -> None:
    """What was never a version is an error of its own."""
    with pytest.raises(CodecError, match="unknown record version"):
        decode_changed(lambda record: record.update(v=version))


@pytest.mark.parametrize("runtime", [math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 1e300, "12", True, b"1"])
def test_impossible_runtime_is_refused(runtime: object) -> None:
    """A time is a finite, positive number, whether read or written."""
    with pytest.raises(CodecError, match="timing 1: runtime_us must be a finite, positive number"):
        decode_changed(lambda record: record["timings"][1].__setitem__(1, runtime))
    bad = Timing(samples.triton_config(), runtime)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"timing 0: runtime_us must be a finite"):
        codec.encode(samples.measurement(timings=(bad,)))


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 3, "timing 0: config must be a whole number from 0 to 2"),
        (0, -1, "timing 0: config must be"),
        (0, False, "timing 0: config must be"),
        (1, None, "timing 0: outcome ok does not go with runtime None"),
        (2, "timeout", "timing 0: outcome timeout does not go with runtime 10.5"),
        (2, "fine", "timing 0: outcome must be one of ok, compile_error"),
        (3, 0, "timing 0: is_estimate must be true or false"),
        (4, 0, "timing 0: repeats must be a whole number from 1"),
        (4, 2**31, "timing 0: repeats must be a whole number from 1"),
        (5, math.nan, "timing 0: p10_us must be a finite"),
        (6, -2.0, "timing 0: p90_us must be a finite"),
    ],
)
def test_impossible_timing_is_refused(position: int, value: object, message: str) -> None:
    """Each column of a timing is checked, and the message says which timing and why."""
    with pytest.raises(CodecError, match=message):
        decode_changed(lambda record: record["timings"][0].__setitem__(position, value))


@pytest.mark.parametrize("name", ["uid", "hardware", "problem", "configs", "config_columns", "timings", "source"])
def test_missing_field_is_named(name: str) -> None:
    """A record without a field it needs is refused by that field's name."""
    with pytest.raises(CodecError, match=f"the record has no '{name}'"):
        decode_changed(lambda record: record.pop(name))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("uid",), b"short", "uid must be 16 bytes"),
        (("superseded_by",), b"short", "superseded_by must be 16 bytes"),
        (("source",), "guess", "source must be one of feedback, sweep, profile, import"),
        (("measured_at",), "2026-11-20T12:30:00", "measured_at must name its time zone"),
        (("measured_at",), 5, "measured_at must be text"),
        (("host",), 5, "host must be text"),
        (("host",), "a\0b", "host must be text of at most 4096 characters without NUL"),
        (("host",), "a" * 5000, "host must be text of at most 4096 characters"),
        (("is_replay",), 1, "is_replay must be true or false"),
        (("sample_seed",), 2**63, "sample_seed must be a whole number"),
        (("family",), ["llama3-8b"], "family must be text"),
        (("family",), "a" * 5000, "family must be text of at most 4096 characters"),
        (("timing_method",), {"regime": 3}, "timing_method.regime must be text"),
        (("timing_method",), {"regime": "a" * 5000}, "timing_method.regime must be text of at most 4096 characters"),
        (("flags",), "noisy", "flags must be an array"),
        (("flags",), ["a,b"], "a flag is a word without a comma"),
        (("timing_columns",), ["config", "outcome"], "timing_columns has no runtime_us"),
        (("config_columns", 0), "new", "a config has no template"),
        (("configs", 1, 1), 2**31, "config.block_m must be a whole number from 0 to 2147483647"),
        (("configs", 1, 7), 0, "config.allow_tf32 must be true or false"),
        (("configs", 1, 0), None, "a config has no template"),
        (("configs", 1, 10), None, "kwargs must be an array"),
        (("configs", 1), ["triton::mm"], r"configs\[1\] must hold 11 values, not 1"),
        (("configs", 0, 10), [["x", math.inf]], "kwarg 'x' must be a finite number"),
        (("hardware", "l2_bytes"), 2**63, "hardware.l2_bytes must be a whole number"),
        (("hardware", "multiprocessors"), 0, "hardware.multiprocessors must be a whole number from 1"),
        (("hardware", "name"), None, "hardware has no name"),
        (("environment", "template_hashes"), {"triton::mm": 5}, "hash must be text"),
        (("problem", "op"), "two words", "'two words' is not the name of an op"),
        (("problem", "inputs", 0, 1), [67, 0], "size must be a whole number from 1"),
        (("problem", "inputs", 0, 2), [2**63, 1], "stride must be a whole number"),
        (("problem", "inputs", 0, 1), [67, 129], "is not a matrix product"),
        (("device_state",), {"temperature_c": "hot"}, "device_state.temperature_c must be a whole number"),
        (("extra",), {"a": math.nan}, "extra.'a' must be a finite number"),
        (("a_new_field",), {"b": math.inf}, "a_new_field.* must be a finite number"),
    ],
)
def test_wrong_value_is_named(path: tuple[str | int, ...], value: object, message: str) -> None:
    """A value of the wrong type or out of bounds is refused, and the message names it."""

    def change(record: Any) -> None:
        for step in path[:-1]:
            record = record.setdefault(step, {}) if isinstance(record, dict) else record[step]
        record[path[-1]] = value

    with pytest.raises(CodecError, match=message):
        decode_changed(change)


def test_a_config_timed_twice_is_refused() -> None:
    """Two timings of one config would collide in the warehouse, even if a newer writer told them apart."""
    with pytest.raises(CodecError, match="time each config once"):
        decode_changed(lambda record: record["timings"].append(record["timings"][0]))

    def twice_but_for_extra(record: dict[str, Any]) -> None:
        record["config_columns"].append("a_new_column")
        record["configs"] = [[*record["configs"][1], i] for i in range(3)]

    with pytest.raises(CodecError, match="time each config once"):
        decode_changed(twice_but_for_extra)


def test_unknown_keys_are_kept() -> None:
    """What a newer writer adds to any map is in that record's extra, tuples as lists and bytes as hex."""

    def add(record: dict[str, Any]) -> None:
        record["run"] = {"attempts": [1, 2], "digest": b"\xab"}
        for name in ("hardware", "environment", "problem"):
            record[name]["new"] = name
        record["timing_method"] = {"statistic": "median", "warm_ups": 3}
        record["device_state"] = {"power_w": 650}

    decoded = decode_changed(add)
    assert decoded.extra == {
        "run": {"attempts": [1, 2], "digest": "ab"},
        "timing_method": {"warm_ups": 3},
        "device_state": {"power_w": 650},
    }
    records = (decoded.hardware, decoded.environment, decoded.problem)
    assert [record.extra for record in records] == [{"new": "hardware"}, {"new": "environment"}, {"new": "problem"}]
    assert decoded.timing_method.statistic == "median"
    assert decoded.device_state == DeviceState()
    assert codec.decode(codec.encode(decoded)) == decoded


def test_unknown_columns_are_kept() -> None:
    """New columns of configs and timings are kept, and missing optional ones get their defaults."""

    def add(record: dict[str, Any]) -> None:
        record["config_columns"].append("cluster")
        record["configs"] = [[*row, i or None] for i, row in enumerate(record["configs"])]
        record["timing_columns"] = ["power_w", "runtime_us", "config", "outcome"]
        record["timings"] = [[500 + i, t[1], t[0], t[2]] for i, t in enumerate(record["timings"])]

    decoded, original = decode_changed(add), samples.measurement()
    assert [timing.config.extra for timing in decoded.timings] == [{}, {"cluster": 1}, {"cluster": 2}]
    assert [timing.config.key for timing in decoded.timings] == [timing.config.key for timing in original.timings]
    assert decoded.extra == {"timings": {"power_w": [500, 501, 502]}}
    assert [timing[1:] for timing in decoded.timings] == [timing[1:] for timing in original.timings]
    assert codec.decode(codec.encode(decoded)) == decoded


def test_true_and_one_are_different_arguments() -> None:
    """Python holds True and 1 equal; interning must not make one kernel of two."""
    payloads = []
    for value in (True, 1, True):
        record = content()
        record["configs"][1][10] = [["FLAG", value]]
        payloads.append(written(record))
    kwargs = [codec.decode(payload).timings[1].config.kwargs[0][1] for payload in payloads]
    assert [type(value) for value in kwargs] == [bool, int, bool]


def test_a_float_that_is_whole_is_the_same_kernel() -> None:
    """Another writer's 2.0 is our 2, as it is where configs are normalised."""
    decoded = decode_changed(lambda record: record["configs"][1].__setitem__(10, [["SPLIT", 2.0]]))
    assert decoded.timings[1].config == samples.triton_config(16, SPLIT=2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"host": "a\0"}, "host must be text"),
        ({"extra": {"when": object()}}, "cannot be stored"),
        ({"extra": {"many": 2**70}}, "cannot be stored"),
        ({"extra": {1: 2}}, "int is not allowed for map key|must have text for keys"),
        ({"hardware": samples.Hardware("nvidia", "x", "sm_90", 0)}, "multiprocessors"),
        ({"timings": (Timing(samples.triton_config(), None),)}, "outcome ok does not go with runtime None"),
        ({"timings": (Timing(samples.triton_config(), 1.0, Outcome.TIMEOUT),)}, "outcome timeout does not go"),
    ],
)
def test_what_could_not_be_read_is_not_written(overrides: dict[str, Any], message: str) -> None:
    """A writer hears of a bad record at once, not the daemon that reads it later."""
    with pytest.raises(RecordError, match=message):
        codec.encode(samples.measurement(**overrides))
