from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from fttui.engine.config.data_reasons import (
    CUT,
    DUPLICATES,
    NO_TARGET,
    REJECTED_RECORDS,
    SAME_COMPLETIONS,
)
from fttui.engine.config.data_reasons.rows import MIXED_SOURCES
from fttui.engine.config.schema import RunConfig
from fttui.engine.data import stdlib_pairs
from fttui.engine.data.dataset import (
    PairExample,
    TextExample,
    load_examples,
)
from fttui.engine.data.reading import evenly_spaced, hold_out
from fttui.engine.data.streams import stream_batches
from fttui.engine.errors import DataError
from tests.support.tokenizer import CHATML, tiny_tokenizer

SHORT = {"max_length": 32, "accept": ["cut"]}
PAIRS = {"task": "contrastive", "contrastive": {"kind": "infonce"}}


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def few_packages(monkeypatch):
    """A smaller standard library, to save time."""
    monkeypatch.setattr(stdlib_pairs, "PACKAGES", ("argparse", "ast", "email", "json", "csv"))


@pytest.fixture
def rows(tmp_path):
    """Writes rows to a JSONL file."""

    def _rows(records, name="d.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return str(path)

    return _rows


@pytest.fixture
def load(tokenizer):
    def _load(data, progress=lambda label, done, total: None, accepted=False, **sections):
        sections = {"train": {"steps": 1, "batch": 2}, **sections}
        config = msgspec.convert({"model": {"id": "m"}, "data": data, **sections}, RunConfig)
        return load_examples(config, tokenizer, progress, accepted=accepted)

    return _load


def test_a_share_of_train_is_held_out(rows, load):
    source = rows([{"text": f"text {number}"} for number in range(50)])
    sets = load({"train": source, "eval_fraction": 0.1})
    assert all(isinstance(example, TextExample) for example in sets.train)
    assert (len(sets.train), len(sets.eval)) == (45, 5)
    assert {example.id for example in sets.train}.isdisjoint({one.id for one in sets.eval})
    hashed = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    assert sets.facts == {
        "sha256 of d.jsonl": hashed[:16],
        "train records": "45",
        "eval records": "5",
        "tokens per record": "8 on average, 8 at most",
    }


def test_the_held_out_records_do_not_depend_on_the_seed(rows, load):
    source = rows([{"text": f"text {number}"} for number in range(50)])
    first, second = (
        load({"train": source, "eval_fraction": 0.1}, train={"steps": 1, "seed": seed}).eval
        for seed in (1, 2)
    )
    assert first == second


def test_eval_of_its_own_leaves_train_whole(rows, load):
    train = rows([{"text": "a"}] * 10)
    evaluation = rows([{"text": f"e{number}"} for number in range(9)], "e.jsonl")
    sets = load({"train": train, "eval": evaluation, "eval_limit": 3})
    assert len(sets.train) == 10
    assert [example.id for example in sets.eval] == ["e:1", "e:4", "e:7"]


def test_train_limit_takes_the_first(rows, load):
    source = rows([{"text": "a", "id": f"r{number}"} for number in range(10)])
    sets = load({"train": source, "train_limit": 3, "eval_fraction": 0})
    assert [example.id for example in sets.train] == ["r0", "r1", "r2"]
    assert sets.eval == []


def test_preferences_that_were_lost_are_counted(rows, load):
    records = [{"prompt": "ask ", "chosen": "good", "rejected": "bad"}] * 4
    records += [{"prompt": "ask ", "chosen": "same", "rejected": "same"}] * 2
    records += [{"prompt": "ask ", "chosen": "good", "rejected": ""}]
    data = {"train": rows(records), "eval_fraction": 0, "accept": ["all"]}
    sets = load(data, task="dpo")
    assert sets.facts["train records"] == "4"
    assert sets.findings.count(SAME_COMPLETIONS) == 2
    assert sets.findings.count(NO_TARGET) == 1
    assert load(data, task="kto").facts["train records"] == "8"


LOSING = [
    {"prompt": "p" * 40, "completion": "c"},
    *[{"prompt": "p", "completion": "c" * 40}] * 2,
    *[{"prompt": "p", "completion": "c"}] * 3,
]
"""One record loses its target at 20 tokens, two are truncated."""


def test_what_was_lost_is_counted_with_its_first_place(rows, load):
    data = {"train": rows(LOSING), "max_length": 20, "eval_fraction": 0}
    sets = load(data | {"accept": ["cut", "no-target"]})
    assert sets.facts["train records"] == "5"
    cut, lost = [one for one in sets.findings if one.reason is not DUPLICATES]
    assert (cut.reason, cut.count, cut.total) == (CUT, 3, 6)
    assert (lost.reason, lost.count, lost.total) == (NO_TARGET, 1, 6)
    assert cut.place == lost.place == f"{data['train']}:1"


def test_large_losses_need_consent_before_a_new_run(rows, load):
    data = {"train": rows(LOSING), "max_length": 20, "eval_fraction": 0}
    with pytest.raises(DataError, match=r"data\.accept: \[cut, no-target\]") as refused:
        load(data)
    assert "3 of 6 records (50 %) truncated to data.max_length; first: " in str(refused.value)
    with pytest.raises(DataError, match=r"data\.accept: \[no-target\]"):
        load(data | {"accept": ["cut"]})
    assert len(load(data | {"accept": ["all"]}).train) == 5
    assert len(load(data, accepted=True).train) == 5


@pytest.mark.parametrize("column", ["image", "image_path", "audio_url"])
def test_media_columns_need_consent_but_not_when_a_run_is_resumed(rows, load, column):
    data = {"train": rows([{"text": f"text {n}", column: "a.bin"} for n in range(4)])}
    with pytest.raises(DataError, match=rf"not read, because they hold images.*:1, {column};"):
        load(data | {"eval_fraction": 0})
    assert len(load(data | {"eval_fraction": 0}, accepted=True).train) == 4
    assert load(data | {"eval_fraction": 0, "columns": {column: None}}).train


def test_triplets(rows, load):
    record = {"query": "q", "pos": ["p"], "neg": ["n1", "n2"], "label": "x"}
    sets = load({"train": rows([record] * 4), "eval_fraction": 0}, **PAIRS)
    (first, *_) = sets.train
    assert isinstance(first, PairExample)
    assert len(first.negatives) == 1
    assert first.label is not None


def test_the_standard_library_as_pairs(load, few_packages):
    seen = []
    sets = load(
        {"train": "stdlib:pairs", "train_limit": 40, "eval_limit": 7, **SHORT},
        lambda label, done, total: seen.append(label),
        **PAIRS,
    )
    assert (len(sets.train), len(sets.eval)) == (40, 7)
    assert all(":" in example.id for example in sets.train)
    assert set(seen) == {
        "building pairs from the standard library",
        "tokenizing training data",
        "tokenizing evaluation data",
    }


def test_the_standard_library_as_eval_of_itself_shares_no_module(load, few_packages):
    sets = load(
        {"train": "stdlib:pairs", "eval": "stdlib:pairs", **SHORT},
        **PAIRS,
    )
    modules = [
        {one.id.partition(":")[0].partition(".")[0] for one in part}
        for part in (sets.train, sets.eval)
    ]
    assert modules[1]
    assert modules[0].isdisjoint(modules[1])


@pytest.mark.parametrize(
    ("records", "sections", "message"),
    [
        ([{"prompt": "p", "chosen": "c"}], {}, "columns prompt, chosen match no known format"),
        ([{"text": "a"}], PAIRS, "have the format text, but task contrastive needs pairs"),
        (
            [{"anchor": "a", "positive": "p"}],
            {},
            "format pairs, but task sft needs messages",
        ),
        (
            [{"text": ""}] * 3,
            {},
            r"all records were dropped.*\n  3 of 3 records",
        ),
        ([{"text": "a"}, {"text": None}], {}, r"d.jsonl:2, column 'text': got null"),
    ],
)
def test_unusable_data_is_explained(rows, load, records, sections, message):
    with pytest.raises(DataError, match=message) as caught:
        load({"train": rows(records), "eval_fraction": 0}, **sections)
    assert caught.value.exit_code == 9


def test_pairs_that_could_not_be_learned_alone_are_refused(rows, load):
    records = [
        {"anchor": "a", "positive": "p", "negative": "n"},
        {"anchor": "b", "positive": "q", "negative": None, "id": "bare"},
    ]
    data = {"train": rows(records), "eval_fraction": 0}
    with pytest.raises(DataError, match=r"1 of 2 pairs have no negative .*first: \S+/d\.jsonl:2"):
        load(data, train={"steps": 1, "batch": 1, "accumulate": 1}, **PAIRS)
    for enough in ({"batch": 2, "accumulate": 1}, {"batch": 1, "accumulate": 2}):
        assert len(load(data, train={"steps": 1, **enough}, **PAIRS).train) == 2


def test_a_label_that_is_nan_is_no_label_and_counted(rows, load):
    records = [{"anchor": f"a{n}", "positive": f"p{n}", "label": float("nan")} for n in range(3)]
    data = {"train": rows(records), "eval_fraction": 0}
    with pytest.raises(DataError, match=r"3 of 3 records.*NaN.*d\.jsonl:1"):
        load(data, **PAIRS)
    sets = load(data | {"accept": ["nan-label"]}, **PAIRS)
    assert [one.label for one in sets.train] == [None] * 3


def test_hold_out_splits_without_loss():
    kept, held = hold_out(range(100), 0.07, None)
    assert len(held) == 7
    assert sorted(kept + held) == list(range(100))
    assert kept == sorted(kept)
    assert len(hold_out(range(100), 0.5, 3)[1]) == 3
    assert len(hold_out(range(10), 0.001, None)[1]) == 1
    assert hold_out(range(10), 0, None)[1] == []
    assert hold_out(["only"], 0.5, None) == (["only"], [])


def test_evenly_spaced_items_cover_the_whole_range():
    assert evenly_spaced(range(10), 5) == [0, 2, 4, 6, 8]
    assert evenly_spaced(range(3), 5) == [0, 1, 2]
    assert evenly_spaced(range(3), None) == [0, 1, 2]


def test_sources_are_mixed_by_their_weights(rows, load):
    a = rows([{"text": f"a{number}"} for number in range(30)], "a.jsonl")
    b = rows([{"text": f"b{number}"} for number in range(10)], "b.jsonl")
    sets = load({"train": [{"path": a, "weight": 1}, {"path": b, "weight": 1}], "eval_fraction": 0})
    half = [
        "a.jsonl 50% (20 of its 30 examples)",
        "b.jsonl 50% (20 examples: each of its 10 about 2.0 times)",
    ]
    assert sets.facts["mix per epoch"] == ", ".join(half)
    assert (len(sets.train), sets.per_epoch) == (40, 40)
    phases = [{"at": 0, "weights": {"a": 1, "b": 3}}]
    planned = load({"train": [{"path": a}, {"path": b}], "mix": phases, "eval_fraction": 0})
    assert "mix per epoch" not in planned.facts, "the weights are those of the phases"
    plain = load({"train": [{"path": a}, {"path": b}], "eval_fraction": 0.1})
    shares = ["a.jsonl 75% (27 of its 27 examples)", "b.jsonl 25% (9 of its 9 examples)"]
    assert plain.facts["mix per epoch"] == ", ".join(shares)
    assert {example.id[0] for example in plain.eval} == {"a", "b"}


def test_packed_rows_are_of_one_source(rows, load):
    a = rows([{"text": "a" * 5}] * 8, "a.jsonl")
    b = rows([{"text": "b" * 5}] * 8, "b.jsonl")
    data = {"train": [{"path": a}, {"path": b}], "packing": True, "max_length": 24}
    for row in load({**data, "eval_fraction": 0}).train:
        assert len({document.id[0] for document in row.documents}) == 1


def test_streamed_data_are_not_read_at_the_start(rows, load):
    source = rows([{"text": "x"}], "later.jsonl")
    (sets := load({"train": source, "streaming": True, "eval_fraction": 0}))
    assert (sets.train, sets.per_epoch) == ([], None)
    assert (
        sets.facts["train records"] == "streamed from later.jsonl, 1,000 records shuffled at a time"
    )


@pytest.fixture
def stream(tokenizer):
    """Streams a configuration's micro-batches."""

    def _stream(data, **sections):
        sections = {"train": {"steps": 1, "batch": 1, "accumulate": 1}, **sections}
        data = {"streaming": True, "eval_fraction": 0, **data}
        config = msgspec.convert({"model": {"id": "m"}, "data": data, **sections}, RunConfig)
        return stream_batches(config, tokenizer, 0, 1)

    return _stream


def test_streamed_pairs_that_could_not_be_learned_alone_are_refused(rows, stream):
    pair = {"anchor": "a", "positive": "p"}
    bare = rows([pair])
    with pytest.raises(DataError, match="1 of 1 pairs have no negative of their own"):
        stream({"train": bare}, **PAIRS).take(0)
    own = rows([pair | {"negative": "n"}], "own.jsonl")
    assert len(stream({"train": own}, **PAIRS).take(0)) == 1


def test_a_stream_of_several_sources_has_the_shares_of_their_weights(rows, stream):
    names = {"a": 3.0, "b": 1.0}
    sources = [
        {"path": rows([{"text": f"{name} text", "id": name}], f"{name}.jsonl"), "weight": weight}
        for name, weight in names.items()
    ]
    batches = stream({"train": sources})
    found = [batches.take(number)[0].id for number in range(1000)]
    assert {name: found.count(name) for name in names} == {"a": 750, "b": 250}


def test_a_stream_ends_its_pass_at_the_limit(rows, stream):
    source = rows([{"text": f"text {n}", "id": str(n)} for n in range(9)])
    batches = stream({"train": source, "train_limit": 3})
    assert {batches.take(number)[0].id for number in range(30)} == {"0", "1", "2"}


def test_an_empty_stream_is_refused(rows, stream):
    with pytest.raises(DataError, match="no records; check the source"):
        stream({"train": rows([])})


def test_records_that_the_template_rejects_are_counted_unless_they_are_most(rows, load, tokenizer):
    def talk(question):
        answer = {"role": "assistant", "content": "yes"}
        return {"messages": [{"role": "user", "content": question}, answer]}

    own = {"eval_fraction": 0.0, "accept": ["rejected-records"]}
    refuses = "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}"
    tokenizer.chat_template = refuses + CHATML
    few = load({"train": rows(map(talk, ["a", "b", "no", "c"])), **own})
    assert few.findings.count(REJECTED_RECORDS) == 1
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*not this.*; 3 of 4 records are rejected"):
        load({"train": rows(map(talk, ["no", "no", "a", "no"])), **own})


def test_plain_completions_beside_a_source_of_conversations_are_counted(rows, load):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chats = rows([{"messages": turns, "n": 1}, {"messages": turns, "n": 2}], "chats.jsonl")
    plain = rows([{"prompt": letter, "completion": letter} for letter in "cde"], "plain.jsonl")
    texts = rows([{"text": "some text"}], "texts.jsonl")
    accept = {"eval_fraction": 0.0, "accept": ["all"]}
    mixed = load({"train": [{"path": one} for one in (chats, plain, texts)], **accept})
    assert mixed.findings.count(MIXED_SOURCES) == 3
    alike = load({"train": [{"path": one} for one in (plain, texts)], **accept})
    assert alike.findings.count(MIXED_SOURCES) == 0
