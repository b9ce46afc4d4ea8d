"""The losses as Triton kernels, for NVIDIA GPUs; imported only where Triton runs."""
