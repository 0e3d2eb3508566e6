"""Variables stay where they are, step after step, with plain Keras's bits."""

import pytest
import tensorflow as tf

from lms.tf.passes.assign_in_place import PLACED
from lms.tf.passes.host_variables import COPY_HOST_VARIABLES, movable_to_host
from tests.tf.steps import DEVICE, changed, specialised
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

# Trainable kernels of 9 KiB, and their slots.
LARGE = {"momentum": 8, "nesterov": 8, "AdamW": 12, "RMSprop": 16, "Lion": 8}
LONG = {*LARGE} - {"AdamW"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(name, marks=pytest.mark.long if name in LONG else ())
        for name in LARGE
    ],
)
def test_variables_stay_where_they_are_and_arrays_of_them_as_they_were(
    optimizer: str, worker: Worker
) -> None:
    trial = worker.ask(
        "tests.tf.assigning_trials:train", memory="2GiB", optimizer=optimizer
    )
    assert trial["swaps"] > 0, "the step is not planned: this says nothing"
    assert trial["large"] == LARGE[optimizer]
    assert trial["steps"] == 9
    assert trial["different"] == []
    assert trial["moved"] == []
    # What somebody holds is left to him: then the new value lies elsewhere.
    assert trial["is_held"]
    assert trial["trained"]
    assert trial["unchanged"]
    assert trial["moved_while_held"] == ["sequential/second/kernel"]


def test_only_variables_that_one_op_writes_and_none_reads_in_pieces_stay() -> None:
    ones = tf.ones([64, 16])  # 4 KiB
    variables = {
        "stays": tf.Variable(ones),
        "stays, as many are small": tf.Variable(ones[:56]),
        "among the smallest": tf.Variable(ones[:4]),  # with the next less than 4 KiB
        "small": tf.Variable(ones[:8]),
        "whole numbers": tf.Variable(tf.cast(ones, tf.int32)),
        "written twice": tf.Variable(ones),
        "read in pieces": tf.Variable(ones),
        "only read": tf.Variable(ones),
    }

    def step() -> tf.Tensor:
        for name, variable in variables.items():
            if name != "only read":
                variable.assign(2 * variable)
        variables["written twice"].assign_add(ones)
        read = tf.gather(variables["read in pieces"], [1, 2])
        return tf.reduce_sum(read) + tf.reduce_sum(variables["only read"])

    planned = specialised(step)
    names = {id(variable.handle): name for name, variable in variables.items()}
    handles = {n: names[id(handle)] for n, (handle, _) in planned.variables.items()}
    by_name = {node.name: node for node in planned.nodes}
    placed = [name for name in by_name if name.endswith(PLACED)]
    assigned = [by_name[name.removesuffix(PLACED)] for name in placed]
    stay = {handles[f"{node.input[0]}:0"] for node in assigned}
    assert stay == {"stays", "stays, as many are small"}
    # What lies in the variable's memory takes none of the step's.
    sizes = [t.size for name in placed for t in planned.graph.by_name[name].outputs]
    assert sizes == [0, 0]


def test_updates_wait_for_copies_of_variables_on_the_host() -> None:
    weights = tf.Variable(tf.ones([8, 8]))

    def step(x: tf.Tensor) -> tf.Tensor:
        largest = tf.reduce_max(weights)
        weights.assign_sub(tf.linalg.matmul(x, x))
        return largest

    given = specialised(step, tf.ones([8, 8]))
    (read,) = (node for node in given.nodes if node.op == "ReadVariableOp")
    nodes = changed(COPY_HOST_VARIABLES, given, on_host={read.input[0]})
    (update,) = (node for node in nodes if node.op == "AssignSubVariableOp")
    assert {f"^{read.name}", f"^{read.name}/lms_host"} <= set(update.input)


def test_a_variable_that_gets_another_tensor_stays_on_the_card() -> None:
    ones = tf.ones([64, 1024])
    names = ("written once", "written twice", "added to")
    variables = {name: tf.Variable(ones) for name in names}

    def step() -> tf.Tensor:
        variables["written once"].assign(2 * variables["written once"])
        variables["written twice"].assign(2 * variables["written twice"])
        variables["written twice"].assign_add(ones)
        variables["added to"].assign_add(ones)
        return tf.reduce_sum(ones)

    planned = specialised(step)
    known = planned.graph, planned.nodes, planned.variables, DEVICE
    found = {id(handle) for handle in movable_to_host(*known)}
    movable = {name for name in names if id(variables[name].handle) in found}
    assert movable == {"written once", "added to"}
