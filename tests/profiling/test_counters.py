"""NVML's counters, from recorded values."""

import json

import pytest

from lms.machine.inventory import NoDriverError
from lms.units import GIB
from profiling.counters import describe_gpus, open_gpus, read_counters
from tests.profiling.recorded import A100, Recorded, RecordedError


def test_counters_come_in_the_units_of_the_project() -> None:
    counters = read_counters(Recorded(), 0)
    assert counters["gpu_utilisation"] == 0.87
    assert counters["used_memory"] == 1073741824
    assert counters["pcie_received"] == 1_024_000_000
    assert counters["nvlink_sent"] == 2 * 1024 * 1024
    assert counters["sm_clock"] == 1.41e9
    assert counters["power"] == 250.5
    assert counters["throttling"] == ["software power cap", "software thermal slowdown"]


def test_a_missing_counter_is_recorded_with_its_reason_and_spares_the_others() -> None:
    (value,) = A100["nvmlDeviceGetFieldValues"]  # has an error of its own
    fields = [type(value)(nvmlReturn=6, value=value.value)]
    missing = {"nvmlDeviceGetPowerUsage": RecordedError(3)}
    missing |= {"nvmlDeviceGetFieldValues": fields}
    counters = read_counters(Recorded(A100 | missing), 0)
    assert counters["power"] == {"not available": "Not Supported"}
    assert counters["nvlink_received"] == {"not available": "Not Found"}
    assert counters["gpu_utilisation"] == 0.87


def test_a_device_that_disappears_leaves_a_reason_in_every_counter() -> None:
    counters = read_counters(Recorded(lost=True), 0)
    assert set(map(str, counters.values())) == {"{'not available': 'GPU is lost'}"}


def test_a_gpu_that_hides_facts_is_described_by_reasons() -> None:
    hidden = ("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetName")
    api = Recorded(A100 | dict.fromkeys(hidden, RecordedError(3)))
    (device,) = describe_gpus(api)
    assert device["nvlinks"] == [[4, False]] * 4
    assert device["name"] == {"not available": "Not Supported"}
    assert device["memory"] == 40 * GIB


def test_names_that_come_as_bytes_are_text() -> None:
    names = ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlSystemGetDriverVersion")
    api = Recorded(A100 | {name: A100[name].encode() for name in names})
    assert json.loads(json.dumps(describe_gpus(api))) == describe_gpus(Recorded())


def test_a_driver_without_a_gpu_is_none() -> None:
    with pytest.raises(NoDriverError, match="NVML counts none"):
        open_gpus(Recorded({"nvmlInit": None, "nvmlDeviceGetCount": 0}))
