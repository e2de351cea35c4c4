"""A report to be made, and the command line asked in this process, each answer held against the written schema."""

from asking import answer, ask, every_answer_conforms, made  # noqa: F401  (fixtures)
