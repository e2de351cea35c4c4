"""What does FP16 lose, and what keeps it?"""
