"""Experiments: eight questions, one program.

    a question's trials --> runner --> trial: one process, one card, one row
                              └──> results/NAME.jsonl --> page: docs/results.md

A *trial* is one training in one way: model, way, card, budget, knobs. Its process
writes one row, however the training ends. A question is a module that lists its trials,
and computes its answer of rows alone: finding, table, figure, goals. `--card real` runs
the same trials on this machine's card; else each has an emulated one (`lms.emulation`).

    python -m experiments run QUESTION    measures missing rows; goes on after Ctrl-C
    python -m experiments show QUESTION   prints the answer of the rows
    python -m experiments page            docs/results.md, docs/results/*.md, figures
"""
