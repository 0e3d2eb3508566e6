from pathlib import Path

import pytest

from unet3d.synthesis import synthesize


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Two synthetic subjects of seed 5: read them, never change them."""
    return synthesize(tmp_path_factory.mktemp("data"), subjects=2, seed=5)
