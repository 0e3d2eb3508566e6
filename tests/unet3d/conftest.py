from pathlib import Path

import pytest

from tests.unet3d.tiny import write_folder
from unet3d.synthesis import synthesize


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A subject of 6 x 5 x 4 voxels: a brain of 4 x 3 x 2 with one voxel per label."""
    return write_folder(tmp_path / "patient")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Two synthetic subjects of seed 5: read them, never change them."""
    return synthesize(tmp_path_factory.mktemp("data"), subjects=2, seed=5)
