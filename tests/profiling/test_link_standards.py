"""Rates of links by their standards."""

import pytest

from profiling import links
from profiling.counters import describe_gpu
from profiling.link_standards import stated_link
from tests.profiling.recorded import A100, Recorded, RecordedError


def test_links_to_other_gpus_are_not_the_link_to_the_host() -> None:
    device = describe_gpu(Recorded(), 0)
    assert device["nvlinks"] == [[4, False]] * 4
    assert stated_link(device) == {
        "link": "PCIe 4 x16",
        "bandwidth": pytest.approx(31.508e9, rel=1e-4),
    }


def test_nvlink_to_the_cpu_is_the_link_to_the_host() -> None:
    power9 = {"nvmlDeviceGetNvLinkRemoteDeviceType": 1, "nvmlDeviceGetNvLinkVersion": 2}
    link = stated_link(describe_gpu(Recorded(A100 | power9), 0))
    name = "NVLink (NVML version 2) x4 to the CPU"
    assert link == {"link": name, "bandwidth": 4 * 25e9}


def test_the_link_is_that_of_cuda_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {
        "nvmlDeviceGetHandleByPciBusId": lambda bus: bus,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 3 if handle == "B" else 4,
    }
    monkeypatch.setattr(links, "describe_cuda_device", lambda _: {"bus": "B"})
    monkeypatch.setattr(links, "open_nvml", lambda: Recorded(A100 | other))
    found = links.describe_link()
    assert found["stated"]["link"] == "PCIe 3 x16"
    assert found["devices"][0]["pcie_generation"] == 4


def test_without_the_pcie_generation_no_link_is_stated() -> None:
    missing = {"nvmlDeviceGetMaxPcieLinkGeneration": RecordedError(3)}
    device = describe_gpu(Recorded(A100 | missing), 0)
    assert device["pcie_generation"] == {"not available": "Not Supported"}
    assert stated_link(device) is None
