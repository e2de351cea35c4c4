"""``python3 -m labkit.recording``: measure everything that the labs show."""

from labkit.recording.record import main

main()
