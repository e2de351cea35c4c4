"""The speedrun: its rules refuse what they should, its referee gives nothing away, and its entries learn."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from support.scripts import script

from labkit import paths
from labkit.errors import LabError
from labkit.labs import lab28
from labkit.labs.lab28 import __main__ as command
from labkit.recording import plan
from labkit.source import recorded
from labkit.speedrun import pieces, ranking, referee, rules, search
from labkit.training.data import DigitSet, normalise, read_bundled
from labkit.training.model import Net

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

CPU = torch.device("cpu")
FOLDER = paths.SOURCE_CODE / "speedrun"
SMALL = {
    "any_net": {"sizes": (16, 16, 32), "batch": 32, "epochs": 4.0},
    "own_kernels": {"sizes": (16, 16, 32), "batch": 32, "epochs": 3.0},
    "course_net": {"batch": 20, "epochs": 1.0},
}


@pytest.fixture(scope="module")
def digits() -> DigitSet:
    found = read_bundled().train
    return DigitSet(found.data[:400], found.targets[:400])


# Rules


def record(**but: object) -> dict:
    """What speedrun.py writes of a good entry, with something else in it."""
    rows = [
        {"seed": seed, "training_ms": 20.0 + seed % 3, "untrained_pct": 9.8, "accuracy_pct": 99.02 + 0.01 * (seed % 3)}
        for seed in range(1, 31)
    ]
    whole = {
        "track": "the course's net", "entry": "mine.py", "author": "N. N.", "rows": rows,
        "hold_out": [dict(row, seed=100 + row["seed"]) for row in rows[:10]],
        "data_source": "MNIST", "train_samples": 60_000, "test_samples": 10_000, "device": "cuda",
        "gpu": "NVIDIA H200", "parameters": {name: list(one.shape) for name, one in Net().named_parameters()},
    }  # fmt: skip
    return whole | but


def rows_but(**but: object) -> list[dict]:
    """Thirty good rows, the seventh of which has something else."""
    rows = [dict(row) for row in record()["rows"]]
    rows[6] |= but
    return rows


def test_a_good_entry_breaks_no_rule():
    assert rules.broken(record()) == []
    assert rules.broken(record(track="any net", parameters={"weight": [10, 784]})) == []


@pytest.mark.parametrize(
    ("but", "word"),
    [
        ({"track": "any network"}, "there are 'the course's net' and 'any net'"),
        ({"data_source": "bundled 5,000 digits"}, "test digits of MNIST"),
        ({"test_samples": 9_999}, "test digits of MNIST"),
        ({"train_samples": 70_000}, "test digits of MNIST"),
        ({"device": "cpu"}, "on the CPU"),
        ({"rows": record()["rows"][:29]}, "not 1 to 30, each once: it has 29"),
        ({"rows": [*record()["rows"], dict(record()["rows"][0], seed=31)]}, "each once: it has 31"),
        ({"rows": rows_but(seed=31)}, "not 1 to 30"),
        ({"rows": rows_but(training_ms=0.0)}, "a time that is none"),
        ({"rows": rows_but(untrained_pct=98.0)}, "before its training"),
        ({"rows": rows_but(accuracy_pct=97.0)}, "its mean is 98.9"),
        ({"hold_out": record()["hold_out"][:9]}, "by 10 seeds"),
        ({"hold_out": record()["rows"][:10]}, "of their own"),
        ({"hold_out": [dict(row, accuracy_pct=98.7) for row in record()["hold_out"]]}, "stays below 98.8 %"),
        ({"parameters": {"conv1.weight": [24, 1, 5, 5]}}, "not the course's"),
    ],
)
def test_each_rule_can_be_broken_alone(but, word):
    found = rules.broken(record(**but))
    assert len(found) == 1 and word in found[0]


def test_the_course_net_of_the_rules_is_the_course_net():
    assert {name: list(one.shape) for name, one in Net().named_parameters()} == rules.COURSE_NET


def test_what_is_typed_in_the_rules_is_what_is_checked():
    text = (FOLDER / "RULES.md").read_text()
    for words in (
        f"at least {rules.GOAL_PCT} %", f"at least {rules.SEEDS} seeds", f"at most the {rules.TRAIN_SAMPLES:,}",
        f"last {rules.HELD_OUT:,} training digits", f"below {rules.GATE_PCT} %", f"more than {rules.CHANCE_PCT:.0f} %",
        *(f"**{name}**" for name in rules.TRACKS),
    ):  # fmt: skip
        assert words.lower() in text.lower(), words


# Referee


class Seeing:
    """A trainer that keeps what it is shown, and knows nothing."""

    def __init__(self, images, labels, **recipe):
        self.images, self.labels, self.recipe, self.seen, self.begun = images, labels, recipe, [], []
        self.at_start = []

    def start(self, seed):
        self.begun.append(seed)
        self.at_start.append((self.images.clone(), self.labels.clone()))

    def train(self):
        self.seen.append((self.images.clone(), self.labels.clone()))

    def predict(self, images):
        return torch.zeros(len(images), dtype=torch.int64)

    def parameters(self):
        return {}


def entry(trainer: type, **recipe: object) -> referee.Entry:
    return referee.Entry(Path(__file__), "any net", recipe, trainer)


def test_the_rehearsal_is_on_noise_and_each_seed_in_another_order(digits):
    play = referee.Play(entry(Seeing, batch=3), digits, CPU)
    rehearsed = play.trainer.seen[:]
    assert len(rehearsed) == referee.REHEARSALS and play.trainer.recipe == {"batch": 3}
    for images, labels in rehearsed:
        assert abs(images.float().mean() - 127.5) < 2 and not torch.equal(labels, digits.targets)
    rows = [*play.seeds(range(1, 4), digits)]
    seen = play.trainer.seen[len(rehearsed) :]
    assert [row["seed"] for row in rows] == [1, 2, 3] == play.trainer.begun[len(rehearsed) :]
    for images, labels in play.trainer.at_start:
        assert abs(images.float().mean() - 127.5) < 2 and not torch.equal(labels.sort()[0], digits.targets.sort()[0])
    keys = [sorted(zip(one.flatten(1).sum(1).tolist(), two.tolist(), strict=True)) for one, two in seen]
    assert keys[0] == keys[1] == keys[2], "the same digits with their labels"
    assert not torch.equal(seen[0][1], seen[1][1]) and not torch.equal(seen[1][1], seen[2][1])
    zeros = 100 * float((digits.targets == 0).float().mean())
    assert all(row["accuracy_pct"] == row["untrained_pct"] == pytest.approx(zeros) for row in rows)


def test_the_clock_runs_over_the_training_alone(digits):
    class Slow(Seeing):
        def start(self, seed):
            time.sleep(0.2)

        def train(self):
            time.sleep(0.05)

        def predict(self, images):
            time.sleep(0.2)
            return super().predict(images)

    (row,) = referee.Play(entry(Slow), digits, CPU).seeds(range(1, 2), digits)
    assert 50 <= row["training_ms"] < 200


def test_a_network_that_goes_on_from_the_last_seed_is_refused(digits):
    class Cheating(Seeing):
        """Keeps what it learned: each digit's label by its sum of pixels."""

        def __init__(self, *given, **recipe):
            super().__init__(*given, **recipe)
            self.known = {}

        def train(self):
            self.known |= dict(zip(self.images.flatten(1).sum(1).tolist(), self.labels.tolist(), strict=True))

        def predict(self, images):
            return torch.tensor([self.known.get(one, 0) for one in images.flatten(1).sum(1).tolist()])

    first, second = referee.Play(entry(Cheating), digits, CPU).seeds(range(1, 3), digits)
    assert first["untrained_pct"] < rules.CHANCE_PCT < second["untrained_pct"]


@pytest.mark.parametrize("shape", [(-1, 1), (1, -1), (-1, 10)])
def test_what_names_no_digit_for_each_image_is_refused(digits, shape):
    """A column of right answers, compared with a row of labels, would be a whole table."""

    class Broad(Seeing):
        def predict(self, images):
            return super().predict(images).repeat_interleave(10 if shape == (-1, 10) else 1).view(shape)

    with pytest.raises(LabError, match="predict names a digit for each image"):
        [*referee.Play(entry(Broad), digits, CPU).seeds(range(1, 2), digits)]


@pytest.mark.parametrize("text", ["TRACK = 'any net'", "RECIPE = {}\nprepare = None"])
def test_a_file_that_is_no_entry_is_named(text, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(LabError, match="is no entry: it does not say"):
        referee.read(file)
    with pytest.raises(LabError, match="no entry at"):
        referee.read(tmp_path / "other.py")
    with pytest.raises(LabError, match=r"Near it: .*any_net"):
        referee.read("anynet")


def test_settings_are_changed_by_name():
    found = referee.read("any_net")
    assert found.file == FOLDER / "any_net.py"
    other = found.but(batch=7)
    assert other.recipe == found.recipe | {"batch": 7} and found.recipe["batch"] != 7
    with pytest.raises(LabError, match=r"no setting 'bach'. Near it: batch"):
        found.but(bach=7)


def test_digits_are_held_out_from_the_end(digits):
    train, held_out = referee.split(digits, 100)
    assert len(train) == 300 and torch.equal(held_out.data, digits.data[300:])
    with pytest.raises(LabError, match="cannot be held out"):
        referee.split(digits, 300)


# Search


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch=256,512", ("batch", [256, 512])),
        ("batch=256", ("batch", [256])),
        ("fc1=muon,adam", ("fc1", ["muon", "adam"])),
        ("betas=(0.7,0.9),(0.9,0.99)", ("betas", [(0.7, 0.9), (0.9, 0.99)])),
        ("betas=(0.7,0.9)", ("betas", [(0.7, 0.9)])),
    ],
)
def test_choices_are_read(text, expected):
    assert search.choices(text) == expected


def test_a_setting_without_a_value_is_named():
    assert search.setting("sizes=(16, 5)") == ("sizes", (16, 5)) and search.setting("a=b=c") == ("a", "b=c")
    with pytest.raises(LabError, match="'batch' sets nothing"):
        search.choices("batch")


def test_combinations_are_all_tried_the_likely_ones_first_and_equals_in_an_order_that_is_drawn():
    space = [("a", [3, 1, 2]), ("b", [5, 4, 6])]
    found = search.combinations(space)
    assert len(found) == 9 and len({(one["a"], one["b"]) for one in found}) == 9
    places = [sum(values.index(one[name]) for name, values in space) for one in found]
    assert found[0] == {"a": 3, "b": 5} and places == sorted(places) == [0, 1, 1, 2, 2, 2, 3, 3, 4]
    assert found == search.combinations(space), "the same again"
    assert any(search.combinations(space, seed) != found for seed in range(1, 9))
    assert search.combinations([]) == [{}]


def test_a_search_goes_on_after_what_breaks_and_ends_in_time(digits):
    class Breaks(Seeing):
        def train(self):
            if self.recipe["batch"] == 2:
                raise RuntimeError("out of resources\nand more")

    sets = referee.split(digits, 100)
    settings = [{"batch": 1}, {"batch": 2}, {"batch": 3}]
    rows = [*search.tried(entry(Breaks, batch=0), settings, sets, CPU, range(1, 3), time.monotonic() + 60)]
    assert [row.get("failed") for row in rows] == [None, "RuntimeError: out of resources", None]
    assert len(ranking.ranked(rows)) == 2
    assert not [*search.tried(entry(Breaks, batch=0), settings, sets, CPU, range(1, 3), time.monotonic() - 1)]


def test_a_search_gives_up_what_is_far_from_the_goal_or_slower_than_what_reaches_it(digits, monkeypatch):
    def played(play, seeds, judged):
        recipe = play.trainer.recipe
        for seed in seeds:
            yield {"seed": seed, "training_ms": recipe["ms"], "accuracy_pct": recipe["pct"] + 0.01 * (seed % 2)}

    monkeypatch.setattr(referee.Play, "seeds", played)
    settings = [{"pct": pct, "ms": ms} for pct, ms in ((98.8, 5), (98.9, 9), (99.1, 9), (99.1, 9.5), (99.2, 12))]
    sets = referee.split(digits, 100)
    for stops, expected in ((True, [2, 4, 4, 4, 2]), (False, [4] * 5)):
        until = time.monotonic() + 60
        rows = [*search.tried(entry(Seeing, pct=0, ms=0), settings, sets, CPU, range(1, 5), until, stops)]
        assert [row["seeds"] for row in rows] == expected and not any("failed" in row for row in rows)


def test_what_reaches_99_percent_comes_first_by_time_then_by_accuracy():
    def row(mean, error, ms):
        return {"mean_pct": mean, "error_pct": error, "median_ms": ms, "seeds": 12}

    fast, slow, near, low = row(99.1, 0.02, 5.0), row(99.3, 0.02, 9.0), row(99.01, 0.02, 1.0), row(98.0, 0.0, 0.5)
    assert ranking.ranked([low, near, slow, fast, {"failed": "so"}]) == [fast, slow, near, low]


def test_a_summary_has_the_standard_error():
    rows = [{"accuracy_pct": one, "training_ms": ms} for one, ms in ((99.0, 5.0), (99.2, 7.0), (99.4, 6.0))]
    found = referee.summary(rows)
    assert found["mean_pct"] == pytest.approx(99.2) and found["error_pct"] == pytest.approx(0.2 / 3**0.5)
    assert (found["median_ms"], found["range_ms"], found["seeds"]) == (6.0, [5.0, 7.0], 3)


# Pieces


def test_the_rate_rises_and_falls_in_straight_lines():
    found = [pieces.triangle(step, 9, 0.2) for step in range(9)]
    assert found == pytest.approx([0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])


def test_every_digit_is_seen_once_an_epoch_with_its_label():
    images = torch.arange(50, dtype=torch.uint8)[:, None, None].repeat(1, 28, 28)
    batches = pieces.Batches(images, torch.arange(50), batch=20, epochs=2.5, shift=0)
    assert batches.steps == 6
    seen = []
    for _ in range(2):
        batches.draw()
        batches.gather()
        numbers = [batches.digits[batches.place(step)][:, 5, 5].long() for step in range(6)]
        seen.append(torch.cat(numbers))
        assert torch.equal(seen[-1], batches.targets)
        assert all(sorted(seen[-1][at : at + 50].tolist()) == list(range(50)) for at in (0, 50))
        assert len(set(seen[-1][100:].tolist())) == 20
    assert not torch.equal(*seen)
    with pytest.raises(ValueError, match="do not fill a batch"):
        pieces.Batches(images, torch.arange(50), batch=64, epochs=1.0, shift=0)


def test_digits_are_shifted_both_ways_and_by_no_more():
    images = torch.zeros(200, 28, 28, dtype=torch.uint8)
    images[:, 14, 14] = 255
    batches = pieces.Batches(images, torch.zeros(200, dtype=torch.int64), batch=200, epochs=1.0, shift=1)
    batches.draw()
    batches.gather()
    places = batches.digits.nonzero()[:, 1:] - 14
    assert len(places) == 200 and {tuple(place) for place in places.tolist()} == {
        (down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)
    }


def test_each_start_draws_the_seeds_weights_and_forgets_the_rest():
    rates = {
        "muon_rate": 0.1,
        "momentum": 0.6,
        "rows": 64,
        "adam_rate": 0.1,
        "betas": (0.7, 0.9),
        "decay": 0.0,
        "warm": 0.5,
    }
    optimizer = pieces.Optimizer(Net(), ("conv2.weight",), rates)
    found = []
    for seed in (1, 2, 1):
        optimizer.start(seed)
        begun = optimizer.weights.flat_values.clone()
        for gradient in optimizer.weights.gradients.values():
            gradient.fill_(0.01)
        optimizer.step(0, 3)
        found.append((begun, optimizer.weights.flat_values.clone()))
    assert torch.equal(found[0][0], found[2][0]) and torch.allclose(found[0][1], found[2][1], atol=1e-6)
    assert not torch.equal(found[0][0], found[1][0])
    torch.manual_seed(1)
    net = Net()
    optimizer.start(1)
    assert torch.equal(optimizer.weights.values["fc2.weight"], net.fc2.weight), "as PyTorch draws them"


# Entries


def prepared(name: str, digits: DigitSet, **settings: object) -> object:
    found = referee.read(FOLDER / f"{name}.py").but(**(SMALL[name] | settings))
    return found.prepare(digits.data.clone(), digits.targets.clone(), **found.recipe)


@pytest.mark.parametrize("name", SMALL)
def test_nothing_of_a_training_reaches_the_next(name, digits):
    """Not the weights, not a state of the optimizer, not what the rehearsal on noise left."""
    trainer, weights = prepared(name, digits, epochs=0.4), []
    trainer.batches.images.random_(0, 256)
    for seed in (3, 1, 2, 1):
        if seed == 1:
            trainer.batches.images.copy_(digits.data)
        trainer.start(seed)
        trainer.train()
        weights.append(trainer.optimizer.weights.flat_values.clone())
        trainer.batches.images.random_(0, 256)
    assert torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[1], weights[2]), "another seed is another training"


@pytest.mark.parametrize("name", SMALL)
def test_no_start_depends_on_what_lies_where_the_digits_will_be(name, digits):
    """So it makes no difference to the course's entries whether the digits come before ``start`` or after it."""
    trainer, found = prepared(name, digits, epochs=0.4), []
    before = {key: one.clone() for key, one in vars(trainer.batches).items() if isinstance(one, torch.Tensor)}
    for come_first in (True, False):
        trainer.batches.images.random_(0, 256)
        trainer.batches.labels.random_(0, 10)
        for come in (come_first, not come_first):
            if come:
                trainer.batches.images.copy_(digits.data)
                trainer.batches.labels.copy_(digits.targets)
            else:
                trainer.start(5)
                begun = trainer.optimizer.weights.flat_values.clone()
        assert all(torch.equal(before[key], vars(trainer.batches)[key]) for key in before), "start prepares no batch"
        trainer.train()
        found.append((begun, trainer.optimizer.weights.flat_values.clone()))
        before |= {key: one.clone() for key, one in vars(trainer.batches).items() if key in before}
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert not torch.equal(*found[0]), "it did train"


@pytest.mark.parametrize("name", SMALL)
def test_an_entry_learns(name, digits):
    found = referee.read(FOLDER / f"{name}.py").but(**SMALL[name])
    assert found.track in rules.TRACKS
    train, held_out = referee.split(digits, 100)
    (row,) = referee.Play(found, train, CPU).seeds(range(1, 2), held_out)
    assert row["untrained_pct"] < rules.CHANCE_PCT and row["accuracy_pct"] > 50


@pytest.mark.parametrize("on_hopper", [False, True])
def test_the_course_nets_gradients_are_those_of_autograd(on_hopper, digits):
    """By main_opt7's kernels and by main_opt8's, of either on the CPU the references."""
    trainer = prepared("course_net", digits, smoothing=0.2)
    assert not trainer.on_hopper
    trainer.on_hopper = on_hopper
    trainer.start(4)
    torch.manual_seed(4)
    net = Net()
    net.dropout1.p = net.dropout2.p = 0.0
    images, labels = digits.data[:20], digits.targets[:20]
    loss = torch.zeros(())
    with torch.no_grad():
        trainer.gradients(images, labels, loss)
    expected = F.cross_entropy(net(normalise(images)), labels, label_smoothing=0.2)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in net.named_parameters():
        found = trainer.optimizer.weights.gradient_of(name)
        assert (found - parameter.grad).norm() < 1e-4 * parameter.grad.norm(), name
    assert torch.equal(trainer.predict(images), net.eval()(normalise(images)).argmax(1))
    assert trainer.parameters() == rules.COURSE_NET


@pytest.mark.parametrize("first", ["product", "convolution"])
def test_the_small_net_is_two_pooled_convolutions_and_two_layers(first, digits):
    trainer = prepared("any_net", digits, first=first)
    weight = trainer.leaves
    x = normalise(digits.data[:20])
    for layer in ("conv1", "conv2"):
        x = F.conv2d(x, weight[layer].permute(0, 3, 1, 2).contiguous(), weight[f"{layer}_bias"])
        x = F.max_pool2d(F.relu(x), 2)
    x = F.relu(F.linear(x.permute(0, 2, 3, 1).flatten(1), weight["linear1"], weight["linear1_bias"]))
    expected = F.linear(x, weight["linear2"], weight["linear2_bias"])
    found = script("speedrun/any_net.py").logits(weight, digits.data[:20], trainer.first)
    assert torch.allclose(found, expected, atol=1e-5)


def test_own_kernels_gradients_are_those_of_the_same_network_in_pytorch(digits):
    ours, theirs = prepared("own_kernels", digits, smoothing=0.2), prepared("any_net", digits, smoothing=0.2)
    for trainer in (ours, theirs):
        trainer.start(4)
    images, labels, loss = digits.data[:32], digits.targets[:32], torch.zeros(())
    with torch.no_grad():
        ours.gradients(images, labels, loss)
    expected = theirs.loss(images, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for (name, leaf), slope in zip(
        theirs.leaves.items(), torch.autograd.grad(expected, [*theirs.leaves.values()]), strict=True
    ):
        found = ours.optimizer.weights.gradients[name]
        assert found.shape == leaf.shape and (found - slope).norm() < 1e-4 * slope.norm(), name
    assert torch.equal(ours.predict(images), theirs.predict(images))
    assert ours.parameters() == theirs.parameters()


# Scripts and table


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a script of the speedrun over few digits; its record is given back."""
    monkeypatch.setattr(paths, "REPORTS", tmp_path)
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("labkit.training.data.download", no_network)
    bundled = read_bundled()
    few = SimpleNamespace(train=few_of(bundled.train, 480), test=few_of(bundled.test, 60), source=bundled.source)
    few.is_mnist = False
    monkeypatch.setattr("labkit.training.steps.found_digits", lambda args: few)

    def run(name: str, *flags: str) -> dict:
        file = tmp_path / "record.json"
        settings = [
            word for key, value in (SMALL["any_net"] | {"epochs": 1.0}).items() for word in ("--set", f"{key}={value}")
        ]
        words = [name, str(FOLDER / "any_net.py"), "--device", "cpu", "--record", str(file), *settings, *flags]
        monkeypatch.setattr(sys, "argv", words)
        script(name).main()
        return json.loads(file.read_text())

    return run


def no_network(folder: Path) -> None:
    raise LabError("no network in a test")


def few_of(digits: DigitSet, count: int) -> DigitSet:
    return DigitSet(digits.data[:count], digits.targets[:count])


def test_a_speedrun_keeps_what_the_rules_ask(run, capsys):
    found = run("speedrun.py", "--seeds", "2", "--open-anyway", "--author", "N. N.")
    assert [row["seed"] for row in found["rows"]] == [1, 2] and found["status"] == "complete"
    assert found["recipe"]["batch"] == 32 and found["author"] == "N. N." and found["manifest"]["modules"]
    assert found["parameters"]["linear2"] == [10, 32] and found["test_opened"] == 0, "not MNIST's"
    printed = capsys.readouterr().out
    assert "seed   2:" in printed and "not yet an entry: its seeds are not 1 to 30, each once: it has 2" in printed
    assert set(record()) <= set(found)


def test_the_test_set_stays_closed_below_the_gate(run, capsys):
    found = run("speedrun.py", "--seeds", "2", "--set", "epochs=0.2")
    assert found["rows"] == [] and len(found["hold_out"]) == 2
    assert "stays closed" in capsys.readouterr().out
    assert run("speedrun.py", "--seeds", "1", "--hold-out", "--open-anyway")["rows"] == []


def test_each_opening_of_the_test_set_is_logged(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "REPORTS", tmp_path / "reports")
    module, found = script("speedrun.py"), referee.read(FOLDER / "any_net.py")
    assert module.open_test_set(found) == 1
    module.log(found, ended=module.now(), **referee.summary(record()["rows"]))
    assert module.open_test_set(found) == 2, "what came out is no second opening"
    lines = [json.loads(line) for line in (tmp_path / "reports/speedrun_tests.jsonl").read_text().splitlines()]
    assert lines[1]["mean_pct"] == pytest.approx(99.03) and lines[2]["recipe"]["batch"] == found.recipe["batch"]
    assert {line["entry"] for line in lines} == {"any_net.py"}


def test_an_opening_counts_though_it_is_broken_off(run, monkeypatch, tmp_path):
    few = sys.modules["labkit.training.steps"].found_digits(None)
    few.is_mnist = True
    monkeypatch.setattr(rules, "TEST_SAMPLES", len(few.test))
    whole = referee.Play.seeds

    def interrupted(play, seeds, judged):
        if len(judged) == len(few.test):
            raise KeyboardInterrupt
        yield from whole(play, seeds, judged)

    monkeypatch.setattr(referee.Play, "seeds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("speedrun.py", "--seeds", "1", "--open-anyway")
    monkeypatch.setattr(referee.Play, "seeds", whole)
    assert run("speedrun.py", "--seeds", "1", "--open-anyway")["test_opened"] == 2


def test_a_search_tries_all_and_the_better_ones_again(run, capsys):
    flags = ["--over", "batch=32,40", "--over", "smoothing=0.0,0.1", "--seeds", "2", "--finalists", "2"]
    found = run("speedrun_search.py", *flags, "--final-seeds", "3", "--minutes", "5")
    rounds = [[row for row in found["rows"] if row["round"] == number] for number in (1, 2)]
    assert [len(one) for one in rounds] == [4, 2] and all(row["seeds"] == 3 for row in rounds[1])
    best = max(rounds[0], key=lambda row: row["mean_pct"])
    assert best["settings"] in [row["settings"] for row in rounds[1]]
    assert "Best (*" in capsys.readouterr().out


def test_the_table_has_entries_and_what_is_published(tmp_path, capsys, monkeypatch):
    for name, but in (("a", {}), ("b", {"entry": "broken.py", "device": "cpu"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(record(**but)))
    monkeypatch.setattr(sys, "argv", ["speedrun", str(tmp_path)])
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in lab28.OWN)
    assert printed.index("mine") < printed.index("tuomaso") < printed.index("broken.py is not in the table")
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(LabError, match="holds no record"):
        lab28.entries(tmp_path)


def test_what_is_shipped_are_entries():
    records = [*lab28.own(), *lab28.entries()]
    assert not [rules.broken(one) for one in records if rules.broken(one)]
    assert len(lab28.standing(records).cells()) == len(records) + len(lab28.published())
    assert [row[0] for row in lab28.goals(records).cells()] == [*rules.TRACKS]
    assert len(lab28.seeds(record()).cells()) == 30


def recorded_searches() -> dict[str, dict]:
    names = [line.split()[1] for line in plan.SPEEDRUN if line.startswith("speedrun_search.py")]
    return {name: recorded.records("benchmarks", f"speedrun_search.py {name}")[0] for name in names}


def test_the_entries_play_what_was_recorded_and_what_the_search_chose():
    found = recorded_searches()
    for own in lab28.own():
        name = own["entry"].removesuffix(".py")
        entry, search = referee.read(name), found.get(name, found["own_kernels"])
        assert own["recipe"] == as_kept(entry.recipe), "the recipe in the file is the one that was recorded"
        assert lab28.is_recipe_of(lab28.chosen(search), own)
        assert own["test_opened"] == 1
        assert f"speedrun/{name}.py" in own["manifest"]["modules"]
    for name, search in found.items():
        space = referee.read(name).space
        assert search["combinations"] == len(search_for(space))
        allowed = [as_kept(one) for one in search_for(space)]
        assert all(row["settings"] in allowed for row in search["rows"])
        kept, now = search["recipe"], as_kept(referee.read(name).recipe)
        assert {key for key in now if kept.get(key) != now[key]} <= space.keys(), "what a search does not vary"


def search_for(space: dict) -> list[dict]:
    return search.combinations([*space.items()])


def as_kept(settings: dict) -> dict:
    return json.loads(json.dumps(settings))


def tries(*rows: tuple) -> dict:
    keys = ("round", "settings", "mean_pct", "error_pct", "median_ms", "seeds", "warm_up_s")
    found = [dict(zip(keys, (*row, 3, 0.5), strict=True)) for row in rows]
    return {"entry": "mine.py", "combinations": 9, "process_s": 7.0, "rows": found}


def test_a_search_ends_with_its_second_round_and_what_broke_is_left_out():
    one, two = {"batch": 1}, {"batch": 2}
    found = tries((1, one, 99.2, 0.01, 9.0), (1, two, 99.3, 0.01, 5.0), (2, one, 99.1, 0.01, 9.0))
    found["rows"].append({"round": 2, "settings": two, "failed": "so"})
    chosen = lab28.chosen(found)
    assert chosen["mean_pct"] == 99.1 and lab28.first_round(found, chosen)["mean_pct"] == 99.2
    assert lab28.is_recipe_of(chosen, {"recipe": {"batch": 1, "epochs": 3}})
    assert not lab28.is_recipe_of(chosen, {"recipe": {"batch": 2}})
    assert lab28.second_round(found) == [(9.0, 99.1, 0.01)]
    assert lab28.cost([found]).cells() == [["mine", "9", "2", "1", "9", "0.1", "8", "1.5", "7"]]
    found["rows"] = found["rows"][:2]
    assert lab28.chosen(found)["settings"] == two, "without a second round the first"


def test_of_recipes_as_fast_as_the_fastest_the_most_accurate_is_chosen():
    rows = [(2, {"a": 1}, 99.05, 0.01, 10.0), (2, {"a": 2}, 99.08, 0.01, 10.09), (2, {"a": 3}, 99.2, 0.01, 10.4)]
    found = tries(*rows, (2, {"a": 4}, 99.005, 0.01, 9.0))
    assert [row["settings"]["a"] for row in ranking.ranked(found["rows"])] == [2, 1, 3, 4]
    assert ranking.ranked([]) == []


def test_the_second_round_stands_beside_the_first():
    found, one = tries(), {"batch": 1}
    for number, seeds, mean in ((1, 3, 99.3), (2, 12, 99.15)):
        found["rows"] += tries((number, one, mean, 0.02, 9.0))["rows"]
        found["rows"][-1]["seeds"] = seeds
    assert lab28.rounds([found]).cells() == [["mine", "3", "99.300", "0.020", "12", "99.150", "0.020"]]
    found["rows"] = found["rows"][:1]
    assert lab28.rounds([found]).cells()[0] == ["mine", "3", "99.300", "0.020", "0", "–", "–"], "no second round"
    assert lab28.rounds([tries()]).cells() == [["mine", "0", "–", "–", "0", "–", "–"]]


def test_a_search_without_a_result_has_no_numbers():
    nothing = tries()
    assert not lab28.is_recipe_of(lab28.chosen(nothing), {"recipe": {}})
    assert lab28.tries(nothing).axes


def test_the_chart_of_a_search_has_every_recipe_and_rings_the_chosen_one():
    found = tries((1, {"a": 1}, 98.0, 0.01, 9.0), (1, {"a": 2}, 99.3, 0.01, 5.0), (2, {"a": 2}, 99.1, 0.01, 6.0))
    (ax,) = lab28.tries(found).axes
    dots = [place for one in ax.collections if hasattr(one, "get_sizes") for place in one.get_offsets().tolist()]
    assert dots == [pytest.approx(place) for place in ([9.0, 2.0], [5.0, 0.7], [6.0, 0.9])]
    rings = [line for line in ax.get_lines() if line.get_label() == "chosen"]
    assert [list(line.get_xdata()) for line in rings] == [[6.0]]
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "fewer wrong digits are higher up"


def test_a_record_without_a_seed_has_no_numbers():
    closed = record(rows=[])
    assert lab28.standing([closed]).cells()[-1][4:] == ["–", "–", "–", "0"]
    assert lab28.hidden([closed | {"process_s": 3.0}]).cells() == [["mine", "–", "–", "–", "10", "0.21", "3"]]


def test_operations_of_the_course_s_network_are_those_that_pytorch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    net = Net()
    with FlopCounterMode(display=False) as counted:
        F.cross_entropy(net(torch.randn(2, 1, 28, 28)), torch.tensor([1, 2])).backward()
    assert lab28.mflop() == pytest.approx(counted.get_total_flops() / 2e6, rel=1e-6)


def test_two_records_of_one_recipe_are_told_from_two_of_two():
    one = record(recipe={"batch": 512, "epochs": 0.8, "engine": "compiled"})
    assert lab28.steps(one) == 93
    assert lab28.same_recipe(one, record(recipe={"batch": 512, "epochs": 0.8}))
    assert not lab28.same_recipe(one, record(recipe={"batch": 256, "epochs": 0.8}))
    assert not lab28.same_recipe(one, record(recipe=one["recipe"], parameters={}))


def test_the_chart_shows_every_seed_of_every_entry():
    other = record(entry="theirs.py", rows=rows_but(accuracy_pct=98.5))
    (ax,) = lab28.seeds_chart([record(), other]).axes
    shown = [tuple(place) for dots in ax.collections for place in dots.get_offsets().tolist()]
    expected = [row["accuracy_pct"] for one in (record(), other) for row in one["rows"]]
    assert sorted(accuracy for accuracy, _ in shown) == sorted(expected)
    assert [label.get_text().split("\n")[0] for label in ax.get_yticklabels()] == ["mine", "theirs"]
