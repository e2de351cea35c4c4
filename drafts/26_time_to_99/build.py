# ruff: noqa: E501 – paragraphs of a notebook are one line each
"""Lab 26, Time to 99 %: its cells. Not run: nothing of it is measured yet.

    python3 drafts/26_time_to_99/build.py labs/26_time_to_99.ipynb

What to do when the entries are recorded stands in README.md beside this file.
"""

import sys
from pathlib import Path

import nbformat

CELLS = []


def words(text):
    CELLS.append(nbformat.v4.new_markdown_cell(text.strip()))


def code(text, **metadata):
    CELLS.append(nbformat.v4.new_code_cell(text.strip(), metadata=metadata))


words("(navigation)")
words("""
# Lab 26: Time to 99 %

After this lab you can say what makes a training *short*, beside what makes its steps fast, write an entry of your own for the speedrun, and judge one that somebody else claims.

*About 25 minutes, and as long as you like for the challenge. Live, on one GPU, the runs take about 2 minutes.*
""")
code("""
from labkit import lab
from labkit.speedrun import rules
from labkit.topics import roofline, speedrun

lab.start(26)
""")
words("""
## The question

Every step of the ladder kept its recipe: the same network, the same optimizer, ten epochs. Only so could the speed of one be compared with that of the next. Now the recipe is open. **How long does a network need until it names 99.0 % of the test digits rightly?**

Two things are multiplied: how many steps it takes, and how long a step is. The ladder worked at the second. Whoever wants to be first needs both, and they pull against each other: a large batch makes each digit cheaper, and takes more digits to get there.
""")
words("""
## The rules

A race needs rules before it has times. These are the course's: [RULES.md](../source_code/speedrun/RULES.md), one page. Three of them matter most.

- **The mean over 30 seeds**, none left out. Seeds differ by more than many a trick gains.
- **No test digit in any choice.** Recipes are chosen by 10,000 digits held out of the training set. Whoever tunes on the test digits measures how well he has tuned.
- **The clock runs over everything that makes something of the digits or the weights**: the order they come in, shifting, averaging. Compiling does not count, and is shown.
""")
words("""
`Predict`: the course's network needed ten epochs for 98.7 % or a little more. How many epochs will it need for 99.0 %, if optimizer, schedule and loss may be chosen?
""")
code("my_epochs = None  # for example: 7")
words("""
## Fewer steps

Here is the entry's recipe, and the loop that is one CUDA graph (lab 7): all steps of the training in one launch.
""")
code("""
lab.listing("source_code/speedrun/course_net.py", "RECIPE", "Trainer")
""")
words("""
Read `RECIPE` against the ladder's:

- **Muon** instead of Adadelta: the step of a weight matrix is made equally long in all directions, by a few small matrix products. Directions that hardly show in the gradient are learned too, and soon.
- **Smoothed labels**: the target is not the true digit alone; a tenth is spread over all ten. The network stops growing more certain of what it knows.
- **A rate that rises and falls** in straight lines, to nothing at the end: no epoch is spent on settling down.
- **No dropout**: it pays in a long training.

How they were found: [speedrun_search.py](../source_code/benchmarks/speedrun_search.py) trains every combination of settings for three seeds, the best for twelve more, and never opens the test set.
""")
code("""
course_net = lab.benchmark("speedrun.py course_net")[0]
speedrun.tables.seeds(course_net)
""")
code(
    """
epochs = course_net["recipe"]["epochs"]
lab.compare_prediction(my_epochs, epochs, "epochs", of="a training of the course's network")
found = speedrun.readings.line(course_net)
lab.expect(
    "the course's network reaches 99.0 % on the mean over its seeds",
    found.mean_pct >= rules.GOAL_PCT, found.mean_pct,
    because="fewer seeds were trained here, or the kernels round differently",
    so="train all 30 seeds before you believe in it, or in nothing",
)
""",
    jupyter={"outputs_hidden": True},
    reveals="my_epochs",
)
words("""
## Shorter steps

If the network may change as well, make it small, and each step is a matter of launches: a kernel of a few microseconds, and the next. Two entries train the *same* network by the *same* recipe. One is plain PyTorch with its compiler; the other has kernels of its own (lab 11) for the two convolutions, each with its pooling.
""")
code("""
compiled = lab.benchmark("speedrun.py any_net")[0]
own = lab.benchmark("speedrun.py own_kernels")[0]
lab.invariant("both trained the same network by the same recipe",
              speedrun.readings.same_recipe(compiled, own))
""")
code("""
records = [course_net, compiled, own]
lab.show(speedrun.charts.seeds(records))
""")
code("""
speedrun.tables.standing(records)
""")
words("""
The slowest line is not ours. It is the record that this race steers by, on another GPU, with another clock ([RULES.md](../source_code/speedrun/RULES.md) says what differs). The others were made on one machine, one after another.
""")
code("""
speedrun.tables.goals(records)
""")
code("""
times = {one["entry"]: speedrun.readings.line(one).training_ms for one in records}
for track in rules.TRACKS.values():
    best = min(times[one["entry"]] for one in records if one["track"] == track.name)
    lab.expect(f"'{track.name}': within the course's own goal, {track.goal_ms:.0f} ms",
               best <= track.goal_ms, best,
               because="the goal was set for an H200",
               so=f"the fastest entry takes ~{best:.0f} ms here: a goal to work at")
""")
words("""
## Is it true?

A claim of this kind is easily wrong, and more easily believed. What the referee does against it, without being asked:

- An entry is prepared and rehearsed on **noise**. The digits are put in its place afterwards, so nothing worked out beforehand helps.
- Before each seed the digits get **another order**: nothing kept from the last seed helps either.
- After `start` and before `train` the network is asked what it knows. It must be **next to nothing**.
- How often the test set was **opened** for an entry is counted.
""")
code("""
lab.listing("source_code/labkit/speedrun/referee.py", "Play")
""")
code("""
knew = max(row["untrained_pct"] for one in records for row in one["rows"])
lab.invariant("no network knew more than chance allows before its training",
              knew <= rules.CHANCE_PCT, knew)
lab.invariant("no rule is broken", not any(rules.broken(one) for one in records))
""")
words("""
What no program can check: whether the recipe was chosen by the test digits after all. Held-out digits give one sign. A recipe that is much better on the test digits than on those it was chosen by, compared with its neighbours, has a history.
""")
words("""
## Exercises

**26.1** Read it off the chart or the table: how many of `own`'s seeds reach 99.0 % *themselves*?
""")
code("""
my_seeds = None
lab.exercise("26.1", my_seeds, own)
""")
words("""
<details><summary>Solution</summary>

```python
my_seeds = sum(row["accuracy_pct"] >= 99.0 for row in own["rows"])
lab.exercise("26.1", my_seeds, own)
```

A mean of 99.0 % is what the rule asks. "Each seed" would be another race, and a slower one.
</details>
""")
words("""
**26.2** A bound: the course's network takes 71.57 million operations for a digit, there and back. If every step ran at the fastest product's rate (`roof`, TFLOP/s), how many milliseconds would this training take?
""")
code("""
roof = roofline.readings.peaks(lab.benchmark("bench_peaks.py")).rate("bf16")
steps, batch = speedrun.readings.steps(course_net), course_net["recipe"]["batch"]
my_ms = None
lab.exercise("26.2", my_ms, steps, batch, 71.57, roof)
""")
words("""
<details><summary>Solution</summary>

```python
my_ms = steps * batch * 71.57e6 / (roof * 1e12) * 1e3
lab.exercise("26.2", my_ms, steps, batch, 71.57, roof)
```

The measured time is several times that. Part of the rest is what lab 11 found; part is Muon, which does its products for the weights and not for the digits.
</details>
""")
words("""
**26.3** The gradient of a loss with smoothed labels, by hand. `logits` `(N, 10)`, `labels` `(N,)`, the loss is the mean over the batch; return its gradient by the logits. (The kernel of the entries does this in registers.)
""")
code("""
def gradient(logits, labels, smoothing):
    raise NotImplementedError


lab.exercise("26.3", gradient)
""")
words("""
<details><summary>Solution</summary>

```python
import torch


def gradient(logits, labels, smoothing):
    target = torch.nn.functional.one_hot(labels, 10) * (1 - smoothing) + smoothing / 10
    return (logits.softmax(1) - target) / len(labels)


lab.exercise("26.3", gradient)
```
</details>
""")
words("""
## The challenge

Copy an entry, change it, and beat it. The search needs no test digit; the last command opens them once.

```bash
cp source_code/speedrun/own_kernels.py mine.py
python3 source_code/benchmarks/speedrun_search.py mine.py --over batch=256,512 --over epochs=0.5,0.7
python3 source_code/benchmarks/speedrun.py mine.py --author "your name" --record source_code/speedrun/entries/mine.json
python3 -m labkit.topics.speedrun
```

Ideas, none of them tried here: a batch that grows during the training; weights that are averaged over the last steps; first-layer filters that begin as edges (drawn, not learned); FP8 in the second convolution; the optimizer's small products beside the next step's first layer, on another stream; the whole step as one kernel.
""")
code("lab.finish()")
words("""
## To remember

1. Time to a goal is steps times time a step. Tune them together: the best batch for the one is not the best for the other.
2. Fix the rules before the first run: what is timed, how many seeds, which digits may choose.
3. A recipe is chosen by held-out data. The test set is opened once.

## Resources

- [tuomaso/train_mnist_fast](https://github.com/tuomaso/train_mnist_fast): the record to beat, step by step
- [Muon: an optimizer for hidden layers](https://kellerjordan.github.io/posts/muon/)
- [KellerJordan/cifar10-airbench](https://github.com/KellerJordan/cifar10-airbench): the same race on CIFAR-10, and how its claims are tested
""")
words("(navigation)")


def main():
    notebook = nbformat.v4.new_notebook(cells=CELLS)
    nbformat.write(notebook, Path(sys.argv[1]))
    print(f"{len(CELLS)} cells, {sum(len(cell.source.split()) for cell in CELLS)} words and signs")


if __name__ == "__main__":
    main()
