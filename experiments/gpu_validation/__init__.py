"""Is the library's picture of TensorFlow on a GPU right? One command measures it.

    python -m experiments.gpu_validation run --output DIR [--short] [--minutes M]
    python -m experiments.gpu_validation show --output DIR

Trials come in the order of their worth, each in a process of its own with its own time
limit (`catalogue`). A second call goes on where the first one ended.

    DIR/results.jsonl   circumstances, then one line for each trial, written at once
    DIR/summary.json    the same, with what was found of each claim
    DIR/log.txt         what the processes printed
    DIR/traces/         TensorFlow's own traces of steps

Sizes follow the card: its memory, and how fast it computes. So the same command is
rehearsed whole on an emulated card, whose kernels take longer than their launches only
in slow motion:

    python -m lms emulate --memory 512MiB --card t4 --slow-motion 200 -- \
        python -m experiments.gpu_validation run --short --output build/rehearsal

Known weakness: not yet run on a GPU. `docs/gpu.md` says what is proved.
"""

__all__: list[str] = []
