"""The Triton kernels of SGR and SAF compile for a GPU, at the paper's size, on machines without one.

The interpreter accepts code that the compiler refuses, such as a variable whose type changes in a loop.
"""

import pytest

triton = pytest.importorskip("triton", reason='needs triton: pip install "bcls[kernels]"')
cross_kernels = pytest.importorskip("bcls.models.cross_kernels")
FLOATS = {"gram_ptr", "norm_ptr", "shares_ptr", "scaled_ptr"}
LOCAL = {"R": 64, "K": 256, "PRECISION": "tf32"}
MIX = {"Q": 16, "P": 16, "K": 256}
#: Constants, then rows, columns, warps and stages.
KERNELS = {
    "_attend_kernel": ({"slope": 0.1, "R": 64, "P": 32, "mask_ptr": None}, (4, 3)),
    "_attend_backward_kernel": ({"slope": 0.1, "R": 64, "P": 32, "mask_ptr": None}, (4, 3)),
    "_local_kernel": (LOCAL, cross_kernels._FORWARD),
    "_local_backward_kernel": (LOCAL, cross_kernels._BACKWARD),
    "_through_norm_kernel": ({"K": 256, "ROWS": 16}, (4, 3)),
    "_mix_kernel": (MIX, (4, 3)),
    "_mix_backward_kernel": (MIX, (4, 3)),
}


def kind(name, argument, constants):
    if argument in constants:
        return "constexpr"
    if argument in FLOATS or (argument == "grad_ptr" and name not in {"_mix_backward_kernel", "_through_norm_kernel"}):
        return "*fp32"
    if argument == "mask_ptr":
        return "*i1"
    return "*bf16" if argument.endswith("_ptr") else "fp32" if argument == "smooth" else "i32"


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_compiles_and_fits_into_shared_memory(name):
    kernel = getattr(cross_kernels, name)
    if not isinstance(kernel, triton.JITFunction):
        pytest.skip("Triton's interpreter is on")
    constants, (*block, warps, stages) = KERNELS[name]
    constants = {**constants, **dict(zip(("ROWS", "COLUMNS"), block, strict=False))}
    signature = {argument: kind(name, argument, constants) for argument in kernel.arg_names}
    places = {(kernel.arg_names.index(argument),): value for argument, value in constants.items()}
    options = {"num_warps": warps, "num_stages": stages}
    source = triton.compiler.ASTSource(kernel, signature, constexprs=places)
    hopper = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=hopper, options=options)
    assert compiled.metadata.shared <= 227 * 1024
    assert "mma" in compiled.asm["ptx"] or name.startswith(("_attend", "_through"))  # tensor cores
