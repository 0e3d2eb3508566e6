"""An emulated card: TensorFlow's own GPU runtime on a driver made of host memory.

    TensorFlow's GPU runtime: allocator with a hard limit, streams, pinned memory
    ───────────────────────────────────────────────────────────────────────────
    libcuda.so.1 of this package: memory is the host's, a stream is a clock
      computing: kernels are TensorFlow's for the CPU; numbers are real
      dry:       TensorFlow's kernels for GPUs launch nothing; sizes and times alone

`emulate` starts programs on the card, `build` compiles it, `card` describes it and
`counters` counts its copies. No other part of lms knows whether a card is emulated.
"""
