"""Vocabularies, human judgements, sidecar captions of photos."""

import gzip
import json

from bcls.data.judgements import flickr8k_crowdflower, flickr8k_expert, read_cxc
from bcls.data.vocabulary import SPECIALS, Vocabulary
from bcls.labels.quality import load_cxc
from bcls.search.source import read_sidecar
from tests.fuzz.damage import damage_json
from tests.fuzz.engine import Reader
from tests.fuzz.readers._imports import put

_CXC = (
    b"caption,image,agg_score,sampling_method\n" + 2 * b"COCO_val2014:sentid:1,COCO_val2014_000000000042.jpg,4.5,c2i\n"
)


def vocabulary():
    words = [*SPECIALS, "a", "dog"]
    content = {"word2idx": {word: n for n, word in enumerate(words)}, "idx2word": dict(enumerate(words)), "idx": 6}
    return [json.dumps(content).encode(), gzip.compress(json.dumps(content).encode())]


def read_vocabulary(content, folder):
    read = Vocabulary.read(put(folder, "vocab.json", content))
    read.encode_all(["a dog runs", ""])


def read_captions(content, folder):
    load_cxc(put(folder, "sits.csv", _CXC), put(folder, "captions.json", content))


def captions():
    return [json.dumps([{"caption_id": 1, "image_id": 42, "caption": "A dog."}]).encode()]


EXPERT = b"1.jpg\t2.jpg#0\t1\t2\t4\n1.jpg\t1.jpg#1\t4\t4\t4\n"
CROWD = b"1.jpg\t2.jpg#0\t0.25\t1\t3\n1.jpg\t3.jpg#2\t0\t0\t3\n"
SIDECARS = [b'{"title": "Sea", "captions": ["A boat."]}', b'"A boat."', b'["A boat.", "A sea."]']

READERS = (
    Reader("vocabulary", vocabulary, read_vocabulary, damage_json),
    Reader("cxc", lambda: [_CXC * 1, gzip.compress(_CXC)], lambda content, to: read_cxc(put(to, "sits.csv", content))),
    Reader("cxc captions", captions, read_captions, damage_json),
    Reader("flickr8k expert", lambda: [EXPERT], lambda content, to: flickr8k_expert(put(to, "e.txt", content))),
    Reader("flickr8k crowd", lambda: [CROWD], lambda content, to: flickr8k_crowdflower(put(to, "c.txt", content))),
    Reader("sidecar", lambda: SIDECARS, lambda content, to: read_sidecar(".json", content), damage_json),
)
