"""The course as a web site: every lab with its stored outputs, to read without installing anything. ``make site``"""
