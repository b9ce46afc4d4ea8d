"""Orders and top items of rows, lists in messages, and the import order of the package."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata

from bcls.evaluation.inputs import first_few, id_differences, order_keys, top_items

FEW = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5])


@given(arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 40)), elements=FEW), st.integers(1, 40))
def test_top_items_are_those_of_a_stable_sort(scores, k):
    k = min(k, scores.shape[1])
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert (top_items(scores, k) == expected).all()
    assert (top_items(scores.astype(np.float64), k) == expected).all()
    assert (top_items(np.asfortranarray(scores), k) == expected).all()


@pytest.mark.parametrize("k", [1, 3, 100, 400])
def test_many_items(k):
    scores = np.random.default_rng(0).standard_normal((5, 400)).astype(np.float32)
    assert (top_items(scores, k) == np.argsort(-scores, axis=1, kind="stable")[:, :k]).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 40)), elements=FEW))
def test_keys_are_ordered_and_equal_as_the_values_are(kind, values):
    ranks = rankdata(values, method="dense", axis=1)
    assert (rankdata(order_keys(values.astype(kind)), method="dense", axis=1) == ranks).all()


def test_messages_list_three_items():
    assert (first_few([7, 8, 9]), first_few("abcd")) == ("7, 8, 9", "a, b, c, ...")


def test_differences_of_ids_are_counted_and_listed():
    assert id_differences([1, 1, 7, 8], [1, 2]) == ["2 unknown (7, 8)", "1 missing (2)", "1 repeated (1)"]
    assert id_differences("ab", "ba") == []


@pytest.mark.parametrize("name", ["kendall", "hubness"])
@pytest.mark.parametrize("order", ["package first", "module first"])
def test_the_name_is_the_function_in_either_order_of_imports(name, order):
    imports = ["import bcls.evaluation", f"import bcls.evaluation.{name}"]
    lines = imports if order == "package first" else imports[::-1]
    code = "\n".join([*lines, f"print(callable(bcls.evaluation.{name}))"])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"
