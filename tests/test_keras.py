"""Facts of Keras models on the emulated IPU: Keras's own run of the same model is the judge."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

import torchipu
from torchipu.backend import COUNTS
from torchipu.keras import use_ipu

pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="the extra keras is not installed")
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((24, 8)).astype("float32"), RANDOM.integers(0, 3, 24)


@pytest.fixture
def keras(monkeypatch):
    """Import Keras where it is used: it takes two seconds, and who collects tests needs none of it."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return import_module("keras")


def model(keras):
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])
    made.compile(
        optimizer=keras.optimizers.Adam(1e-2), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"], jit_compile=False,
    )
    return made


def test_fit_and_predict_run_on_the_ipu_with_keras_own_results(keras):
    plain, ours = model(keras), use_ipu(model(keras))
    programs = COUNTS.programs
    settings = {"batch_size": 10, "epochs": 2, "shuffle": False, "verbose": 0}
    expected, found = (each.fit(X, Y, **settings).history for each in (plain, ours))
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
    np.testing.assert_allclose(found["accuracy"], expected["accuracy"])
    # Forward and backward, of ten samples and of the last four: none where Keras infers shapes before it trains.
    assert COUNTS.programs == programs + 4
    np.testing.assert_allclose(ours.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-4, atol=1e-5)


def images(keras, is_sequential):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    parts = [
        layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(), layers.GlobalAveragePooling2D(),
        layers.Dense(3, dtype="float32"),
    ]
    if is_sequential:  # built when it is first given images
        made = keras.Sequential(parts)
    else:
        value = given = keras.Input((8, 8, 3))
        for part in parts:
            value = part(value)
        made = keras.Model(given, value)
    made.compile(
        optimizer=keras.optimizers.SGD(0.05), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return made


@pytest.mark.parametrize(("policy", "tolerance"), [("float32", 1e-4), ("mixed_float16", 2e-2)])
@pytest.mark.parametrize("is_sequential", [False, True])
def test_a_convolution_and_a_batch_norm_train_as_one_program(keras, policy, tolerance, is_sequential, tmp_path):
    given = RANDOM.standard_normal((16, 8, 8, 3)).astype("float32")
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        plain, ours = (images(keras, is_sequential) for _ in range(2))
        use_ipu(ours)
        programs = COUNTS.programs
        expected, found = (
            each.fit(given, Y[:16], batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
            for each in (plain, ours)
        )
        assert COUNTS.programs == programs + 2  # forward and backward
        np.testing.assert_allclose(found, expected, rtol=tolerance)
        for moved, wanted in zip(ours.non_trainable_variables, plain.non_trainable_variables, strict=True):
            np.testing.assert_allclose(moved, wanted, rtol=tolerance, atol=tolerance)
        ours.save(tmp_path / "model.keras")
        for stored, held in zip(
            keras.saving.load_model(tmp_path / "model.keras").variables, ours.variables, strict=True,
        ):
            np.testing.assert_array_equal(stored, held)
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def test_what_is_no_model_and_unknown_options_are_refused(keras):
    with pytest.raises(torchipu.CaptureError, match=r"use_ipu takes a keras.Model, got int"):
        use_ipu(3)
    with pytest.raises(torchipu.OptionsError, match="machine"):
        use_ipu(model(keras), {"machine": "bow"})
