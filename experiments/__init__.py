"""Experiments: eight questions, one program.

    a question's trials --> runner --> trial: one process, one card, one row
                              └──> results/NAME.jsonl --> page: docs/results.md

A *trial* is one training in one way: model, way, card, budget, knobs. Its process
writes one row, whatever it ends in. A question is a module that knows which trials it
wants, and what rows say: finding, table, figure, goals. It measures nothing itself,
and what is said is computed of rows alone. `--card real` runs the same trials on the
card that is here; without it cards are emulated (`lms.emulation`), each trial's own.

    python -m experiments run QUESTION    measures what is missing; Ctrl-C, then again
    python -m experiments show QUESTION   what the rows say
    python -m experiments page            docs/results.md, docs/results/*.md, figures
"""
