"""Weights of exported graphs: references to safetensors files, and linear layers in int8.

Used by :mod:`bcls.models.export`.
"""

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bcls._core.errors import fail
from bcls._core.extras import require
from bcls._core.files import write_whole
from bcls.models.folder import WEIGHTS
from bcls.models.layers import Padded

#: Tensors with more values are stored outside of the graph. Word embeddings with more rows are stored as int8.
_LARGE, _MANY_ROWS = 2048, 8192


def stored_values(values: npt.NDArray[Any], half: bool) -> npt.NDArray[Any]:
    """A tensor as it is stored: matrices in half precision, unless their values are too large for it."""
    fits = half and values.dtype == np.float32 and values.ndim > 1 and np.abs(values).max(initial=0) < 65_000
    return values.astype(np.float16) if fits else values


def move_weights(path: Path, file: Path, *, half: bool, int8: Padded | None = None) -> None:
    """Replace the large weights of a graph by references to safetensors files: ONNX's external data.

    A weight of ``model.safetensors`` is referred to there, also if the graph has it transposed. Others are written to
    a file of the tower. ONNX Runtime converts half precision to float32 when it loads the graph.

    Args:
        path: The graph.
        file: File for the weights that are not in ``model.safetensors``.
        half: Store weights in half precision.
        int8: Example of the inputs of a text tower whose linear layers shall compute in int8.
    """
    onnx: Any = require("onnx", "onnx", "exporting a model to ONNX")
    node = onnx.helper.make_node
    graph_model = onnx.load(str(path))
    graph = graph_model.graph
    known = _tensor_places(path.parent / WEIGHTS)
    if int8 is not None:
        _use_int8(onnx, graph_model, int8, known)
    #: Name, values, and file name and position if the tensor is in a file already.
    moved: list[tuple[str, npt.NDArray[Any], tuple[str, int] | None]] = []
    after: dict[str, list[Any]] = {}
    kept, before = [], []
    for initial in graph.initializer:
        values, name = onnx.numpy_helper.to_array(initial), initial.name
        if values.dtype not in (np.float32, np.int8) or values.ndim < 2 or values.size < _LARGE:
            kept.append(initial)
            continue
        if values.dtype == np.int8:
            moved.append((name, values, None))
            continue
        stored = stored_values(values, half)
        place, turned = known.get(_key(stored)), known.get(_key(stored.swapaxes(-1, -2)))
        readers = [one for one in graph.node if name in one.input]
        if place is None and turned is None and half and _is_table(values, readers):
            scale = np.maximum(np.abs(values).max(1, keepdims=True), 1e-12) / 127
            moved.append((f"{name}.int8", np.round(values / scale).astype(np.int8), None))
            moved.append((f"{name}.scale", scale.astype(np.float32), None))
            after |= {one.output[0]: _read_int8(onnx, one, name) for one in readers}
            continue
        if place is None and turned is not None:
            order = [*range(stored.ndim - 2), stored.ndim - 1, stored.ndim - 2]
            moved.append((f"{name}.stored", stored.swapaxes(-1, -2), turned))
            before.append(node("Transpose", [f"{name}.stored"], [f"{name}.turned"], perm=order))
            before.append(node("Cast", [f"{name}.turned"], [name], to=onnx.TensorProto.FLOAT))
        else:
            moved.append((f"{name}.stored", stored, place))
            before.append(node("Cast", [f"{name}.stored"], [name], to=onnx.TensorProto.FLOAT))
    kept += _external_tensors(onnx, moved, file)
    nodes = deepcopy([*before, *(part for one in graph.node for part in after.get(one.output[0], [one]))])
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    write_whole(path, graph_model.SerializeToString())


def _read_int8(onnx: Any, gather: Any, name: str) -> list[Any]:
    """Nodes that read rows of a table that is stored as int8 with a scale for each row."""
    node, (output,), ids = onnx.helper.make_node, gather.output, gather.input[1]
    return [
        node("Gather", [f"{name}.int8", ids], [f"{output}.int8"], axis=0),
        node("Gather", [f"{name}.scale", ids], [f"{output}.scale"], axis=0),
        node("Cast", [f"{output}.int8"], [f"{output}.float"], to=onnx.TensorProto.FLOAT),
        node("Mul", [f"{output}.float", f"{output}.scale"], [output]),
    ]


def _use_int8(onnx: Any, model: Any, inputs: Padded, known: Mapping[tuple[Any, ...], Any]) -> None:
    """Let the linear layers of tokens compute in int8; not the heads, which read one vector of a text.

    Weights have a scale for each column, and tokens one for each token. So a text's vector does not depend on the other
    texts of its batch.

    Args:
        onnx: The package.
        model: The graph, which is changed.
        inputs: Example of its inputs.
        known: Weights of ``model.safetensors``, which stay there: they are converted when the graph is loaded.
    """
    graph, node, tensor = model.graph, onnx.helper.make_node, onnx.numpy_helper.from_array
    weights = {one.name: one for one in graph.initializer if len(one.dims) == 2 and np.prod(one.dims) >= _LARGE}
    tokens = {one.name for one in graph.value_info if len(one.type.tensor_type.shape.dim) == 3}
    uses = Counter(name for one in graph.node for name in one.input)
    layers = [
        one
        for one in graph.node
        if one.op_type == "MatMul" and one.input[0] in tokens and one.input[1] in weights and uses[one.input[1]] == 1
    ]
    if not layers:
        fail("precision", "a text encoder with linear layers for int8", "none", "export it with precision float16")
    factors = _channel_factors(onnx, model, layers, inputs)
    constants = {"axis": np.array([-1]), "zero": np.uint8(128)}
    constants |= {"least": np.float32(1e-12), "step": np.float32(1 / 127), "one": np.float32(1)}
    added = [tensor(value, f"int8.{name}") for name, value in constants.items()]
    added += [tensor(1 / factor, f"{x}.factor") for x, factor in factors.items()]
    new: dict[str, list[Any]] = {}
    for x in factors:
        first = next(one.output[0] for one in layers if one.input[0] == x)
        new[first] = _quantize_tokens(onnx, x)
    for one in layers:
        x, weight = one.input
        values, factor = onnx.numpy_helper.to_array(weights[weight]), factors[x][:, None]
        scale = np.maximum(np.abs(values * factor).max(0), 1e-12) / 127
        added.append(tensor(scale.astype(np.float32), f"{weight}.scale"))
        stored = stored_values(values, half=True)
        nodes = new.setdefault(one.output[0], [])
        if _key(stored) in known or _key(stored.T) in known:
            added += [tensor(factor, f"{weight}.factor"), tensor(np.zeros(len(scale), np.int8), f"{weight}.zero")]
            nodes.append(node("Mul", [weight, f"{weight}.factor"], [f"{weight}.even"]))
            given = [f"{weight}.even", f"{weight}.scale", f"{weight}.zero"]
            nodes.append(node("QuantizeLinear", given, [f"{weight}.int8"], axis=1))
        else:
            added.append(tensor(np.round(values * factor / scale).astype(np.int8), f"{weight}.int8"))
            graph.initializer.remove(weights[weight])
        nodes += _multiply_int8(onnx, one)
    changed = deepcopy([part for one in graph.node for part in new.get(one.output[0], [one])])
    del graph.node[:]
    graph.node.extend(changed)
    graph.initializer.extend(added)


def _channel_factors(
    onnx: Any, model: Any, layers: Sequence[Any], inputs: Padded
) -> dict[str, npt.NDArray[np.float32]]:
    """``(d,)`` factors of the inputs of layers, by name: channels are divided by them, and rows of weights multiplied.

    A few channels after a layer norm are much larger than the others, which would get a few of the 255 steps only.
    The factors even this out, as in SmoothQuant (https://arxiv.org/abs/2211.10438) with the exponent 0.5.
    """
    values = {one.name: np.abs(onnx.numpy_helper.to_array(one)) for one in model.graph.initializer}
    norms = {one.output[0] for one in model.graph.node if one.op_type == "LayerNormalization"}
    names = list(dict.fromkeys(one.input[0] for one in layers))
    shown = deepcopy(model)
    shown.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    found = run_graph(shown.SerializeToString(), inputs, "numbers", names)
    real = np.arange(inputs.values.shape[1]) < inputs.full_lengths.numpy()[:, None]
    factors = {}
    for name, tokens in zip(names, found, strict=True):
        rows = np.max([values[one.input[1]].max(1) for one in layers if one.input[0] == name], axis=0)
        even = np.sqrt(np.maximum(np.abs(tokens[real]).max(0), 1e-4) / np.maximum(rows, 1e-4))
        factors[name] = even.astype(np.float32) if name in norms else np.ones(len(rows), np.float32)
    return factors


def _quantize_tokens(onnx: Any, x: str) -> list[Any]:
    """Nodes that round tokens to 8 bits, each with a scale of its own."""
    node = onnx.helper.make_node
    return [
        node("Mul", [x, f"{x}.factor"], [f"{x}.even"]),
        node("Abs", [f"{x}.even"], [f"{x}.abs"]),
        node("ReduceMax", [f"{x}.abs", "int8.axis"], [f"{x}.most"], keepdims=1),
        node("Max", [f"{x}.most", "int8.least"], [f"{x}.largest"]),
        node("Mul", [f"{x}.largest", "int8.step"], [f"{x}.scale"]),
        node("Div", [f"{x}.even", f"{x}.scale"], [f"{x}.scaled"]),
        node("QuantizeLinear", [f"{x}.scaled", "int8.one", "int8.zero"], [f"{x}.uint8"]),
    ]


def _multiply_int8(onnx: Any, layer: Any) -> list[Any]:
    """Nodes that multiply in int8.

    The product is multiplied by the scales of the columns first, and then by those of the tokens: ONNX Runtime would
    replace one multiplication by the product of both scales with an operator that knows a single scale for all tokens.
    """
    node, (x, weight), (y,) = onnx.helper.make_node, layer.input, layer.output
    return [
        node("MatMulInteger", [f"{x}.uint8", f"{weight}.int8", "int8.zero"], [f"{y}.int32"]),
        node("Cast", [f"{y}.int32"], [f"{y}.float"], to=onnx.TensorProto.FLOAT),
        node("Mul", [f"{y}.float", f"{weight}.scale"], [f"{y}.columns"]),
        node("Mul", [f"{y}.columns", f"{x}.scale"], [y]),
    ]


def _external_tensors(onnx: Any, moved: list[tuple[str, npt.NDArray[Any], Any]], file: Path) -> list[Any]:
    """Tensors that refer to files; those without a place are written to ``file``."""
    from safetensors.numpy import save

    own = {name: np.ascontiguousarray(values) for name, values, place in moved if place is None}
    if own:
        write_whole(file, save(own))
    offsets = tensor_offsets(file) if own else {}
    tensors = []
    for name, values, place in moved:
        holder, start = place or (file.name, offsets[name])
        kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = onnx.TensorProto(name=name, data_type=kind, dims=values.shape, data_location=1)  # 1: external
        for key, value in (("location", holder), ("offset", start), ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    return tensors


def _is_table(values: npt.NDArray[Any], nodes: list[Any]) -> bool:
    """Whether a weight is a large table of embeddings, of which the graph reads rows only."""
    rows = all(
        node.op_type == "Gather" and not any(one.name == "axis" and one.i for one in node.attribute) for node in nodes
    )
    return bool(nodes) and rows and values.ndim == 2 and len(values) > _MANY_ROWS


def _key(values: npt.NDArray[Any]) -> tuple[Any, ...]:
    return values.dtype.str, values.shape, hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def tensor_offsets(path: Path) -> dict[str, int]:
    """Positions of the tensors of a safetensors file: the length of the header, the header as JSON, the data."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return {name: 8 + size + one["data_offsets"][0] for name, one in header.items() if name != "__metadata__"}


def _tensor_places(path: Path) -> dict[tuple[Any, ...], tuple[str, int]]:
    """File name and position of the tensors of a safetensors file, by their contents."""
    from safetensors.numpy import load_file

    offsets = tensor_offsets(path)
    return {_key(values): (path.name, offsets[name]) for name, values in load_file(path).items()}


def run_graph(graph: str | bytes, inputs: Padded, name: str, outputs: list[str]) -> list[npt.NDArray[Any]]:
    """Outputs of a graph, given by its path or contents."""
    runtime: Any = require("onnxruntime", "onnx", "checking an exported model")
    session = runtime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    given = {name: inputs.values.numpy()}
    if inputs.lengths is not None:
        given["lengths"] = inputs.lengths.numpy()
    found: list[npt.NDArray[Any]] = session.run(outputs, given)
    return found
