"""Exercises of lab 6: wrong answers are told what is wrong."""

import pytest
import torch

from labkit import exercises
from labkit.source import recorded


def pairs(images, labels, order, size=16):
    return [(images[part], labels[part]) for part in order.split(size)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda i, t, n: pairs(i, t, torch.randperm(len(t))[:48]), "the last batch is short"),
        (lambda i, t, n: pairs(i, t, torch.randint(len(t), (len(t),))), "without replacement"),
        (lambda i, t, n: pairs(i, t, torch.arange(len(t))), "shuffle them"),
        (lambda i, t, n: pairs(i, t, torch.randperm(50, generator=torch.Generator().manual_seed(1))), "anew"),
        (lambda i, t, n: [(i, t)], "a batch of 50"),
        (lambda i, t, n: [data for data, _ in pairs(i, t, torch.randperm(50))], "a pair"),
        (lambda i, t, n: pairs(i[torch.randperm(50)], t, torch.randperm(50)), "same order"),
    ],
)
def test_batches_of_an_epoch(wrong, said, capsys):
    assert not exercises.exercise("6.2", wrong)
    assert said in capsys.readouterr().out


def test_the_pace_of_a_run(capsys):
    runs = recorded.records("runs", "main_opt4.py")
    later_s = [epoch["training_s"] for record in runs for epoch in record["epochs"][1:]]
    pace = 60_000 * 784 / sorted(later_s)[len(later_s) // 2] / 1e9
    assert exercises.exercise("6.1", pace, runs)
    assert not exercises.exercise("6.1", 4 * pace, runs)
    assert "a byte a pixel" in capsys.readouterr().out
    assert not exercises.exercise("6.1", 1e3 * pace, runs)
    assert "units" in capsys.readouterr().out
