"""Readers of human judgements."""

import gzip

import pytest

from bcls.data.judgements import flickr8k_crowdflower, flickr8k_expert, read_cxc

TABLE = "caption1,caption2,agg_score,sampling_method\nCOCO_val2014:sentid:12,COCO_val2014:sentid:7,3.5,c2c_isim\n"
TABLE += "COCO_val2014:sentid:12,COCO_val2014:sentid:8,1,c2c_isim\n"


def test_tables_are_read_plain_and_compressed(tmp_path):
    plain, packed = tmp_path / "sts_test.csv", tmp_path / "sts_test.csv.gz"
    plain.write_text(TABLE, encoding="utf-8")
    packed.write_bytes(gzip.compress(TABLE.encode()))
    for path in (plain, str(packed)):
        pairs = read_cxc(path)
        assert (pairs.first.tolist(), pairs.second.tolist(), pairs.score.tolist()) == ([12, 12], [7, 8], [3.5, 1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1`: expected the columns .* got none"),
        ("a,b,c\n", "line 1`: expected the columns caption,image,agg_score or .* got a,b,c"),
        (TABLE + "x1,y2,\n", "line 4`: expected two names"),
        (TABLE + "x1,y,3\n", "line 4`: expected two names"),
        (TABLE + "x1\n", "line 4`: expected two names"),
        (TABLE.partition("\n")[0], "table.csv`: expected at least two judgements, got 0"),
        (TABLE[: TABLE.rindex("COCO_val2014:sentid:12")], "table.csv`: expected at least two judgements, got 1"),
    ],
)
def test_other_files_are_refused_with_the_line(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_cxc(path)
    with pytest.raises(ValueError, match="nothing at"):
        read_cxc(tmp_path / "none.csv")


def test_a_table_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "sts_test.csv"
    path.write_text(TABLE, encoding="utf-8")
    assert len(read_cxc(path, "sts").score) == 2
    with pytest.raises(ValueError, match=r"the columns caption,image,agg_score, got caption1,.*pass sits"):
        read_cxc(path, "sits")
    with pytest.raises(ValueError, match="`kind`: expected one of 'sits', 'sts', 'sis'"):
        read_cxc(path, "stss")


EXPERT = "a.jpg\tb.jpg#1\t1\t2\t1\na.jpg\ta.jpg#0\t4\t4\t4\nc.jpg\tb.jpg#3\t3\t3\t4\n"
CROWD = "a.jpg\tb.jpg#1\t0.333333333333333\t1\t2\na.jpg\ta.jpg#0\t1\t3\t0\nc.jpg\tb.jpg#3\t0\t0\t3\n"


def test_rows_of_small_files(tmp_path):
    path = tmp_path / "ExpertAnnotations.txt"
    path.write_text(EXPERT, encoding="utf-8")
    rows = flickr8k_expert(path)
    assert rows.photos.tolist() == ["a.jpg"] * 3 + ["c.jpg"] * 3
    assert rows.caption_ids.tolist() == ["b.jpg#1"] * 3 + ["b.jpg#3"] * 3
    assert rows.ratings.tolist() == [1, 2, 1, 3, 3, 4]
    path.write_text(CROWD, encoding="utf-8")
    rows = flickr8k_crowdflower(path)
    assert rows.caption_ids.tolist() == ["b.jpg#1", "b.jpg#3"]
    assert rows.ratings.tolist() == [1 / 3, 0.0]
    path.write_text(CROWD[: CROWD.rindex("c.jpg")], encoding="utf-8")
    with pytest.raises(ValueError, match=r"Annotations.txt`: expected at least two judgements, got 1"):
        flickr8k_crowdflower(str(path))


@pytest.mark.parametrize(
    ("read", "line"),
    [
        (flickr8k_expert, "a.jpg\tb.jpg#1\t1\t2\t5"),
        (flickr8k_expert, "a.jpg\tb.jpg#1\t1\t2"),
        (flickr8k_expert, "a.jpg\tb.jpg\t1\t2\t3"),
        (flickr8k_expert, "a.jpg"),
        (flickr8k_crowdflower, "a.jpg\tb.jpg#1\t0.9\t1\t2"),
        (flickr8k_crowdflower, "a.jpg\tb.jpg#1\t0\t0\t0"),
        (flickr8k_crowdflower, "a.jpg\tb.jpg#1\t0.5\t1"),
    ],
)
def test_other_lines_are_refused_with_their_number(tmp_path, read, line):
    path = tmp_path / "rows.txt"
    path.write_text((EXPERT if read is flickr8k_expert else CROWD) + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 4`: expected a photo"):
        read(path)
