"""The same net and recipe in Keras 3, in FP32, on the backend that is asked for (lab 16)."""

from labkit.training import keras_net, keras_run


def compiled(model, args):
    from keras import losses, optimizers

    optimizer = optimizers.Adadelta(args.lr, rho=0.9, epsilon=1e-6)  # PyTorch's, not Keras's defaults
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)  # log-probabilities are logits, too
    jit = {"auto": "auto", "on": True, "off": False}[args.jit]
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit)
    return optimizer


def main():
    args = keras_run.parse_args(__doc__)
    run = keras_run.Run(args)
    (images, labels), test_set = run.arrays()

    model = keras_net.net()
    model.set_weights(run.initial_weights())  # PyTorch's, of the same seed
    optimizer = compiled(model, args)

    with run:
        for epoch in run.epochs():
            optimizer.learning_rate = args.lr * args.gamma ** (epoch - 1)
            with run.timed("training"):
                history = model.fit(images, labels, args.batch_size, verbose=0)
            run.log_fit(history)
            with run.timed("test"):
                loss, accuracy = model.evaluate(*test_set, args.test_batch_size, verbose=0)
            run.log_evaluation(loss, accuracy)
        run.extras["jit_compile"] = model.jit_compile


if __name__ == "__main__":
    main()
