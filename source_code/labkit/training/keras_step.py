"""What does a training step of one's own do with the loss scale? The step of a TensorFlow user, in Keras 3 (lab 16)."""


def own_step(layers, scaled):
    """A Keras model of these layers whose ``fit`` trains by its own step; ``scaled``: it multiplies the loss itself."""
    import keras
    import tensorflow as tf

    class OwnStep(keras.Sequential):
        def train_step(self, data):
            images, labels = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=labels, y_pred=self(images, training=True))
                if scaled:
                    loss = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply(gradients, self.trainable_weights)
            return {"loss": loss}

    return OwnStep(layers)
