"""Is the library's picture of TensorFlow on a GPU right? One command measures it.

    python -m experiments.gpu_validation run --output DIR [--short] [--minutes M]
    python -m experiments.gpu_validation draw --output DIR

Parts, in the order of their worth; each is some trials, each trial a process of its own
with its own time limit (`catalogue`). A second call goes on where the first one ended.

    0  machine    TensorFlow sees the GPU, and computes on it
    1  link       copies by size, direction and kind of memory, and beside convolutions
    2  swap       bytes leave the device, and no number changes
    3  costs      ops against a roofline, with TF32 and without; launches; scratch
    4  headline   the case study: 192^3 in a device that 144^3 just fits in
    5  predicted  peaks and step times against what was promised; a step's lanes
    6  peers      what else would save memory

    DIR/results.jsonl   circumstances, then one line for each trial
    DIR/summary.json    the same, with what was found of each claim
    DIR/log.txt         what the processes printed
    DIR/traces/         lanes of steps for Perfetto; TensorFlow's own traces

`--device cpu` rehearses all of it at a tiny size, on a CPU with the allocator and the
limits of a GPU (`lms.machine.emulate`): the same code runs, and its numbers say
nothing.

Known weakness: not yet run on a GPU. `docs/gpu.md` says what is proved.
"""

__all__: list[str] = []
