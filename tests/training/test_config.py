"""Settings of any kind, from files and from callers, are taken or named; never a bare traceback."""

from datetime import date

import pytest

from bcls.training.config import TrainConfig, check_config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ema": None}, "`ema`: expected a number, got None"),
        ({"ema": "0.9"}, "`ema`: expected a number, got '0.9'"),
        ({"ema": float("nan")}, "`ema`: expected a number from 0"),
        ({"smallest_crop": None}, "`smallest_crop`: expected a number"),
        ({"lr": "0.001"}, "`lr`: expected a number"),
        ({"lr": True}, "`lr`: expected a number"),
        ({"lr": float("inf")}, "`lr`: expected a finite number above 0"),
        ({"clip": "2"}, "`clip`: expected a number"),
        ({"drops": 5}, "`drops`: expected a list, got 5"),
        ({"drops": [1.5]}, "`drops[0]`: expected a whole number, got 1.5"),
        ({"rates": [1]}, "`rates`: expected a mapping"),
        ({"rates": {"heads": None}}, "`rates.heads`: expected a number"),
        ({"distinct": "no"}, "`distinct`: expected true or false, got 'no'"),
        ({"augment": 1}, "`augment`: expected true or false, got 1"),
        ({"epochs": True}, "`epochs`: expected a whole number"),
        ({"epochs": None}, "`epochs`: expected a whole number"),
        ({"patience": "3"}, "`patience`: expected a whole number"),
        ({"val_images": 1}, "`val_images`: expected a whole number not below 2"),
        ({"labels": None}, "`labels`: expected a string"),
        ({"features": date(2026, 1, 2)}, "`features`: expected a string"),
        ({"precision": 16}, "`precision`: expected one of 'no', 'bf16', 'fp16'"),
        ({"best": "rsmu"}, "did you mean 'rsum'"),
        ({"model": "vsepp"}, "`model`: expected a mapping"),
        ({"loss": {"name": "bcls", "alpha": date(2026, 1, 2)}}, "`loss.alpha`: expected a string, a number"),
        ({"model": {"name": "vsepp", "heads": [1, {2}]}}, "`model.heads[1]`: expected a string, a number"),
    ],
)
def test_a_setting_of_the_wrong_type_is_reported(changes, message):
    with pytest.raises(ValueError, match="expected") as raised:
        check_config(TrainConfig(**changes))
    assert message in str(raised.value)


def test_settings_as_a_mapping_are_rejected():
    with pytest.raises(ValueError, match="`config`: expected a TrainConfig, got dict; create"):
        check_config({"data": "flickr8k"})


def test_optional_settings_and_integers_for_floats_are_accepted():
    check_config(TrainConfig())
    check_config(
        TrainConfig(clip=None, patience=None, val_images=None, features=None, lr=1, drops=[], rates={"loss": 2})
    )
    check_config(TrainConfig(model={"name": "vsepp", "more": [1, None, {"a": False}]}))
