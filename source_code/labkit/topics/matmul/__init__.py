"""How does a matrix product of one's own compare?"""
