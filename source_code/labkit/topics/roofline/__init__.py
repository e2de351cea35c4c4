"""How far is a kernel from what the GPU can do?"""
