"""The kernels of the dense Kendall loss compile for a GPU on machines without one.

The interpreter accepts code that the compiler refuses, such as a variable whose type changes in a loop.
"""

import pytest

triton = pytest.importorskip("triton", reason='needs triton: pip install "bcls[kernels]"')
ranks = pytest.importorskip("bcls.losses._triton.ranks")
KINDS = {"PLACES": "*i32", "SEEN": "*i32", "PASSED": "*i32", "NET": "*i32", "SLOPES": "*fp32", "HINGES": "*fp64"}
KINDS |= {"KEYS": "*i64", "LABELS": "*i64", "EXCESS": "*i64", "TRIPLES": "*i64", "alpha": "fp32", "margin": "fp32"}


@pytest.mark.parametrize(("half", "twice", "scores"), [(16, False, "*fp32"), (32, True, "*bf16")])
@pytest.mark.parametrize("name", ["sort_rows", "find_bounds", "take_bounds", "count_pairs", "add_slopes"])
def test_kernel_compiles(name, half, twice, scores):
    kernel = getattr(ranks, name)
    if not isinstance(kernel, triton.JITFunction):
        pytest.skip("Triton's interpreter is on")
    packed = "*i32" if half == 16 else "*i64"
    kinds = {**KINDS, "BOUNDS": packed, "TAKEN": packed, "SCORES": scores, "VALUES": scores}
    constants = {"HAS_PLACES": True, "TWICE": twice, "SIZE": 64, "HALF": half, "STEP": 32, "WORDS": 32, "WIDTH": 256}
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    signature = {one: "constexpr" if one in constants else kinds.get(one, "i32") for one in kernel.arg_names}
    places = {(kernel.arg_names.index(one),): value for one, value in constants.items()}
    source = triton.compiler.ASTSource(kernel, signature, constexprs=places)
    compiled = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32))
    assert compiled.metadata.shared <= 227 * 1024
