"""NVML's counters, from recorded values."""

from lms.units import GIB
from profiling.counters import describe_gpus, read_counters
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
    api = Recorded(A100 | {"nvmlDeviceGetPowerUsage": RecordedError(3)})
    counters = read_counters(api, 0)
    assert counters["power"] == {"not available": "Not Supported"}
    assert counters["gpu_utilisation"] == 0.87


def test_a_field_value_with_an_error_of_its_own_is_not_a_number() -> None:
    (value,) = A100["nvmlDeviceGetFieldValues"]
    failed = type(value)(nvmlReturn=6, value=value.value)
    api = Recorded(A100 | {"nvmlDeviceGetFieldValues": [failed]})
    missing = read_counters(api, 0)["nvlink_received"]
    assert missing == {"not available": "Not Found"}


def test_a_device_that_disappears_leaves_a_reason_in_every_counter() -> None:
    counters = read_counters(Recorded(lost=True), 0)
    assert set(map(str, counters.values())) == {"{'not available': 'GPU is lost'}"}


def test_a_link_that_hides_its_other_end_still_counts() -> None:
    api = Recorded(A100 | {"nvmlDeviceGetNvLinkRemoteDeviceType": RecordedError(3)})
    (device,) = describe_gpus(api)
    assert device["nvlinks"] == [[4, False]] * 4


def test_a_gpu_that_disappears_is_described_by_reasons() -> None:
    (device,) = describe_gpus(Recorded(A100 | {"nvmlDeviceGetName": RecordedError(15)}))
    assert device["name"] == {"not available": "GPU is lost"}
    assert device["memory"] == 40 * GIB
