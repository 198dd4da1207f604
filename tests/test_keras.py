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


def test_what_is_no_model_and_unknown_options_are_refused(keras):
    with pytest.raises(torchipu.CaptureError, match=r"use_ipu takes a keras.Model, got int"):
        use_ipu(3)
    with pytest.raises(torchipu.OptionsError, match="machine"):
        use_ipu(model(keras), {"machine": "bow"})
