"""NVIDIA's driver, from recorded values."""

import sys
from typing import Any

import pytest

from lms.machine.inventory import Driver, NoDriverError, open_nvml, read_driver
from lms.units import GIB
from tests.profiling.recorded import A100, Recorded, RecordedError


def recorded(**changes: Any) -> Recorded:
    values = {"nvmlInit": None, "nvmlSystemGetCudaDriverVersion": 12040}
    return Recorded(A100 | values | changes)


def test_the_driver_is_asked_for_versions_and_memory() -> None:
    driver = read_driver(recorded())
    assert (driver.version, driver.cuda, driver.reason) == ("550.54.15", "12.4", None)
    (gpu,) = driver.gpus
    assert (gpu.memory, gpu.used) == (40 * GIB, GIB)


def test_what_the_driver_does_not_say_spares_the_rest() -> None:
    silent = {"nvmlDeviceGetMemoryInfo": RecordedError(3)}
    (gpu,) = read_driver(recorded(**silent)).gpus
    assert (gpu.memory, gpu.used) == (None, None)
    assert gpu.name is not None


def test_without_a_driver_there_is_a_reason() -> None:
    driver = read_driver(recorded(nvmlInit=RecordedError(6)))
    assert driver == Driver(reason="Not Found")


@pytest.mark.gpu
def test_a_gpu_answers() -> None:
    try:
        api = open_nvml()
    except NoDriverError as error:
        pytest.skip(str(error))
    assert read_driver(api).gpus[0].memory


def test_a_missing_package_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoDriverError, match="nvidia-ml-py is missing") as caught:
        open_nvml()
    assert read_driver() == Driver(reason=str(caught.value.__cause__))
