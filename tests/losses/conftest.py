"""The tests of the kernels are collected only where kernels run."""

from tests.losses.factories import KERNEL_TESTS, TRITON

collect_ignore = [] if TRITON else [*KERNEL_TESTS]
