"""How are the recordings made, and are they still true?"""
