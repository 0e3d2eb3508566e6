"""What links give by their standards."""

import pytest

from profiling.counters import describe_gpus
from profiling.link_standards import stated_link
from tests.profiling.recorded import A100, Recorded, RecordedError


def test_links_to_other_gpus_are_not_the_link_to_the_host() -> None:
    (device,) = describe_gpus(Recorded())
    assert device["nvlinks"] == [[4, False]] * 4
    assert stated_link(device) == {
        "link": "PCIe 4 x16",
        "bandwidth": pytest.approx(31.508e9, rel=1e-4),
    }


def test_nvlink_to_the_cpu_is_the_link_to_the_host() -> None:
    power9 = {"nvmlDeviceGetNvLinkRemoteDeviceType": 1, "nvmlDeviceGetNvLinkVersion": 2}
    (device,) = describe_gpus(Recorded(A100 | power9))
    link = stated_link(device)
    assert link is not None
    assert link["bandwidth"] == 4 * 25e9


def test_without_the_pcie_generation_no_link_is_stated() -> None:
    missing = {"nvmlDeviceGetMaxPcieLinkGeneration": RecordedError(3)}
    (device,) = describe_gpus(Recorded(A100 | missing))
    assert device["pcie_generation"] == {"not available": "Not Supported"}
    assert stated_link(device) is None
