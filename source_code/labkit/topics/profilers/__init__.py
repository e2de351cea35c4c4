"""What do other profilers say?"""
