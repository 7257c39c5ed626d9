"""TensorFlow, without what it says about the machine and about every refusal that a test wants to see."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def tf():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    return tf
