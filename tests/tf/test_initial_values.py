"""What is made part by part on the host has the bits of the initialiser."""

import pytest

pytestmark = pytest.mark.tf

SHAPES = [(1031, 517), (2001, 31, 7), (300_001,)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["GlorotUniform", "RandomUniform", "RandomNormal", "Zeros", "Ones"]
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


@pytest.mark.parametrize("name", ["TruncatedNormal", "Orthogonal"])
def test_others_run_as_they_are(name: str) -> None:
    import keras

    from lms.tf.initial_values import made_on_host

    initialiser = getattr(keras.initializers, name)(seed=3)
    assert made_on_host(lambda: initialiser((64, 64), dtype="float32"), 1024) is None


def test_a_seed_that_is_a_variable_is_left_as_it_is() -> None:
    import keras

    from lms.tf.initial_values import made_on_host

    seed = keras.random.SeedGenerator(3)
    initialiser = keras.initializers.GlorotUniform(seed=seed)
    assert made_on_host(lambda: initialiser((64, 64)), 1024) is None
    assert seed.state.numpy().tolist() == [3, 0]
