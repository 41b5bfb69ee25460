from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fttui.engine.config.load import dump_config, load_config, parse_override, parse_resolved
from fttui.engine.config.schema import (
    VERSION,
    ContrastiveConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.errors import ConfigError

GOOD = """\
model:
  id: some/model
data:
  train: some/data
train:
  steps: 10
"""


@pytest.fixture
def load(tmp_path):
    """Loads configuration text; errors name it `c.yaml`."""

    def _load(text, *overrides):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load_config(path, overrides)

    return _load


@pytest.fixture
def errors(load, tmp_path):
    """The lines of the error that configuration text meets, without the folder."""

    def _errors(text, *overrides):
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        assert caught.value.exit_code == 2
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return _errors


def test_loads_with_defaults_source_and_places(load, tmp_path):
    loaded = load(GOOD)
    assert loaded.config.train == TrainConfig(steps=10)
    assert loaded.source == GOOD
    assert loaded.places["train.steps"] == f"{tmp_path}/c.yaml:6"
    assert parse_resolved(loaded.resolved) == loaded.config


def test_resolved_is_complete_and_in_schema_order(load):
    resolved = load(GOOD).resolved
    tops = [line.rstrip(":") for line in resolved.splitlines() if not line.startswith((" ", "-"))]
    assert [top.split(":")[0] for top in tops] == list(RunConfig.__struct_fields__)
    assert "  lr: 0.0002\n" in resolved


def test_yaml_1_2_scalars(load):
    text = GOOD + "  lr: 1e-4\n  batch: 1e1\ncontrastive:\n  kind: off\nname: 007\n"
    config = load(text).config
    assert config.train.lr == 1e-4
    assert (config.train.batch, type(config.train.batch)) == (10, int)
    assert config.contrastive.kind == "off"
    assert config.name == "007"


@pytest.mark.parametrize("number", ["2e-4", "2.0E-4", "0.0002", "+2e-4", ".0002"])
def test_every_way_to_write_a_small_number(load, number):
    assert load(GOOD + f"  lr: {number}\n").config.train.lr == 2e-4


def test_unknown_key_in_a_section(errors):
    assert errors(GOOD + "  lerning_rate: 1e-4\n") == [
        "c.yaml:7: unknown key 'lerning_rate' in train; did you mean 'lr'?"
    ]


def test_unknown_key_that_lives_elsewhere(errors):
    assert errors(GOOD + "  max_lenght: 9\n") == [
        "c.yaml:7: unknown key 'max_lenght' in train; did you mean 'data.max_length'?"
    ]
    assert errors("lr: 3\n" + GOOD) == ["c.yaml:1: unknown key 'lr'; did you mean 'train.lr'?"]


def test_unknown_key_like_nothing_lists_what_there_is(errors):
    (line,) = errors(GOOD + "hub:\n  zzzzqqq: 1\n")
    assert line == "c.yaml:8: unknown key 'zzzzqqq' in hub; known here: idle_s"


def test_unknown_key_in_an_optional_section_or_an_entry_of_a_list(errors):
    optional = GOOD + "  early_stop: {metrc: loss}\n"
    assert errors(optional) == [
        "c.yaml:7: unknown key 'metrc' in train.early_stop; did you mean 'metric'?"
    ]
    mix = GOOD.replace("train: some/data", "train:\n    - {path: a}\n    - {path: b, wieght: 2}")
    assert errors(mix) == ["c.yaml:6: unknown key 'wieght' in data.train; did you mean 'weight'?"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[{path: a, weight: 0}]", "data.train.weight: got 0, expected a number > 0 or null"),
        ("[{weight: 1}]", "missing key 'path' in data.train; add 'path:' below 'data.train:'"),
        ("[[a.jsonl]]", "data.train: got ['a.jsonl'], expected keys below it, such as 'path:'"),
        (
            "{path: a, x: 1}",
            "unknown key 'x' in data.train; known here: path, name, weight, split,"
            " columns, roles, system, label, yes_labels",
        ),
        ("null", "data.train: got null, expected text or a list of text or mappings"),
        (
            "[{path: a, weight: 2}, b]",
            "data.train: 1 of 2 sources have a weight; give every source a weight, or remove all "
            "weights to use every record once per epoch",
        ),
    ],
)
def test_a_wrong_entry_of_a_mix_is_named_itself(errors, entries, message):
    (line,) = errors(GOOD.replace("some/data", entries))
    assert line == f"c.yaml:4: {message}"


@pytest.mark.parametrize(
    ("sources", "paths"),
    [
        ("[a.jsonl, b/c.csv]", ["a.jsonl", "b/c.csv"]),
        ("[{path: a.jsonl}, 'b']", ["a.jsonl", "b"]),
        ("[007, 1e3]", ["007", "1e3"]),
        ("{path: a.jsonl, split: dev}", ["a.jsonl"]),
    ],
)
def test_a_text_in_a_list_of_sources_is_a_path(load, sources, paths):
    loaded = load(GOOD.replace("some/data", sources))
    assert [one.path for one in loaded.config.data.sources] == paths
    assert parse_resolved(loaded.resolved) == loaded.config
    assert load(GOOD, f"data.train={sources}").config.data == loaded.config.data


def test_a_relative_path_in_a_list_is_found_beside_the_configuration(load, tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    (source,) = load(GOOD.replace("some/data", "[a.jsonl]")).config.data.sources
    assert source.path == str(tmp_path / "a.jsonl")


def test_a_mix_is_read_like_the_sections(load):
    (source,) = load(GOOD.replace("some/data", "[{path: 007, weight: 1e1}]")).config.data.sources
    assert (source.path, source.weight) == ("007", 10.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lr: fast", "train.lr: got 'fast', expected a number > 0"),
        ("lr: -1", "train.lr: got -1, expected a number > 0"),
        ("lr: .nan", "train.lr: got nan, expected a number > 0"),
        ("lr: .inf", "train.lr: got inf, expected a number > 0"),
        ("batch: 0", "train.batch: got 0, expected a whole number ≥ 1"),
        ("batch: 1.5", "train.batch: got 1.5, expected a whole number ≥ 1"),
        ("batch: true", "train.batch: got true, expected a whole number ≥ 1"),
        ("batch: [1]", "train.batch: got [1], expected a whole number ≥ 1"),
        ("batch:", "train.batch: got null, expected a whole number ≥ 1"),
        ("epochs: x", "train.epochs: got 'x', expected a number > 0 and ≤ 1,000,000 or null"),
        (
            "accumulate: 1e23",
            "train.accumulate: got 1e+23, expected a whole number ≥ 1 and ≤ 1,000,000,000",
        ),
        ("deterministic: yes", "train.deterministic: got 'yes', expected true or false"),
        ("schedule: {a: 1}", "train.schedule: got a mapping, expected one of "),
        ("schedule: cosin", "; did you mean 'cosine'?"),
    ],
)
def test_wrong_values_say_got_and_expected(errors, line, message):
    (error,) = errors(GOOD + f"  {line}\n")
    assert error.startswith("c.yaml:7: ")
    assert message in error


@pytest.mark.parametrize("loss", ["{sigmoid: .inf}", "{sigmoid: 0.5, hinge: .inf}"])
def test_a_number_in_a_mapping_is_finite_as_any_other(errors, loss):
    (error,) = errors(GOOD + f"task: dpo\npreference: {{loss: {loss}}}\n")
    assert "preference.loss: got a mapping, expected" in error
    assert error.endswith("a mapping from such names to a number > 0")


def test_a_loss_that_is_given_as_the_task_is_named(errors):
    (error,) = errors(GOOD + "task: orpo\n")
    assert error.endswith("; set task: dpo and preference.loss: orpo")


def test_values_of_unions(errors, load):
    assert load(GOOD + "adapter:\n  targets: [q_proj]\n").config.adapter.targets == ["q_proj"]
    assert errors(GOOD + "adapter:\n  targets: q_proj\n") == [
        "c.yaml:8: adapter.targets: got 'q_proj', expected 'all-linear', a list such as [q_proj], "
        "or a regular expression for full names"
    ]


def test_all_mistakes_at_once_in_file_order(errors):
    text = GOOD.replace("  id: some/model", "  id: m\n  quantise: nf4").replace("10", "no")
    text = text.replace("some/data", "d\n  max_length: 3")
    assert [line.split(": ")[0] for line in errors(text)] == ["c.yaml:3", "c.yaml:6", "c.yaml:8"]


def test_duplicate_key_names_both_lines(errors):
    (error,) = errors(GOOD + "  steps: 12\n")
    assert error.startswith("c.yaml:7: duplicate key 'steps', first given at c.yaml:6")


def test_missing_keys_and_sections(errors):
    assert errors("model:\n  quantize: none\ntrain:\n  steps: 1\n") == [
        "c.yaml:1: missing key 'id' in model; add 'id:' below 'model:'",
        "c.yaml: missing section 'data'; add 'data:'",
    ]


def test_section_that_is_no_mapping(errors):
    assert errors(GOOD + "adapter: 5\n") == [
        "c.yaml:7: adapter: got 5, expected keys below it, such as 'r:'"
    ]


def test_empty_section_is_its_defaults(load):
    assert load(GOOD + "adapter:\n").config.adapter.r == 16


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_empty_file(errors, text):
    (error,) = errors(text)
    assert "is empty" in error
    assert "model.id" in error


def test_not_a_mapping(errors):
    (error,) = errors("- a\n- b\n")
    assert error.startswith("c.yaml:1: got ['a', 'b'], expected sections")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("model:\n\tid: x\n", "c.yaml:2:1"),
        ("model: [1, 2\n", "c.yaml:2:1"),
        ("a: b: c\n", "c.yaml:1:5"),
        ("a: *b\n", "c.yaml:1:4"),
        ("a: 1\n---\nb: 2\n", "c.yaml:2:1"),
    ],
)
def test_invalid_yaml_has_a_position(errors, text, place):
    (error,) = errors(text)
    assert error.startswith(f"{place}: not valid YAML: ")


def test_tabs_are_named(errors):
    assert errors("model:\n\tid: x\n")[0].endswith("indent with spaces, not tabs")


@pytest.mark.parametrize("text", ["a: \x07\n", "a: &x [*x]\n", "[" * 1200, "? [a, b]\n: 1\n"])
def test_hostile_yaml_is_an_error_of_the_config(errors, text):
    assert errors(text)


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.yaml")


def test_overrides_win_and_are_the_place(load):
    loaded = load(GOOD, "train.steps=20", "eval.samples=[a, b]", "data.eval=x", "data.eval=null")
    assert loaded.config.train.steps == 20
    assert loaded.config.eval.samples == ["a", "b"]
    assert loaded.config.data.eval is None
    assert loaded.places["train.steps"] == "--set train.steps=20"


@pytest.mark.parametrize("text", ["Query: ", "a: b", "*star", "{x", "yes", "12", "1e-4", "a=b"])
def test_override_of_a_text_takes_any_text(load, text):
    assert (
        load(GOOD, f"contrastive.instruction={text}").config.contrastive.instruction == text.strip()
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lrr=1", "--set train.lrr=1: unknown key 'lrr' in train; did you mean 'lr'?"),
        ("train.clip=-1", "--set train.clip=-1: train.clip: got -1, expected a number ≥ 0"),
        ("train.clip", "--set train.clip: expected KEY=VALUE, such as --set train.lr=1e-4"),
        ("train..lr=1", "--set train..lr=1: expected KEY=VALUE, such as --set train.lr=1e-4"),
        ("tarin.lr=1", "--set tarin.lr=1: unknown key 'tarin'; did you mean 'train'?"),
        ("name.x=1", "--set name.x=1: name: got a mapping, expected text"),
        ("train={lrr: 1}", "--set train={lrr: 1}: unknown key 'lrr' in train; did you mean 'lr'?"),
        (
            "eval.samples=[{a: 1}]",
            "--set eval.samples=[{a: 1}]: eval.samples: got [{'a': 1}], expected a list of text",
        ),
    ],
)
def test_wrong_override_names_itself(errors, override, message):
    assert errors(GOOD, override) == [message]


def test_a_wrong_name_in_a_mapping_of_choices_is_named(errors):
    (problem,) = errors(GOOD, "preference.loss={sigmoid: 1, ipoo: 2}")
    assert problem.endswith(
        "sppo_hard or a mapping from such names to a number > 0; 'ipoo' is none of them; did you "
        "mean 'ipo'?"
    )
    (problem,) = errors(GOOD, "preference.loss=sigmod")
    assert problem.endswith("; did you mean 'sigmoid'?")


def test_an_override_may_be_a_whole_section(load, errors):
    loaded = load(GOOD, "model={id: 007, quantize: none}")
    assert (loaded.config.model.id, loaded.config.model.quantize) == ("007", "none")
    assert loaded.places["model.quantize"] == "--set model={id: 007, quantize: none}"
    assert errors(GOOD, "adapter={dropuot: 1}") == [
        "--set adapter={dropuot: 1}: unknown key 'dropuot' in adapter; did you mean 'dropout'?"
    ]


def test_an_override_that_repeats_a_key_is_refused(errors):
    (problem,) = errors(GOOD, "adapter={r: 4, r: 8}")
    assert problem.startswith("--set adapter={r: 4, r: 8}")
    assert "'r'" in problem
    with pytest.raises(ConfigError, match="'r'"):
        parse_override("adapter={r: 4, r: 8}")


def test_an_override_may_be_a_list_of_sections(load):
    override = "data.train=[{path: a, weight: 2}, {path: b, weight: 1}]"
    loaded = load(GOOD, override)
    assert [(one.path, one.weight) for one in loaded.config.data.sources] == [("a", 2), ("b", 1)]
    assert loaded.places["data.train"] == f"--set {override}"


def test_cross_field_errors_carry_the_line(errors):
    assert errors(GOOD + "  epochs: 2\n")[0].startswith("c.yaml:6: train.steps: both steps (10)")


EPOCHS = GOOD.replace("steps: 10", "epochs: 2")


@pytest.mark.parametrize(
    ("text", "override", "steps", "epochs"),
    [
        (EPOCHS, "train.steps=5", 5, None),
        (GOOD, "train.epochs=3", None, 3),
        (EPOCHS, "train.steps=null", None, 2),
        (GOOD, "train.epochs=null", 10, None),
    ],
)
def test_an_override_of_the_length_replaces_the_files(load, text, override, steps, epochs):
    train = load(text, override).config.train
    assert (train.steps, train.epochs) == (steps, epochs)


def test_two_overrides_of_the_length_conflict(errors):
    (line,) = errors(GOOD, "train.epochs=3", "train.steps=5")
    assert "both steps (5) and epochs (3)" in line
    assert "--set train.epochs=null" in line


def test_existing_paths_become_absolute(load, tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text("{}")
    monkeypatch.chdir("/")
    config = load(GOOD.replace("some/data", "rows.jsonl")).config
    assert config.data.train == str(tmp_path / "rows.jsonl")
    assert config.model.id == "some/model"
    config = load(GOOD.replace("some/data", "'*.jsonl'")).config
    assert config.data.train == str(tmp_path / "*.jsonl")


def test_the_file_of_a_template_becomes_absolute(load, tmp_path, monkeypatch):
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    (tmp_path / "qwen3").mkdir()
    monkeypatch.chdir("/")
    for template, expected in (
        ("chat.jinja", str(tmp_path / "chat.jinja")),
        ("qwen3", "qwen3"),
        ("{{ messages[0] }}*", "{{ messages[0] }}*"),
    ):
        assert load(GOOD, f"data.template='{template}'").config.data.template == expected


@pytest.mark.parametrize("word", ["0E0", "1_0", "007", "1e5", "true", "~", "no", ".inf", "12:30"])
def test_text_that_looks_like_something_else_stays_text(load, word):
    config = load(GOOD, f"contrastive.instruction='{word}'").config
    assert config.contrastive.instruction == word
    assert parse_resolved(dump_config(config)) == config


text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)


@settings(max_examples=40)
@given(
    name=text,
    instruction=text,
    train=text,
    samples=st.lists(text, max_size=2),
    lr=st.floats(0, 1e6, exclude_min=True),
    seed=st.integers(0, 2**32 - 1),
    limit=st.none() | st.integers(1, 99),
)
def test_resolved_round_trips(name, instruction, train, samples, lr, seed, limit):
    config = RunConfig(
        name=name,
        model=ModelConfig(id=train, revision=name),
        data=DataConfig(train=train, train_limit=limit),
        train=TrainConfig(steps=1, lr=lr, seed=seed),
        contrastive=ContrastiveConfig(instruction=instruction),
        eval=EvalConfig(samples=samples),
    )
    assert parse_resolved(dump_config(config)) == config


def test_a_configuration_of_a_newer_version_is_refused_before_its_keys(errors):
    text = f"{GOOD}key_of_tomorrow: 1\nversion: {VERSION + 1}\n"
    assert errors(text) == [
        f"c.yaml:8: version: got {VERSION + 1}, expected at most {VERSION}: the configuration was "
        "written for a newer version of fttui; upgrade with: pip install --upgrade fttui"
    ]
    assert len(errors(GOOD, f"version={VERSION + 1}")) == 1
    assert "expected a whole number" in errors(f"{GOOD}version: new\n")[0]
    with pytest.raises(ConfigError, match="expected at most"):
        parse_resolved(text)


def test_a_configuration_without_a_version_is_of_the_first_and_keeps_it(load):
    loaded = load(GOOD)
    assert loaded.config.version == 1
    assert "\nversion: 1\n" in loaded.resolved


DIVIDED = GOOD + "  batch: auto\n  sequences_per_update: 16\n"


def test_a_divided_update_is_read_and_written(load):
    loaded = load(DIVIDED)
    assert (loaded.config.train.batch, loaded.config.train.accumulate) == ("auto", None)
    assert parse_resolved(loaded.resolved) == loaded.config
    assert load(GOOD).config.train.accumulation == 8
    assert load(GOOD + "  batch: 4\n  sequences_per_update: 16\n").config.train.accumulation == 4


@pytest.mark.parametrize(
    ("lines", "place", "message"),
    [
        ("accumulate: 8\n  sequences_per_update: 16", 8, "sequences_per_update: got 16 beside"),
        ("batch: auto", 7, "train.batch: got auto, which divides a known number"),
        ("batch: auto\n  accumulate: 8", 7, "instead of train.accumulate"),
        ("batch: 3\n  sequences_per_update: 16", 8, "not a multiple of train.batch 3 × 1 rank"),
        ("sequences_per_update: 5\n  devices: 2\n  batch: auto", 7, "set 4 or 6"),
        ("batch: many", 7, "expected a whole number ≥ 1 and ≤ 1,000,000,000 or 'auto'"),
    ],
)
def test_contradictions_in_the_size_of_an_update_are_refused(errors, lines, place, message):
    (error,) = errors(GOOD + f"  {lines}\n")
    assert error.startswith(f"c.yaml:{place}: ")
    assert message in error


def test_a_contrastive_update_is_divided_only_where_that_changes_nothing(errors, load):
    pairs = DIVIDED + "task: contrastive\ncontrastive:\n  kind: infonce\n"
    (error,) = errors(pairs)
    assert error.startswith("c.yaml:7: train.batch: got auto, but the texts of a micro-batch are")
    load(pairs + "  cross_accumulation: on\n")
    load(pairs + "  in_batch: false\n  hard_negatives: 1\n")
    load(DIVIDED + "task: contrastive\ncontrastive:\n  kind: cosine\n")


def test_an_override_of_the_size_of_an_update_replaces_the_other_key(load):
    assert load(DIVIDED, "train.batch=2", "train.accumulate=4").config.train.accumulation == 4
    plain = GOOD + "  batch: 2\n  accumulate: 3\n"
    assert load(plain, "train.sequences_per_update=8").config.train.accumulation == 4
