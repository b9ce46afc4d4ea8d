import pytest

from bcls.experiments.sweep_file import label, merge


def test_a_mapping_with_a_name_takes_the_place_of_the_old_one():
    base = {"loss": {"name": "bcls", "alpha": 0.1}, "model": {"name": "dual", "width": 8}}
    assert merge(base, {"loss": {"name": "sam"}})["loss"] == {"name": "sam"}
    assert merge(base, {"model": {"width": 16}})["model"] == {"name": "dual", "width": 16}
    assert base["loss"] == {"name": "bcls", "alpha": 0.1}


def test_dotted_keys_reach_inside_at_any_depth():
    base = {"loss": {"name": "infonce+kendall-sw-hs"}}
    assert merge(base, {"loss.infonce.temperature": 0.1})["loss"]["infonce"] == {"temperature": 0.1}


def test_nothing_is_shared_with_what_was_given():
    space = [1, 2]
    merged = merge({}, {"drops": space})
    merged["drops"].append(3)
    assert space == [1, 2]


def test_a_dot_into_a_number_is_refused():
    with pytest.raises(ValueError, match=r"`lr.x`: expected a mapping in `lr`"):
        merge({"lr": 1.0}, {"lr.x": 2})


def test_labels_are_short():
    assert label({}) == ""
    assert label({"loss.kendall.alpha": 0.1}) == "alpha=0.1"
