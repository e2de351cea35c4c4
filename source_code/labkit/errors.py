"""What does the reader see when something is wrong? One sentence, as from the report reader."""

from __future__ import annotations

from stepbudget.errors import ReportError, one_sentence, speak_any_encoding

__all__ = ["LabError", "NotHere", "NotRecorded", "one_sentence", "speak_any_encoding"]


class LabError(ReportError):
    """Something in the course that the reader can mend. The message says what is wrong and what to do about it."""


class NotHere(LabError):
    """Something that this machine cannot do as it is; the course has it recorded."""


class NotRecorded(LabError):
    """Something that nobody recorded on that machine."""
