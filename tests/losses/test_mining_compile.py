"""The kernel of hard pairs compiles for a GPU on machines without one, and a warp reads neighbouring cells of a row."""

import re

import pytest

triton = pytest.importorskip("triton", reason='needs triton: pip install "bcls[kernels]"')
engine = pytest.importorskip("bcls.losses._triton.engine")
KINDS = {"EDGES": "*fp64", "ROW_KEYS": "*i64", "COLUMN_KEYS": "*i64"}


@pytest.mark.parametrize(("scores", "labels"), [("*fp32", "*fp32"), ("*bf16", "*fp64")])
def test_a_warp_reads_neighbouring_cells(scores, labels):
    kernel = engine.kernels.mine_tiles
    if not isinstance(kernel, triton.JITFunction):
        pytest.skip("Triton's interpreter is on")
    kinds, names = {**KINDS, "S": scores, "R": labels}, kernel.arg_names
    constants = {"HEIGHT": engine._HEIGHT, "WIDTH": engine._WIDTH, "s_column": 1, "r_column": 1}
    signature = {one: "constexpr" if one in constants else kinds.get(one, "i32") for one in names}
    places = {(names.index(one),): value for one, value in constants.items()}
    # Addresses and strides of contiguous matrices, for which Triton would choose wider loads.
    aligned = ("S", "R", "s_row", "r_row", "columns", "span")
    attributes = {(names.index(one),): [["tt.divisibility", 16]] for one in aligned}
    source = triton.compiler.ASTSource(kernel, signature, constexprs=places, attrs=attributes)
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": engine._MINING_WARPS})
    layouts = set(re.findall(r"#ttg.blocked<{(.*)}>", compiled.asm["ttgir"]))
    assert layouts == {"sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [32], order = [0]"}
