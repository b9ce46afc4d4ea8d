"""Small changes of Python code, each likely to be a bug: what :mod:`scripts.mutants` tries on the tests."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
#: Methods that can be left away: what they are called on is of the same kind as what they return.
DROPPABLE = {"abs", "clamp", "detach", "flip", "relu", "clip", "sum", "log", "cummax", "cummin", "cumsum", "ravel"}
#: Functions of which two arguments can be swapped without a change.
SYMMETRIC = {"min", "max", "np.minimum", "np.maximum", "torch.minimum", "torch.maximum", "isinstance"}
#: Arguments that guard against mistakes of the code itself, or only save a copy.
GUARDS = {"strict", "copy", "inplace"}


@dataclass(frozen=True)
class Change:
    """One change."""

    node: int
    """The place of the node among all nodes of the module, in the order of :func:`ast.walk`."""
    variant: int
    """Which of the node's changes."""
    scope: str
    """The function or class that it is in."""
    line: int
    """The line that it begins on."""
    before: str
    """The code as it is."""
    after: str
    """The code as it becomes."""

    def source(self, text: str) -> str:
        """The module with the change made."""
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        changed = list(_variants(nodes[self.node]))[self.variant]
        for parent in nodes:
            for field, value in ast.iter_fields(parent):
                if value is nodes[self.node]:
                    setattr(parent, field, changed)
                elif isinstance(value, list):
                    setattr(parent, field, [changed if one is nodes[self.node] else one for one in value])
        return ast.unparse(ast.fix_missing_locations(tree))


def changes(text: str) -> Iterator[Change]:
    """Every change of a module, in a fixed order."""
    tree = ast.parse(text)
    scopes, skipped = _scopes(tree), _skipped(tree)
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for variant, changed in enumerate(_variants(node)):
            before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(changed))
            if before != after:
                yield Change(
                    place, variant, scopes[id(node)], getattr(node, "lineno", 0), _short(before), _short(after)
                )


def _short(code: str) -> str:
    return " ".join(code.split())


def _scopes(tree: ast.Module) -> dict[int, str]:
    names: dict[int, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        names[id(node)] = name
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name if name == "module" else f"{name}.{node.name}"
        for child in ast.iter_child_nodes(node):
            visit(child, name)

    visit(tree, "module")
    return names


def _skipped(tree: ast.Module) -> set[int]:
    """Nodes where a change is no change of behavior: annotations, aliases of types, texts and messages."""
    roots: list[ast.AST | None] = []
    messages: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            roots.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            roots += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.AnnAssign):
            roots.append(node if "TypeAlias" in ast.unparse(node.annotation) else node.annotation)
        elif _is_text(node) or (isinstance(node, ast.keyword) and node.arg in GUARDS):
            roots.append(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "fail":
            messages.add(id(node))
            roots += [*node.args, *node.keywords]
    return messages | {id(node) for root in roots if root is not None for node in ast.walk(root)}


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) in {"Literal", "Callable", "NDArray"}
    return isinstance(node, ast.JoinedStr)


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """The changes of one node."""
    if isinstance(node, ast.Compare | ast.BinOp | ast.UnaryOp | ast.BoolOp):
        yield from _operators(node)
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.If):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)


def _operators(node: ast.Compare | ast.BinOp | ast.UnaryOp | ast.BoolOp) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS[type(node.ops[0])]:
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node.value, float):
        yield ast.Constant(2 * node.value or 1.0)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    plain = ast.unparse(node.func) not in SYMMETRIC
    if plain and len(node.args) >= 2 and not any(isinstance(one, ast.Starred) for one in node.args[:2]):
        swapped = copy.copy(node)
        swapped.args = [node.args[1], node.args[0], *node.args[2:]]
        yield swapped
    if isinstance(node.func, ast.Attribute) and node.func.attr in DROPPABLE and not _is_module(node.func.value):
        yield node.func.value


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"np", "torch", "math", "functional", "nn"}
