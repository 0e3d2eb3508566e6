import sys

import pytest

from profiling import nvml
from tests.profiling.recorded import A100, Recorded, RecordedError


def test_counters_come_in_the_units_of_the_project() -> None:
    counters = nvml.read_counters(Recorded(), 0)
    assert counters["gpu_utilisation"] == 0.87
    assert counters["used_memory"] == 1073741824
    assert counters["pcie_received"] == 1_024_000_000
    assert counters["nvlink_sent"] == 2 * 1024 * 1024
    assert counters["sm_clock"] == 1.41e9
    assert counters["power"] == 250.5
    assert counters["throttling"] == ["software power cap", "software thermal slowdown"]


def test_a_missing_counter_is_recorded_with_its_reason_and_spares_the_others() -> None:
    api = Recorded(A100 | {"nvmlDeviceGetPowerUsage": RecordedError(3)})
    counters = nvml.read_counters(api, 0)
    assert counters["power"] == {"not available": "Not Supported"}
    assert counters["gpu_utilisation"] == 0.87


def test_a_field_value_with_an_error_of_its_own_is_not_a_number() -> None:
    (value,) = A100["nvmlDeviceGetFieldValues"]
    failed = type(value)(nvmlReturn=6, value=value.value)
    api = Recorded(A100 | {"nvmlDeviceGetFieldValues": [failed]})
    missing = nvml.read_counters(api, 0)["nvlink_received"]
    assert missing == {"not available": "Not Found"}


def test_a_device_that_disappears_leaves_a_reason_in_every_counter() -> None:
    counters = nvml.read_counters(Recorded(lost=True), 0)
    assert set(map(str, counters.values())) == {"{'not available': 'GPU is lost'}"}


def test_links_to_other_gpus_are_not_the_link_to_the_host() -> None:
    (device,) = nvml.describe_devices(Recorded())
    assert device["nvlinks"] == [[4, False]] * 4
    assert nvml.stated_link(device) == {
        "link": "PCIe 4 x16",
        "bandwidth": pytest.approx(31.508e9, rel=1e-4),
    }


def test_nvlink_to_the_cpu_is_the_link_to_the_host() -> None:
    power9 = {"nvmlDeviceGetNvLinkRemoteDeviceType": 1, "nvmlDeviceGetNvLinkVersion": 2}
    (device,) = nvml.describe_devices(Recorded(A100 | power9))
    link = nvml.stated_link(device)
    assert link is not None
    assert link["bandwidth"] == 4 * 25e9


def test_without_the_pcie_generation_no_link_is_stated() -> None:
    missing = {"nvmlDeviceGetMaxPcieLinkGeneration": RecordedError(3)}
    (device,) = nvml.describe_devices(Recorded(A100 | missing))
    assert device["pcie_generation"] == {"not available": "Not Supported"}
    assert nvml.stated_link(device) is None


@pytest.mark.gpu
def test_a_gpu_answers() -> None:
    try:
        api = nvml.open_nvml()
    except nvml.NoDriverError as error:
        pytest.skip(str(error))
    assert nvml.describe_devices(api)[0]["memory"] > 0
    assert "gpu_utilisation" in nvml.read_counters(api, 0)


def test_a_missing_package_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml.NoDriverError, match="nvidia-ml-py is missing"):
        nvml.open_nvml()
