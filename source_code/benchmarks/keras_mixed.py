"""Keras 3 in mixed precision: a policy for all layers, and a loss scale for FP16 (lab 16)."""

from labkit.training import keras_net, keras_run


def compiled(model, args):
    from keras import losses, optimizers

    optimizer = optimizers.Adadelta(args.lr, rho=0.9, epsilon=1e-6)  # PyTorch's, not Keras's defaults
    if args.loss_scale == "dynamic":
        optimizer = optimizers.LossScaleOptimizer(optimizer, args.initial_scale)
    elif args.loss_scale != "none":
        optimizer.loss_scale_factor = args.loss_scale
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)  # log-probabilities are logits, too
    jit = {"auto": "auto", "on": True, "off": False}[args.jit]
    # compile() would put a dynamic scale around the optimizer, and drop a fixed one without a word.
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit, auto_scale_loss=False)
    return optimizer


def main():
    args = keras_run.parse_args(__doc__, mixed=True)
    run = keras_run.Run(args)
    (images, labels), test_set = run.arrays()

    from keras import config

    config.set_dtype_policy(args.policy)
    model = keras_net.net()
    model.set_weights(run.initial_weights())  # PyTorch's, of the same seed
    optimizer = compiled(model, args)

    with run:
        for epoch in run.epochs():
            optimizer.learning_rate = args.lr * args.gamma ** (epoch - 1)
            with run.timed("training"):
                history = model.fit(images, labels, args.batch_size, verbose=0)
            run.log_fit(history)
            run.log_loss_scale(optimizer)
            with run.timed("test"):
                loss, accuracy = model.evaluate(*test_set, args.test_batch_size, verbose=0)
            run.log_evaluation(loss, accuracy)
        run.extras["jit_compile"] = model.jit_compile


if __name__ == "__main__":
    main()
