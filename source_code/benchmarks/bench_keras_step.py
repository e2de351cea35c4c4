"""Benchmark: Keras's own training step and a user's, in FP16, with the loss scale applied and without it (lab 16)."""

import numpy as np
import torch

from labkit.errors import LabError, one_sentence
from labkit.training import keras_net, keras_run, keras_step, steps
from labkit.training.data import normalise
from labkit.training.model import Net

WAYS = ("Keras's step", "own step", "own step, scale_loss")


def optimizers(args):
    """A new optimizer of each kind, by its name: Adadelta as in the course, Adam as it comes."""
    from keras import optimizers as made

    return {
        "SGD": lambda: made.SGD(0.1),
        "Adam": lambda: made.Adam(),
        "Adadelta": lambda: made.Adadelta(args.lr, rho=0.9, epsilon=1e-6),
    }


def model_of(way, optimizer, args):
    """The course's net under mixed_float16 with PyTorch's first weights, compiled with what scales its loss."""
    import keras

    keras.utils.set_random_seed(args.seed)  # of dropout, too
    model = keras_net.net()
    if way != WAYS[0]:
        model = keras_step.own_step([keras.Input((28, 28, 1)), *model.layers], way == WAYS[2])
    torch.manual_seed(args.seed)
    model.set_weights(keras_net.weights_of(Net()))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # log-probabilities are logits, too
    model.compile(optimizer, loss, jit_compile=False)
    return model


def tried(train, test, args):
    """A row an optimizer and way: how far its first step moves the weights, and what it has learnt at the end."""
    for name, make in optimizers(args).items():
        for way in WAYS:
            model = model_of(way, make(), args)
            before = model.get_weights()
            first = [values[: args.batch_size] for values in train]
            model.fit(*first, args.batch_size, verbose=0)
            moved = [np.abs(new - old).sum() for new, old in zip(model.get_weights(), before, strict=True)]
            model.set_weights(before)
            model.compile(make(), model.loss, jit_compile=False)  # a new optimizer: the first step counts no more
            model.fit(*train, args.batch_size, args.epochs, verbose=0)
            images, labels = test
            found = model.predict(images, args.test_batch_size, verbose=0).argmax(1)
            yield {
                "optimizer": name,
                "way": way,
                "trains": type(model.optimizer).__name__,
                "first_step": float(sum(moved) / sum(old.size for old in before)),
                "scale": float(model.optimizer.dynamic_scale),
                "steps": int(model.optimizer.iterations),
                "accuracy_pct": 100 * float((found == labels).mean()),
            }


def main():
    args = keras_run.parse_args(__doc__)
    with one_sentence():
        if args.backend != "tensorflow":
            raise LabError(f"{args.backend}: the step is written for TensorFlow.")
        keras_run.use(args.backend, args.device)
    from keras import config

    config.set_dtype_policy("mixed_float16")
    digits = steps.found_digits(args)
    sets = (digits.train, digits.test)
    arrays = [(keras_net.images_of(normalise(one.data)), one.targets.numpy()) for one in sets]
    rows = []
    for row in tried(*arrays, args):
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    device = steps.pick_device(args.device)
    versions = keras_run.versions(args.backend)
    train_samples = len(digits.train)
    steps.write_benchmark_record(
        args, device, rows, data_source=digits.source, backend=args.backend, keras=versions, train_samples=train_samples
    )


if __name__ == "__main__":
    main()
