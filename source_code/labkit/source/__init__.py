"""The one door to results: live, recorded or, in tests, pretended."""
