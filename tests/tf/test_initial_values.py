"""What is made part by part on the host has the bits of the initialiser."""

import pytest

pytestmark = pytest.mark.tf

SHAPES = [(1031, 517), (3, 700, 701), (300_001,)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        *("GlorotUniform", "RandomUniform", "RandomNormal", "HeNormal"),
        *("TruncatedNormal", "Zeros", "Ones"),
    ],
)
def test_parts_are_equal_to_the_whole(name: str, dtype: str) -> None:
    import keras

    from lms.tf.initial_values import made_on_host

    seeds = {} if name in ("Zeros", "Ones") else {"seed": 3}
    initialiser = getattr(keras.initializers, name)(**seeds)
    for shape in SHAPES:
        made = made_on_host(lambda shape=shape: initialiser(shape, dtype=dtype), 1024)
        assert made is not None
        whole = initialiser(shape, dtype=dtype).numpy()
        assert (made.dtype, made.tobytes()) == (whole.dtype, whole.tobytes())


def test_others_run_as_they_are() -> None:
    import keras

    from lms.tf.initial_values import made_on_host

    initialiser = keras.initializers.Orthogonal(seed=3)
    assert made_on_host(lambda: initialiser((64, 64), dtype="float32"), 1024) is None


def test_a_seed_that_is_a_variable_is_left_as_it_is() -> None:
    import keras

    from lms.tf.initial_values import made_on_host

    seed = keras.random.SeedGenerator(3)
    initialiser = keras.initializers.GlorotUniform(seed=seed)
    assert made_on_host(lambda: initialiser((64, 64)), 1024) is None
    assert seed.state.numpy().tolist() == [3, 0]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("rows", [2, 4000])
def test_what_numpy_draws_is_drawn_once(rows: int, as_tensor: bool) -> None:  # noqa: FBT001
    import keras
    import numpy as np

    import lms

    def drawn(shape: tuple[int, ...], dtype: str) -> object:
        value = generator.normal(size=shape)
        return keras.ops.convert_to_tensor(value, dtype) if as_tensor else value

    generator = np.random.default_rng(1)
    plain = keras.Variable(drawn, (rows, 8), "float32").numpy()
    generator = np.random.default_rng(1)
    with lms.on_host():
        found = keras.Variable(drawn, (rows, 8), "float32").numpy()
    assert found.tobytes() == plain.tobytes()
