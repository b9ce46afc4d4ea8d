"""``bcls evaluate`` and ``bcls compare`` as a user runs them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from bcls.cli import main as cli
from bcls.evaluation.recall import recalls
from tests.evaluation.factories import make_data, make_scores

OWNER = np.repeat(np.arange(6), 2)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs ``bcls ...`` in a folder with a dataset and scores; the exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "evaluate", ("bcls.cli.evaluate", "metrics"))
    monkeypatch.setitem(cli.COMMANDS, "compare", ("bcls.cli.compare", "two models"))
    make_data(tmp_path / "data")
    np.save("a.npy", make_scores(0))
    np.save("b.npy", make_scores(1))
    np.save("turned.npy", make_scores(0).T)
    np.save("images.npy", np.random.default_rng(0).standard_normal((6, 4)))
    np.save("texts.npy", np.random.default_rng(1).standard_normal((12, 4)))
    (tmp_path / "model").mkdir()
    for name in ("images.npy", "texts.npy"):
        np.save(f"model/{name}", np.load(name))

    def call(*words):
        code = cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_fixed_call(run):
    code, out, _ = run("evaluate", "--similarity", "a.npy", "b.npy", "--data", "data", "--split", "test", "--json")
    assert code == 0
    assert out.count("\n") == 1
    found = json.loads(out)
    expected = recalls((make_scores(0) + make_scores(1)) / 2, OWNER)
    assert {key: found[key] for key in expected} == expected
    about = ("a.npy + b.npy", "made", "test", 6, 12)
    assert tuple(found[key] for key in ("name", "dataset", "split", "images", "captions")) == about
    assert all(isinstance(value, str | int | float) for value in found.values())


def test_json_is_alone_on_standard_output_with_everything_on(run):
    flags = ("--labels", "wordllama", "--cs", "4", "--intervals", "--hubness", "--qbnorm", "--name", "mine", "--json")
    code, out, err = run("evaluate", "--similarity", "a.npy", "--data", "data", *flags)
    assert code == 0
    found = json.loads(out)
    assert found["name"] == "mine"
    assert {"i2t_tau_a", "ndcg", "t2i_cs4", "rsum_low", "i2t_most6", "qbnorm_rsum"} <= set(found)
    assert "encoding with wordllama" in err


def test_a_table(run):
    code, out, err = run("evaluate", "--similarity", "a.npy", "--data", "data", "--folds", "2")
    assert code == 0
    assert err == ""
    assert "a.npy on made, test: 6 images, 12 captions, recalls are means of 2 folds" in " ".join(out.split())
    assert all(word in out for word in ("R@1", "R@10", "RSUM", "median rank"))


def test_rows(run):
    base = ("evaluate", "--similarity", "a.npy", "--data", "data", "--name", "my_model")
    expected = recalls(make_scores(0), OWNER)
    code, out, _ = run(*base, "--row", "markdown")
    assert code == 0
    assert out.count("\n") == 1
    cells = [cell.strip() for cell in out.strip().strip("|").split("|")]
    assert cells == ["my_model", *(f"{value:.1f}" for value in expected.values())]
    assert run(*base, "--row", "latex")[1].startswith(r"my\_model & ")


def test_embeddings(run):
    words = ("evaluate", "--images", "images.npy", "--texts", "texts.npy", "--data", "data", "--json")
    code, out, _ = run(*words)
    assert code == 0
    images, texts = (np.load(f"{name}.npy") for name in ("images", "texts"))
    images, texts = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (images, texts))
    assert json.loads(out)["rsum"] == pytest.approx(recalls(images @ texts.T, OWNER)["rsum"])


def test_a_folder_of_embeddings_is_named_the_same_way_in_both(run):
    flags = ("--images", "images.npy", "--texts", "texts.npy")
    expected = json.loads(run("evaluate", *flags, "--data", "data", "--json")[1])["rsum"]
    code, out, _ = run("evaluate", "--similarity", "model", "--data", "data", "--json")
    assert code == 0
    assert (json.loads(out)["name"], json.loads(out)["rsum"]) == ("model", expected)
    code, out, _ = run("compare", "--a", "model", "--b", "a.npy", "--data", "data", "--json")
    assert code == 0
    assert (json.loads(out)["a"], json.loads(out)["a_rsum"]) == ("model", pytest.approx(expected))


def test_the_page_of_a_model(run, tmp_path):
    words = ("evaluate", "--similarity", "a.npy", "--data", "data", "--html", "page.html", "--queries", "3", "--json")
    code, out, err = run(*words)
    assert code == 0
    assert json.loads(out)["name"] == "a.npy", "standard output stays JSON"
    assert err == "page: page.html\n"
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "a.npy on made, test" in page
    assert page.count("<details") == 6


def test_captions_are_encoded_once_for_metrics_and_page(run, tmp_path):
    flags = ("--labels", "wordllama", "--html", "page.html", "--folds", "2")
    code, _, err = run("evaluate", "--similarity", "a.npy", "--data", "data", *flags)
    assert code == 0
    assert err.count("encoding with wordllama ...") == 1
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "from the captions by wordllama" in page
    assert "recalls are means of 2 folds" in page
    assert "tau-a" in page


def test_the_page_of_two_models(run, tmp_path):
    flags = ("--data", "data", "--html", "page.html", "--labels", "wordllama")
    code, out, err = run("compare", "--a", "a.npy", "b.npy", "--b", "model", *flags)
    assert code == 0
    assert "A - B" in out
    assert err.endswith("page: page.html\n")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "A: a.npy + b.npy" in page
    assert "pseudo label of the pair" in page


def test_compare(run):
    code, out, err = run("compare", "--a", "a.npy", "--b", "b.npy", "--data", "data", "--json")
    assert code == 0
    assert err == ""
    found = json.loads(out)
    difference = recalls(make_scores(0), OWNER)["rsum"] - recalls(make_scores(1), OWNER)["rsum"]
    assert found["difference_rsum"] == pytest.approx(difference)
    assert 0 < found["p_rsum"] <= 1
    assert (found["a"], found["b"]) == ("a.npy", "b.npy")
    code, out, _ = run("compare", "--a", "a.npy", "b.npy", "--b", "b.npy", "--data", "data")
    assert code == 0
    assert "A: a.npy + b.npy, B: b.npy" in out
    assert "captions that only one model ranks correctly first" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "--data", "data"), "`MODEL`: expected a model or files with scores, got none"),
        (("evaluate", "--similarity", "a.npy"), "data"),
        (("evaluate", "--similarity", "a.npy", "--data", "nowhere"), "nowhere: no such dataset folder"),
        (("evaluate", "--similarity", "no.npy", "--data", "data"), "no.npy: no such file"),
        (("evaluate", "gone", "--data", "data"), "`MODEL`: expected 'photo'"),
        (("evaluate", "--similarity", "a.npy", "--data", "data", "--split", "tset"), "did you mean 'test'?"),
        (("evaluate", "--similarity", "a.npy", "--data", "data", "--split", "val"), "expected shape (1, 2)"),
        (("evaluate", "--similarity", "turned.npy", "--data", "data"), "it is transposed"),
        (("evaluate", "--similarity", "a.npy", "turned.npy", "--data", "data"), "`turned.npy`: expected shape (6, 12)"),
        (
            ("evaluate", "--similarity", "a.npy", "--texts", "texts.npy", "--data", "data"),
            "got --texts; use one",
        ),
        (("evaluate", "--images", "images.npy", "--data", "data"), "`--texts`: expected both embeddings"),
        (("evaluate", "--texts", "texts.npy", "--data", "data"), "`--images`: expected both embeddings"),
        (("evaluate", "--similarity", "a.npy", "--data", "data", "--row", "latx"), "did you mean 'latex'?"),
        (("evaluate", "--similarity", "a.npy", "--data", "data", "--row", "latex", "--json"), "`--row`"),
        (("evaluate", "--similarity", "a.npy", "--data", "data", "--folds", "4"), "`--folds`: expected a divisor"),
        (("evaluate", "--similarity", "a.npy", "--data", "data", "--labels", "minlm"), "`--labels`"),
        (
            ("evaluate", "--similarity", "data", "--data", "data"),
            "`data`: expected a run with a checkpoint, a saved model, or embeddings in images.npy",
        ),
        (
            ("evaluate", "--similarity", "a.npy", "--data", "data", "--html", "no/page.html"),
            "`--html`: expected a file in",
        ),
        (("evaluate", "--similarity", "a.npy", "--data", "data", "--queries", "0"), "`--queries`"),
        (
            ("evaluate", "a.npy", "--data", "data", "--features", "made"),
            "`--features`: expected a model that reads them",
        ),
        (("evaluate", "a.npy", "./a.npy", "--data", "data"), "`MODEL`: expected different files, got a.npy more than"),
        # Options are checked before the scores are read.
        (("evaluate", "no.npy", "--data", "data", "--split", "tset"), "`--split`: expected one of"),
        (("evaluate", "no.npy", "--data", "data", "--folds", "4"), "`--folds`: expected a divisor"),
        (("evaluate", "no.npy", "--data", "data", "--cs", "4"), "`--cs`: expected labels"),
        (
            ("evaluate", "no.npy", "--data", "data", "--labels", "wordllama", "--cs", "7"),
            "`--cs`: expected a number from",
        ),
        (("evaluate", "no.npy", "--data", "data", "--labels", "minlm"), "`--labels`: expected 'minilm'"),
        (
            ("evaluate", "no.npy", "--data", "data", "--eccv", "--folds", "2", "--hubness"),
            "`--hubness`: expected the whole",
        ),
        (("compare", "no.npy", "b.npy", "--data", "data", "--split", "tset"), "`--split`: expected one of"),
        (("compare", "no.npy", "b.npy", "--data", "data", "--seed", "-1"), "`--seed`: expected a whole number"),
        (("compare", "a.npy", "b.npy", "--data", "data", "--features", "made"), "`--features`: expected a model that"),
        (
            ("compare", "no.npy", "b.npy", "--data", "data", "--labels", "minlm", "--html", "page.html"),
            "`--labels`: expected 'minilm'",
        ),
        (("compare", "--a", "a.npy", "--b", "b.npy", "--data", "data", "--html", "data"), "`--html`"),
        (
            ("compare", "--a", "a.npy", "--b", "b.npy", "--data", "data", "--labels", "minilm"),
            "`--labels`: expected --html with it",
        ),
        (("compare", "--a", "a.npy", "--data", "data"), "b"),
        (("compare", "--a", "a.npy", "--b", "turned.npy", "--data", "data"), "`turned.npy`"),
        (("compare", "--a", "a.npy", "a.npy", "--b", "b.npy", "--data", "data"), "`--a`: expected different files"),
    ],
)
def test_bad_input_is_one_line_and_code_2(run, words, message):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"bcls {words[0]}: ")
    assert message in err


def test_models_of_the_same_name_are_shown_with_their_paths(run, tmp_path):
    for number, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "scores.npy", make_scores(number))
    code, out, _ = run("compare", "first/scores.npy", "second/scores.npy", "--data", "data", "--json")
    found = json.loads(out)
    assert (code, found["a"], found["b"]) == (0, "first/scores.npy", "second/scores.npy")


def test_the_current_folder_has_a_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "model")
    code, out, _ = run("evaluate", ".", "--data", "../data", "--json")
    assert (code, json.loads(out)["name"]) == (0, "model")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A dataset with features, a run on it, and a saved model."""
    import torch

    from bcls.models import load
    from bcls.training.train import train
    from tests.training.factories import make_data as make_training_data
    from tests.training.factories import settings

    folder = tmp_path_factory.mktemp("trained")
    data = make_training_data(folder / "features")
    train(settings(data, folder / "run", model={"name": "vsepp", "width": 8, "word_width": 4}, word_threshold=1))
    other = load(folder / "run")
    torch.nn.init.normal_(other.fc.weight, generator=torch.Generator().manual_seed(0))
    other.save_pretrained(folder / "other")
    return folder


def test_a_run_is_named_in_front_of_the_flags(run, trained):
    from bcls.training.metrics_log import read_metrics

    flags = ("--data", trained / "features", "--split", "val", "--json")
    code, out, err = run("evaluate", trained / "run", *flags)
    assert code == 0
    found = json.loads(out)
    best = [line for line in read_metrics(trained / "run") if line["kind"] == "validation" and line["best"]][-1]
    assert (found["name"], found["rsum"]) == ("run", best["rsum"])
    assert "scoring with run" in err
    assert json.loads(run("evaluate", "--similarity", trained / "run", *flags)[1]) == found


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_a_misspelled_model_is_reported_before_scores_are_computed(run, trained, command):
    code, out, err = run(command, trained / "run", "modle", "--data", trained / "features", "--split", "val")
    assert (code, out) == (2, "")
    assert "expected 'photo', 'photo-fast', the folder of a model or of a run" in err
    assert "got 'modle'" in err
    assert err.count("\n") == 1  # no progress


def test_a_saved_model_and_a_run_average(run, trained):
    flags = ("--data", trained / "features", "--split", "val", "--features", "made", "--json")
    both = (trained / "run", trained / "other")
    code, out, _ = run("evaluate", *both, *flags)
    assert code == 0
    found = json.loads(out)
    assert found["name"] == "run + other"
    alone = [json.loads(run("evaluate", one, *flags)[1])["rsum"] for one in both]
    assert found["rsum"] not in alone


def test_two_models_are_compared_and_scored_once(run, trained, tmp_path):
    flags = ("--data", trained / "features", "--split", "val", "--features", "made")
    code, out, err = run("compare", trained / "run", trained / "other", *flags, "--json", "--html", "page.html")
    assert code == 0
    found = json.loads(out)
    assert (found["a"], found["b"]) == ("run", "other")
    for side, model in (("a", "run"), ("b", "other")):
        alone = json.loads(run("evaluate", trained / model, *flags, "--json")[1])
        assert found[f"{side}_rsum"] == pytest.approx(alone["rsum"])
        assert err.count(f"scoring with {model} ...") == 1
    assert "A: run" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "{}/other", "--data", "{}/features", "--split", "val"), "--features, one of made"),
        (("evaluate", "{}/run", "--data", "data"), "made"),
        (
            ("evaluate", "{}/run", "--similarity", "a.npy", "--data", "data"),
            "`--similarity`: expected models as",
        ),
        (
            ("evaluate", "modle", "--data", "data"),
            "`MODEL`: expected 'photo', 'photo-fast', the folder of a model or of a run",
        ),
        (
            ("evaluate", "--images", "images.npy", "--texts", "texts.npy", "--data", "data", "--features", "made"),
            "`--features`: expected a model that reads them, got --images --texts",
        ),
        (("compare", "{}/run", "--data", "data"), "`MODEL`: expected two models"),
        (
            ("compare", "{}/run", "{}/other", "--b", "b.npy", "--data", "data"),
            "`--a`: expected two models as",
        ),
    ],
)
def test_bad_input_with_models_is_one_line_and_code_2(run, trained, words, message):
    code, out, err = run(*(str(word).format(trained) for word in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_help_does_not_wait_for_heavy_packages(verb):
    heavy = "{'torch', 'scipy', 'transformers', 'matplotlib', 'sentence_transformers'}"
    code = (
        f"import sys, bcls.cli.{verb} as verb\n"
        "try: verb.main(['--help'])\n"
        f"except SystemExit as left: sys.exit(left.code or len({heavy} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 0
    assert f"usage: bcls {verb}" in run.stdout
