"""``bcls labels``: what it prints."""

from bcls.cli.labels import _print


def test_an_encoder_whose_name_looks_like_markup(capsys):
    figures = {"pairs": 10, "subset": "all", "low": 0.1, "high": 0.3, "pearson": 0.2, "spearman": 0.2}
    _print([{"data": "cxc", "encoder": "models[/b]", "aggregate": "max", **figures}])
    assert "models[/b]" in capsys.readouterr().out
