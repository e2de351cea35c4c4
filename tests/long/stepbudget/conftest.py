"""The command line, asked in this process; each answer is held against the written schema."""

from asking import ask, every_answer_conforms  # noqa: F401  (fixtures)
