"""The columns of the results' tables in words, for readers who know nothing else."""

from collections.abc import Mapping, Sequence

__all__ = ["WORDS", "explained", "unexplained"]

# What several tables share.
WORDS = {
    "48^3": "a volume of 48 x 48 x 48 voxels",
    "device": "bytes of the device that a training runs in. Unless a section says "
    "otherwise it is an *emulated device*: a CPU with the allocator that TensorFlow "
    "uses on GPUs, and a hard limit ([how](emulation.md))",
    "memory": "as *device*",
    "step": "the time of one training step: forward pass, backward pass and update of "
    "one batch; the median of several",
    "plain Keras": "a training without this library; so is everything "
    "*without support* or *without a plan*",
    "budget": "a training with `LMSCallback(budget=...)`, by the *budget planner*; "
    "`LMS` means the same",
    "TFLMS's rule": "a training with `LMSCallback(planner='threshold')`, which swaps "
    "by the rule of IBM's TFLMS; its thresholds are tuned for 90 % of the device, and "
    "for less where that fails",
    "peak": "the most bytes in use in a step, by the allocator's own count; the first "
    "step, which initialises, is left out",
    "predicted": "what was predicted before the first step, of a peak or a time",
    "swapped out": "bytes that one step copies from the device to the host",
    "swapped in": "bytes that one step copies back",
    "run twice": "ops that are run a second time, so that what they made need be "
    "neither kept nor copied",
    "planned anew": "how often a step ran out of memory all the same, was planned "
    "into less, and went on with the same batch",
    "voxels": "voxels of the volume, over those of the smallest one in the table",
    "how it ended": "*out of memory at a tensor of [...]* names the tensor that "
    "TensorFlow found no room for; *process crashed* means that a convolution of the "
    "CPU did not survive that",
    "link": "the way between device and host, whose speed copies are slowed to; "
    "without one they have the speed of the host's memory",
    "size": "of the input: voxels along an axis, images, or tokens",
}

_TIMES = "over plain Keras's"
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "true_size": {
        "way": "plain Keras, or this library with a budget (LMS)",
        "step per voxel": "seconds per voxel, over those of plain Keras at the "
        "smallest size",
    },
    "largest_volume": {
        "model": "and the one device memory that all of its trainings have",
        "way": "what saves memory; RematScope is Keras's own recomputation, in its "
        "mode `activations`, since the others fail with TensorFlow "
        "([keras#21207](https://github.com/keras-team/keras/issues/21207))",
        "largest": "the largest size that trained",
        "predicted": "the largest size that is predicted to fit, without training",
        "times": f"voxels, images or tokens of the largest, {_TIMES}",
        "what stops the next": "the next size, and how its training ended",
    },
    "zoo": {
        "model": "and where it comes from",
        "outcome": "how many trainings ended so: with the bits of plain Keras, refused "
        "with a least budget that works, or with a defect",
        "plain peak": "peak of plain Keras in a device with plenty",
        "of it": "the device, as a share of the plain peak",
        "measured": "as *peak*",
        "run again": "as *run twice*",
        "reason": "of a refusal or a defect",
    },
    "step_time_overhead": {
        "planner": "budget, or TFLMS's rule tuned for so much of the device",
        "without": "step of plain Keras in a device with enough memory",
        "with": "step with support in the small device",
        "ratio": "*with* over *without*",
        "bound": "no plan that swaps as many bytes can have a lower ratio: the longer "
        "of computing and copying, over computing",
    },
    "half_the_memory": {
        "cores": "one core runs one op at a time, as a GPU does; all cores run ops at "
        "the same time",
        "way": "*plain, ops one by one* is plain Keras told to run one op at a time",
        "ops run twice": "as *run twice*",
        "over plain": "the step, over plain Keras's in the same line of cores and link",
    },
    "moved_or_recomputed": {
        "way": "*cheap ops twice* runs no product or convolution twice; *by hand*: "
        "each block within `tf.recompute_grad`",
        "memory": "of the device; *enough* where it was not limited",
        "over plain": "the median of steps, each over plain Keras's of the same round",
        "quartiles": "of these ratios",
        "fastest": "the fastest step over plain Keras's fastest",
        "losses": "of all steps, compared with plain Keras's bit for bit",
    },
    "dice_vs_volume": {
        "pair": "the two resolutions that are compared",
        "region": "of the tumour, as BraTS names them",
        "mean, lower": "mean Dice of the models trained at the lower resolution",
        "mean, higher": "and of those at the higher one",
        "median gain": "median over subjects of the higher's Dice less the lower's",
        "p": "of Wilcoxon's signed-rank test",
        "p by Holm": "the same, corrected for the three regions of a pair",
    },
    "unet3d_sizes": {
        "training": "without support: plain Keras; with: `LMSCallback`",
        "second epoch": "seconds, validation and reading included",
    },
    "planner_comparison": {
        "planner": "*nothing twice*, *twice where it can* and *TensorFlow's order* are "
        "the budget planner without running ops twice, with it wherever possible, and "
        "without an execution order of its own; the rule's *default modes* are how "
        "TFLMS runs it",
        "plans run": "how many plans were measured; the one of the least peak is shown",
        "least peak": "the lowest measured peak",
        "over what no plan can go below": "the least peak, over the sum of persistent "
        "bytes and the inputs, outputs and scratch of the largest op",
    },
    "simulator_accuracy": {
        "model": "`unet`, `resnet` and `transformer` are small networks",
        "predicted peak": "before the first step",
        "measured peak": "as *peak*",
        "off by": "predicted over measured, less 1",
        "predicted step": "before the first step",
        "in turns": "predicted from ops that were measured anew between the steps, "
        "since a shared machine is not always as fast",
        "measured step": "as *step*",
    },
    "link_comparison": {
        "what": "predicted for a V100, or trained here in an emulated device",
        "way": "*without support* or *fits*: nothing is swapped",
        "out and in": "bytes that one step swaps out and in, together",
        "twice": "as *run twice*",
        "busy": "the part of a step in which the device computes",
        "to it": "throughput of copies to the device",
        "from it": "throughput of copies from the device",
        "two at once": "the step while another training runs on the other core, with a "
        "link of its own",
        "on one bus": "the step while another training shares the link",
        "epoch": "as many steps as the case study's epoch had",
    },
    "overhead_when_it_fits": {
        "time": "by the clock, or of the processor",
        "median ratio": "step with the callback, over step of plain Keras",
        "lower quartile": "of the ratios",
        "upper quartile": "of the ratios",
    },
    "planning_scale": {
        "graph": "drawn graphs of so many ops, and traced steps of two networks",
        "ops": "how many the graph has",
        "planning": "seconds by the clock",
        "of the processor": "seconds of the processor",
        "of it the order": "seconds for the execution order",
        "playing it": "seconds to simulate the plan once",
        "swaps": "tensors that the plan swaps",
    },
}


def explained(name: str, columns: Sequence[str]) -> list[tuple[str, str]]:
    """The columns of an experiment's table that it alone has, with their meaning.

    Example:
        >>> explained("overhead_when_it_fits", ["time", "peak"])
        [('time', 'by the clock, or of the processor')]
    """
    words = _COLUMNS.get(name, {})
    return [(each, words[each]) for each in dict.fromkeys(columns) if each in words]


def unexplained(name: str, columns: Sequence[str]) -> list[str]:
    """Columns that no word says anything of.

    Example:
        >>> unexplained("true_size", ["size", "colour"])
        ['colour']
    """
    known = {**WORDS, **_COLUMNS.get(name, {})}
    return [column for column in columns if column not in known]
