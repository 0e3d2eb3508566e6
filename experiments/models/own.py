"""Models as a new user of Keras writes them: recurrent, adversarial, with own steps."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from experiments.models import data
from experiments.models.data import Ready, classes, images, model

__all__: list[str] = []

_WORDS = 500


def _conv(filters: int, size: int = 3, *, up: bool = False, **more: Any) -> Any:
    kind = layers.Conv2DTranspose if up else layers.Conv2D
    return kind(filters, size, padding="same", **more)


def _learn(tape: Any, loss: Any, part: keras.Model, optimizer: Any) -> None:
    """Apply gradients to one part of a model."""
    own = part.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, own), own, strict=True))


@model
def _seq2seq() -> Ready:
    batch, length, units = 32, 40, 128
    asked, said = keras.Input((length,)), keras.Input((length,))
    inner = layers.Embedding(_WORDS, units)(asked)
    _, hidden, cell = layers.LSTM(units, return_state=True)(inner)
    outer = layers.Embedding(_WORDS, units)(said)
    decoder, state = layers.LSTM(units, return_sequences=True), [hidden, cell]
    outer = decoder(outer, initial_state=state)
    words = layers.Dense(_WORDS, activation="softmax")(outer)
    made = keras.Model([asked, said], words)
    made.compile("adam", data.CROSS_ENTROPY)
    answer = data.tokens(batch, length + 1, seed=3)
    return made, [data.tokens(batch, length), answer[:, :-1]], answer[:, 1:], batch


@model
def _gru() -> Ready:
    batch, length = 32, 100
    made = keras.Sequential([keras.Input((length,)), layers.Embedding(_WORDS, 64)])
    made.add(layers.Bidirectional(layers.GRU(96, return_sequences=True)))
    made.add(layers.Dropout(0.2))
    made.add(layers.Bidirectional(layers.GRU(96, return_sequences=True)))
    made.add(layers.GRU(64))
    made.add(layers.Dense(10, activation="softmax"))
    made.compile(keras.optimizers.RMSprop(1e-3), data.CROSS_ENTROPY)
    return made, data.tokens(batch, length), classes(batch), batch


@model
def _convlstm() -> Ready:
    batch, frames, size = 4, 6, 40
    known: Any = {"padding": "same", "return_sequences": True}
    made = keras.Sequential([keras.Input((frames, size, size, 1))])
    made.add(layers.ConvLSTM2D(24, 3, **known))
    made.add(layers.BatchNormalization())
    made.add(layers.ConvLSTM2D(24, 3, **known))
    made.add(layers.Conv3D(1, 3, padding="same", activation="sigmoid"))
    made.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy")
    shape = (data.BATCHES * batch, frames, size, size, 1)
    film = images(batch * frames, size, 1).reshape(shape)
    return made, film, film, batch


class Autoencoder(keras.Model):
    """Learns its own input, and clips its gradients itself."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        known: Any = {"strides": 2, "activation": "gelu"}
        sizes = (filters, 2 * filters, 4 * filters)
        self.encoder = keras.Sequential([_conv(size, **known) for size in sizes])
        back = [_conv(size, up=True, **known) for size in reversed(sizes)]
        self.decoder = keras.Sequential([*back, _conv(3, activation="sigmoid")])
        self.mean = keras.metrics.Mean(name="loss")

    def call(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data, training=True) - data))
        own = self.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, own), 1.0)
        self.optimizer.apply_gradients(zip(gradients, own, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


@model
def _autoencoder() -> Ready:
    made = Autoencoder(16)
    made.compile(keras.optimizers.AdamW(1e-3))
    return made, images(4, 256), None, 4


class GAN(keras.Model):
    """A generator and a critic, each with an optimizer of its own."""

    def __init__(self, size: int, filters: int) -> None:
        super().__init__()
        self.noise = 64
        start = size // 4
        made = keras.Sequential([keras.Input((self.noise,))])
        made.add(layers.Dense(start * start * filters))
        made.add(layers.Reshape((start, start, filters)))
        for count in (2 * filters, filters):
            made.add(_conv(count, 4, up=True, strides=2))
            made.add(layers.BatchNormalization())
            made.add(layers.LeakyReLU(0.2))
        made.add(_conv(3, 5, activation="sigmoid"))
        self.generator = made
        self.critic = keras.Sequential([keras.Input((size, size, 3))])
        for count in (filters, 2 * filters):
            self.critic.add(_conv(count, strides=2))
            self.critic.add(layers.LeakyReLU(0.2))
        self.critic.add(layers.GlobalMaxPooling2D())
        self.critic.add(layers.Dense(1))
        self.seeds = keras.random.SeedGenerator(5)

    def compile(self, critic_optimizer: Any, generator_optimizer: Any) -> None:
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer
        self.judge = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, x: Any) -> Any:
        return self.critic(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        batch = tf.shape(data)[0]
        ones, zeros = tf.ones((batch, 1)), tf.zeros((batch, 1))
        with tf.GradientTape() as tape:
            made = self.generator(self._latent(batch), training=True)
            both = self.critic(tf.concat([made, data], 0), training=True)
            critic_loss = self.judge(tf.concat([ones, zeros], 0), both)
        _learn(tape, critic_loss, self.critic, self.critic_optimizer)
        with tf.GradientTape() as tape:
            made = self.generator(self._latent(batch), training=True)
            loss = self.judge(zeros, self.critic(made, training=True))
        _learn(tape, loss, self.generator, self.generator_optimizer)
        return {"loss": loss, "critic_loss": critic_loss}

    def _latent(self, batch: Any) -> Any:
        return keras.random.normal((batch, self.noise), seed=self.seeds)


@model
def _gan() -> Ready:
    made = GAN(64, 64)
    made.compile(keras.optimizers.Adam(2e-4, 0.5), keras.optimizers.RMSprop(2e-4))
    return made, images(16, 64), None, 16


@model
def _augmented() -> Ready:
    batch, size = 16, 64
    inputs = keras.Input((size, size, 3))
    x = layers.RandomFlip("horizontal", seed=1)(inputs)
    x = layers.RandomRotation(0.1, seed=2)(x)
    x = layers.RandomZoom(0.1, seed=3)(x)
    x = layers.RandomContrast(0.2, seed=4)(x)
    for filters in (32, 64, 128):
        x = _conv(filters, use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = _conv(filters, activation="relu")(x)
        x = layers.MaxPooling2D()(x)
        x = layers.Dropout(0.2)(x)
    x = layers.GlobalAveragePooling2D()(x)
    made = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)
    made.compile(optimizer, data.CROSS_ENTROPY, metrics=["accuracy"])
    return made, images(batch, size), classes(batch), batch


def _denoiser(size: int) -> keras.Model:
    """Make a U-Net of a noisy image and a noise level, with attention at the bottom."""
    noisy, level = keras.Input((size, size, 3)), keras.Input((1,))
    told = layers.Dense(64, activation="silu")(level)
    x, skips = _conv(32)(noisy), []
    for filters in (32, 64):
        x = _residual(x, told, filters)
        skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    x = _residual(x, told, 96)
    flat = layers.Reshape((-1, 96))(layers.GroupNormalization(8)(x))
    seen = layers.MultiHeadAttention(4, 24)(flat, flat)
    x = layers.Add()([x, layers.Reshape(x.shape[1:])(seen)])
    for filters in (64, 32):
        x = layers.UpSampling2D(interpolation="bilinear")(x)
        x = _residual(layers.Concatenate()([x, skips.pop()]), told, filters)
    return keras.Model([noisy, level], layers.Conv2D(3, 1)(x))


def _residual(x: Any, told: Any, filters: int) -> Any:
    same = x if x.shape[-1] == filters else layers.Conv2D(filters, 1)(x)
    x = layers.Activation("silu")(layers.GroupNormalization(8)(x))
    x = _conv(filters)(x)
    shift = layers.Reshape((1, 1, filters))(layers.Dense(filters)(told))
    x = layers.Activation("silu")(layers.GroupNormalization(8)(x + shift))
    return layers.Add()([same, _conv(filters)(x)])


class Diffusion(keras.Model):
    """Learns the noise that was added to an image, and averages its own weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.network = _denoiser(size)
        self.average = _denoiser(size)
        self.average.trainable = False
        self.seeds = keras.random.SeedGenerator(6)

    def call(self, x: Any) -> Any:
        return self.average(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        batch = tf.shape(data)[0]
        level = keras.random.uniform((batch, 1), seed=self.seeds)
        added = keras.random.normal(tf.shape(data), seed=self.seeds)
        angle = level[:, None, None] * 1.5
        noisy = tf.cos(angle) * data + tf.sin(angle) * added
        with tf.GradientTape() as tape:
            guess = self.network([noisy, level], training=True)
            loss = tf.reduce_mean(tf.square(guess - added))
        _learn(tape, loss, self.network, self.optimizer)
        for new, kept in zip(self.network.weights, self.average.weights, strict=True):
            kept.assign(0.99 * kept + 0.01 * new)
        return {"loss": loss}


@model
def _diffusion() -> Ready:
    made = Diffusion(64)
    made.compile(keras.optimizers.Lion(1e-4))
    return made, data.noise(data.BATCHES * 8, 64, 64, 3), None, 8
