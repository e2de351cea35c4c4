"""Which kernels does a step need, if it is written for this one network? Triton kernels for main_opt7.

A training step of the network in ``labkit.training.model`` as nine launches. Each module holds one part of it,
and beside each kernel a reference function in plain PyTorch, which is what runs where the tensors are on the CPU:

=============  =====================================================================================================
``conv1``      bytes → gather, normalise, convolve, add the bias, ReLU
``conv2``      convolve, pool, add the bias, ReLU, dropout; and the two gradients that the way back needs
``head``       bias, ReLU, dropout, last layer, log-softmax, loss, and back to the first linear layer's output
``adadelta``   one optimizer step for all parameters, with the BF16 copies that the Tensor Cores read
``weights``    the parameters, their gradients and Adadelta's state, each as one flat array
``fp32_out``   a product of BF16 matrices that writes FP32: PyTorch's own
=============  =====================================================================================================

``block`` makes one operator of ``conv1`` and ``conv2``, which autograd and torch.compile know: main_opt6_block's.
``hopper`` does what both do in two kernels of CUDA C++, in files beside it: main_opt8's. ``hopper_fc1`` does what
``head`` and the products with fc1's weight do, in two more. ``beside`` runs Adadelta while the last of the four runs.

Activations are channels-last: ``(N, height, width, channels)``. ``matmul`` and ``wmma`` belong to no step: they are
one product to learn from, in Triton and in CUDA C++, measured by bench_matmul and bench_wmma; ``rungs`` is the same
product for Hopper, in seven steps up to cuBLAS, measured by bench_rungs. ``adam``, ``muon``, ``smooth_head`` and
``shifted`` are the speedrun's.
"""
