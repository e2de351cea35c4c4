"""Which sizes and layouts do Tensor Cores want?"""
