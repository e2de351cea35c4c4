"""After how many epochs has a start-up paid for itself?"""
