"""One step of a Keras model, as Keras would trace it, and the step's batch."""

from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

import keras
import tensorflow as tf

from lms.errors import UnsupportedError

__all__ = [
    "as_tensors",
    "batch_specs",
    "check_model",
    "is_alone",
    "iterator_of",
    "make_slots",
]
__all__ += ["one_of", "own_functions", "step_of", "step_of_data"]


def check_model(model: keras.Model) -> None:
    """Refuse models that are not planned.

    Raises:
        UnsupportedError: For `run_eagerly`, another backend, functions that the model
            makes itself, and more than one replica.
    """
    if (backend := keras.config.backend()) != "tensorflow":
        raise UnsupportedError(
            "Keras's backend must be TensorFlow for large model support, got "
            f"{backend}. Set KERAS_BACKEND=tensorflow."
        )
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UnsupportedError(
                f"a model must have Keras's `{name}`, got one of its class: the steps "
                "are not known. Override `train_step` instead."
            )
    if model.run_eagerly:
        raise UnsupportedError(
            "`run_eagerly` must be False for large model support, got True: there is "
            "no graph to plan. Compile the model with run_eagerly=False."
        )
    strategy = model.distribute_strategy
    is_mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if strategy.num_replicas_in_sync > 1 and not is_mirrored:
        raise UnsupportedError(
            "a strategy of several replicas must be tf.distribute.MirroredStrategy for "
            f"large model support, got {type(strategy).__name__}. Use it, or leave the "
            "callback's `budget`, `plan` and `thresholds` out."
        )


def step_of(model: keras.Model, kind: str) -> Callable[..., Any]:
    """Return a step of Keras ("train", "test", "predict") as a function of an iterator.

    As in Keras, the predict step takes a list of one batch, and each step calls another
    function: Grappler orders the inputs of `AddN` by names and places in the graph.
    """
    on_data = tf.function(
        step_of_data(model, kind), reduce_retracing=True, jit_compile=False
    )

    @tf.autograph.experimental.do_not_convert
    def on_iterator(given: Any) -> Any:
        draw = getattr(given, "get_next", None)  # or a batch of several replicas
        return on_data(given if draw is None else draw())

    @tf.autograph.experimental.do_not_convert
    def on_list(batches: Sequence[Any]) -> Any:
        return on_data(batches[0])

    return on_list if kind == "predict" else on_iterator


def make_slots(model: keras.Model) -> None:
    """Create the optimizer's slots before the first step, which would create them.

    TensorFlow traces a step that creates variables twice. Only Keras's own step surely
    updates all trainable weights, so a custom `train_step` creates its slots itself. So
    does a loss-scale optimizer, which names variables by where it creates them.
    """
    is_own = type(model).train_step is keras.Model.train_step
    optimizer: Any = model.optimizer
    if not (is_own and optimizer and model.trainable_variables) or optimizer.built:
        return
    if not all(layer.built for layer in _layers(model)):  # the first step creates them
        return
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        with keras.name_scope(optimizer.name, caller=optimizer):  # as Keras does
            made, known = optimizer._variables, len(optimizer.variables)  # noqa: SLF001
            try:
                optimizer.build(model.trainable_variables)
            except BaseException:  # Keras marks it as built before it makes slots
                optimizer.built = False
                while len(made) > known:
                    made.pop()
                raise


def _layers(model: Any) -> list[Any]:
    return model._flatten_layers()  # noqa: SLF001 - there is no public form


def names_of_layers(model: keras.Model) -> set[str]:
    """Return the names of a model's layers at any depth, without its own."""
    return {layer.name for layer in _layers(model) if layer is not model}


def own_functions(model: keras.Model, kind: str) -> list[Any]:
    """Return the `tf.function`s of Keras's own steps; none if Keras made none yet.

    For training and evaluation Keras wraps two in a function that calls nothing else:
    of an iterator, and of a batch.
    """

    def is_one(function: Any) -> bool:
        return isinstance(function, tf.types.experimental.PolymorphicFunction)

    made = unwrap(getattr(model, f"{kind}_function"), stop=is_one)
    around = [cell.cell_contents for cell in getattr(made, "__closure__", None) or ()]
    found = [unwrap(each, stop=is_one) for each in (made, *around)]
    return list(filter(is_one, found))


def step_of_data(model: keras.Model, kind: str) -> Callable[[Any], Any]:
    """Return one step as a function of a batch. Tracing it builds unbuilt layers.

    Results of several replicas become one, as in Keras's `reduce_per_replica`.
    """
    one_step = getattr(model, f"{kind}_step")
    strategy: Any = model.distribute_strategy

    def reduced(value: Any) -> Any:
        if not isinstance(value, tf.distribute.DistributedValues):
            return value
        each = strategy.experimental_local_results(value)
        return tf.concat(each, 0) if kind == "predict" else tf.reduce_mean(each, 0)

    @tf.autograph.experimental.do_not_convert
    def on_data(data: Any) -> Any:
        results = strategy.run(one_step, args=(as_tensors(data),))
        return keras.tree.map_structure(reduced, results)

    return on_data


def batch_specs(batch: Sequence[Any]) -> tuple[Any, ...]:
    """Return a batch's specs with the types that `fit` casts to: floats get `floatx`.

    Args:
        batch: Parts of a batch: specs, arrays, or nests of them; None for absent ones.

    Raises:
        UnsupportedError: If a shape has an open dimension.
    """
    specs = tuple(keras.tree.map_structure(_spec, part) for part in batch)
    for spec in keras.tree.flatten(specs):
        if spec is not None and not spec.shape.is_fully_defined():
            raise UnsupportedError(
                f"a batch must have known dimensions, got {spec.shape}. Write the "
                "batch size too: tf.TensorSpec([1, 48, 48, 48, 4])."
            )
    return specs


def iterator_of(specs: Sequence[Any]) -> Any:
    """Return an empty iterator over batches of full specs, of the kind of `fit`'s."""
    empty = tf.data.Dataset.from_generator(
        lambda: iter(()), output_signature=tuple(specs)
    )
    return iter(empty)


def is_alone(model: keras.Model) -> bool:
    """Tell whether a model has one replica."""
    return bool(model.distribute_strategy.num_replicas_in_sync == 1)


def one_of(iterator: Any, batch: Any) -> Any:
    """Return an iterator over one drawn batch, of an iterator's open shapes."""
    made = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(batch))
    return iter(tf.data.experimental.from_variant(made, iterator.element_spec))


def _spec(value: Any) -> tf.TensorSpec | None:
    if value is None:
        return None
    if isinstance(value, tf.TensorSpec):
        return value
    if isinstance(value, tf.Tensor):
        return tf.TensorSpec(value.shape, value.dtype)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise UnsupportedError(
            f"a batch must be made of arrays or tf.TensorSpec, got {value!r}. Convert "
            "it with numpy.asarray."
        )
    dtype = tf.as_dtype(value.dtype)
    if dtype.is_floating:
        dtype = tf.as_dtype(keras.config.floatx())
    return tf.TensorSpec(value.shape, dtype)


def as_tensors(batch: Any) -> Any:
    """Return a batch without Keras's marks of absent parts, its arrays as tensors."""

    def part(value: Any) -> Any:
        if isinstance(value, tf.experimental.Optional):
            return None
        if isinstance(value, tf.Tensor) or not hasattr(value, "__array__"):
            return value
        with tf.device("CPU:0"):  # arrays take no memory of the device
            return tf.convert_to_tensor(value)

    return keras.tree.map_structure(part, batch)
