"""The columns of the results' tables in words, for readers who know nothing else."""

from collections.abc import Mapping, Sequence

__all__ = ["WORDS", "explained", "unexplained"]

# What several tables share.
WORDS = {
    "case study": "IBM's of 2018: a 3D U-Net trains on brain scans with TFLMS, IBM's "
    "library of large model support. Its GPUs (V100) had 16 GB: there 144^3 was the "
    "largest that trained without TFLMS, and 192^3 trained with it "
    "([more](case_study.md)). The name TFLMS always means IBM's",
    "size": "of what a model trains on: 48^3 is a volume of 48 x 48 x 48 voxels; "
    "elsewhere it is the images of a batch, or the tokens of a sequence",
    "device": "bytes of the device that a training runs in. Unless a section says "
    "otherwise it is an *emulated device*: a CPU with the allocator that TensorFlow "
    "uses on GPUs, and a hard limit ([how](emulation.md))",
    "link": "the way between device and host, whose speed copies are slowed to; "
    "*none*: they have the speed of the host's memory",
    "way": "who plans the step: nobody (plain Keras), the callback, or IBM's rule",
    "plain Keras": "a training without this library",
    "the callback": "a training with `LMSCallback`, and a plan for the device's memory "
    "by this library's own planner",
    "IBM's rule": "a training with `LMSCallback(thresholds={})`, which swaps by "
    "the rule of IBM's TFLMS, its second version, tuned as IBM did: by memory alone, "
    "for 0.9 of the device, and with steps that wait for copies where nothing else "
    "fits; *80%* or *60%*: so in that part of the device, where all of it failed. Rows "
    "that say *90%*, *70%* or *50%* are older. There a simulated step had to fit in "
    "which no allocation waits for a copy: IBM's own tuning may do better than these. "
    "Trainings of it without *thresholds* are older too: over a link the rule had four "
    "threads more there than the callback",
    "IBM's rule, serialised": "the same with all levels of the graph serialised, and "
    "every copy waited for: less memory in more time, which IBM's users had to ask for",
    "step": "the time of one training step: forward pass, backward pass and update of "
    "one batch; the median of several",
    "over plain Keras": "the step, over plain Keras's of the same size in a device "
    "with enough memory",
    "per voxel": "the step per voxel, over plain Keras's of the smaller size, which "
    "fits: the ratio that IBM published",
    "peak": "the most bytes in use in a step, by the allocator's own count; the first "
    "step, which initialises, is left out",
    "predicted": "what was predicted before the first step, of a peak or a time",
    "swapped out": "bytes that one step copies from the device to the host",
    "swapped in": "bytes that one step copies back",
    "run twice": "ops that are run a second time, so that what they made need be "
    "neither kept nor copied",
    "how it ended": "*out of memory at a tensor of [...]* names the tensor that "
    "TensorFlow found no room for; *process crashed*: a convolution of the CPU did not "
    "survive that; *no plan*: none was found for less than the bytes named; "
    "*planned anew*: a step ran out of memory all the same, was planned into less, and "
    "went on with the same batch; *thresholds 9, 3, 0, sync off*: what IBM's rule was "
    "tuned to, `swapout_threshold`, `swapin_ahead`, `swapin_groupby` and `sync_mode`",
    "goal": "what was to be reached when an experiment was written, and whether it was",
}

_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "virtual_cards": {
        "model": "and its size, or its batch",
        "card": "by its data sheet; TensorFlow's GPU runtime is real, kernels are not",
        "link": "of the card to the host, by its data sheet",
        "way": "*host copies*: the same plan, with copies by ops on the host",
        "device": "the budget that the callback was given, of all of the card",
        "promised ratio": "the predicted step over the predicted one with room for all",
        "over plain Keras": "the step, over plain Keras's on the same card",
        "copies": "out + in of a step: planned / run, with those of plain Keras itself",
        "copied": "bytes out of a step: planned / counted",
        "swap-ins hidden": "of the time that they take, the share beside kernels",
        "peak promised": "before the first step",
        "planning": "seconds of this machine's two cores, which other work shared",
        "plain step": "in the card's time",
        "kernels": "of a step, the time in which at least one ran",
    },
    "true_size": {
        "voxels": "over those of plain Keras's size",
        "quartiles": "of the steps, in seconds",
        "over plain Keras": "as above; empty where plain Keras's was not timed",
    },
    "largest_volume": {
        "model": "and the one device memory that all of its trainings have",
        "way": "what saves memory; RematScope is Keras's own recomputation, in "
        "that of its modes that takes the least: `full` and `larger_than` fail with "
        "TensorFlow ([keras#21207](https://github.com/keras-team/keras/issues/21207)), "
        "and rows without `list_of_layers` are older than its trial",
        "largest": "the largest size that trained",
        "predicted": "the largest size that is predicted to fit, without training",
        "times": "voxels, images or tokens of the largest, over plain Keras's",
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
        "planned anew": "how often a step ran out of memory and was planned into less",
        "reason": "of a refusal or a defect",
    },
    "step_time_overhead": {
        "quartiles": "of the steps, over plain Keras's median",
        "voxels": "over those of the largest size that plain Keras trains in so much",
        "plain step": "plain Keras's, of the same size, in a device with enough memory",
        "link's least": "the least that *over plain Keras* can be with so many bytes "
        "swapped: the longer of computing and copying, over computing. It counts no "
        "ops that run twice, so a plan that has them cannot reach it",
    },
    "half_the_memory": {
        "quartiles": "of *over plain Keras*, step by step",
        "cores": "one core runs one op at a time, as a GPU does; all cores run ops at "
        "the same time",
        "way": "*ops one by one* is plain Keras told to run one op at a time",
    },
    "moved_or_recomputed": {
        "model": "of keras-hub, this project and keras.applications; small, with "
        "random weights",
        "way": "*cheap ops twice* runs no product or convolution twice; *by hand*: "
        "each block within `tf.recompute_grad`; *RematScope*: Keras's own, all layers "
        "listed that keep no state; *mixed bfloat16*: Keras's policy, other numbers",
        "memory": "of the device; *enough* where it was not limited",
        "over plain": "the median of steps, each over plain Keras's of the same round",
        "quartiles": "of these ratios",
        "fastest": "the fastest step over plain Keras's fastest",
        "losses": "of all steps, compared with plain Keras's bit for bit",
    },
    "language_model_plans": {
        "card": "and its link to the host, as data sheets have them",
        "way": "*by hand*: each block within `tf.recompute_grad`; the callback in so "
        "many GiB, or in the bytes that blocks by hand take",
        "times plain": "the predicted step over plain Keras's on the same card",
        "moved out": "bytes swapped out in each step",
    },
    "scaling": {
        "workers": "processes on the same cores",
        "device each": "memory of each worker's emulated device",
        "step apart": "the mean, of processes that train each for itself",
        "step together": "the mean, of workers of one job",
        "quartiles": "of steps together",
        "efficiency": "a step apart over a step together",
        "reductions": "the mean of all gradients over all workers, timed alone",
        "of the step": "reductions over a step together",
        "peak": "the largest that a worker's allocator measured",
        "predicted": "that peak, before the first step; in the second table the "
        "efficiency",
        "GPUs": "V100s of 16 GB, four to a server",
        "epoch, published": "of PowerAI DDL",
        "efficiency, published": "one GPU's epoch over so many times the job's",
    },
    "dice_vs_volume": {
        "pair": "the two sizes that are compared",
        "region": "of the tumour, as BraTS names them",
        "voxels": "of the larger size, over those of the smaller one",
        "mean, smaller": "mean Dice of the models trained at the smaller size",
        "mean, larger": "and of those at the larger one",
        "median gain": "median over subjects of the larger's Dice less the smaller's",
        "p": "of Wilcoxon's signed-rank test",
        "p by Holm": "the same, corrected for the three regions of a pair",
    },
    "unet3d_sizes": {
        "voxels": "over those of the largest size that plain Keras trains",
        "second epoch": "seconds, validation and reading included",
    },
    "planner_comparison": {
        "planner": "*nothing run twice*, *twice where it can* and *TensorFlow's order* "
        "are the callback's planner without running ops twice, with it wherever "
        "possible, and without an execution order of its own; the *default modes* of "
        "IBM's rule are how TFLMS runs if nothing is asked for",
        "plans run": "how many plans were measured; the one of the least peak is shown",
        "least peak": "the lowest measured peak. Bytes and times beside it are of that "
        "plan: lines of other peaks are not to be compared",
        "over the least possible": "the least peak, over the sum of persistent bytes "
        "and the inputs, outputs and scratch of the largest op: no plan can go below",
        "room": "what the callback's plan was made for, as a share of plain Keras's "
        "peak",
        "the callback": "bytes swapped out, and the measured peak",
        "twice where it can": "the same, with ops run twice wherever they can be",
        "IBM's rule": "the same, of its setting in the default modes that swaps out "
        "the fewest bytes at no higher a peak than the callback's; empty where none "
        "has so low a peak",
    },
    "sum_error": {
        "of": "the number that is made of sums over the volume",
        "TensorFlow's sum": "its relative error, by TensorFlow's own sums",
        "one axis at a time": "the same, by those of `unet3d.sums`; empty where only "
        "TensorFlow's own is to be had",
        "float64": "its value, summed in float64 by NumPy",
    },
    "optimality": {
        "bound": "what no plan is faster than, in so many bytes",
        "steps": "drawn steps that were planned",
        "solved": "of how many the programme was solved; of others the bound is what "
        "was proved in time",
        "median": "of our predicted step over the bound",
        "90th percentile": "of the same",
        "worst": "of the same",
    },
    "simulator_accuracy": {
        "model": "`unet`, `resnet` and `transformer` are small networks",
        "predicted peak": "before the first step",
        "measured peak": "as *peak*",
        "off by": "what is predicted over what is measured, less 1",
        "predicted step": "before the first step",
        "timed again": "the step, predicted once more from ops that were timed between "
        "the steps, since a shared machine is not always as fast",
        "measured step": "as *step*",
    },
    "overhead_when_it_fits": {
        "time": "by the clock, or of the processor",
        "median ratio": "the callback's step, over plain Keras's",
        "lower quartile": "of the ratios",
        "upper quartile": "of the ratios",
    },
    "first_step": {
        "model": "one of those that `experiments.zoo` trains",
        "plain": "seconds until plain Keras's first step is done",
        "cold": "the same with the callback, of which nothing was kept before",
        "warm": "the same once more, with what the cold run has kept",
        "cold / plain": "the median of the rounds' ratios",
        "warm / plain": "the median of the rounds' ratios",
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
